"""The fields that requests of several APIs share, as msgspec Structs.

The Structs check the bodies of requests, and OpenAPI's schemas are made from them. Null is the same
as leaving a field out. A request with an unknown field is refused with an error that names it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from ... import config
from ...config import SamplingParams, did_you_mean
from ...schema import Mismatch, checked
from ...setting import Setting, settings_of
from ..errors import ApiError, bad_value

R = TypeVar("R", bound="Request")

DEEPEST = 64
TOO_DEEP = f"are nested more than {DEEPEST} levels deep; flatten them"
SEEDS = {"minimum": -(1 << 63), "maximum": (1 << 64) - 1}  # beyond what msgspec can bound
_INT32 = (1 << 31) - 1
_LONGEST = 500  # most characters of a message that quotes a request


def about(description: str) -> Meta:
    """Return a description as the metadata of a field."""
    return Meta(description=description)


def only(reason: str, **schema: Any) -> Meta:
    """Describe a field that is accepted only if its value asks for what happens anyway."""
    return Meta(
        description=f"Not supported beyond this: {reason}",
        extra={"reason": reason},
        extra_json_schema=schema,
    )


def ignored(senders: str) -> Meta:
    """Describe a field that some clients send to every server."""
    return Meta(description=f"Accepted and ignored, for {senders}: it changes no text here")


IGNORED = about("Accepted and ignored: it changes no text here")
ToolName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]
TokenId = Annotated[int, Meta(ge=0, le=_INT32)]
Length = Annotated[int, Meta(ge=-1, le=_INT32)]
"""A number of tokens; -1 is no limit."""
Streamed = Annotated[bool | None, about("Server-sent events, a token at a time")]
Top = Annotated[int, Meta(ge=0, le=20)]
Budget = Annotated[int, Meta(ge=-1, le=_INT32)]


OnBusy = Annotated[
    Literal["wait", "error", "replace"] | None,
    about(
        "If all slots are taken: wait; error: be refused with status 429; replace: end the running "
        "request of this key that began first, and take its slot (default: wait)"
    ),
]


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class StructuredOutputs(Struct, frozen=True, forbid_unknown_fields=True):
    """A form of an answer, given by one of these fields, as in vLLM's API."""

    json: dict[str, Any] | str | bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1, max_length=4096)] | None = None
    grammar: str | None = None
    disable_additional_properties: Annotated[
        bool | None, about("The opposite of additional_properties")
    ] = None
    disable_any_whitespace: Annotated[
        bool | None, about("Accepted and ignored: JSON never has blanks between its parts")
    ] = None


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of all requests; clients send the ignored ones to every server."""

    model: Annotated[str | None, about("Its name as in /v1/models")] = None
    keep_alive: Annotated[Any, ignored("Ollama's clients")] = None
    ttl: Annotated[Any, ignored("LM Studio's clients")] = None
    draft_model: Annotated[Any, ignored("LM Studio's clients")] = None
    verbosity: Annotated[Any, ignored("clients made for GPT-5")] = None
    cache_prompt: Annotated[Any, ignored("llama.cpp's clients")] = None
    id_slot: Annotated[Any, ignored("llama.cpp's clients")] = None
    timings_per_token: Annotated[Any, ignored("llama.cpp's clients")] = None
    return_progress: Annotated[Any, ignored("llama.cpp's clients")] = None
    request_id: Annotated[Any, ignored("vLLM's clients")] = None
    priority: Annotated[Any, ignored("vLLM's clients")] = None
    include_reasoning: Annotated[Any, ignored("OpenRouter's and vLLM's clients")] = None
    provider: Annotated[Any, ignored("OpenRouter's clients")] = None
    route: Annotated[Any, ignored("OpenRouter's clients")] = None
    transforms: Annotated[Any, ignored("OpenRouter's clients")] = None
    usage: Annotated[Any, ignored("OpenRouter's clients")] = None
    chat_id: Annotated[Any, ignored("Open WebUI")] = None
    session_id: Annotated[Any, ignored("Open WebUI, OpenRouter's clients")] = None
    litellm_metadata: Annotated[Any, ignored("LiteLLM")] = None
    litellm_session_id: Annotated[Any, ignored("LiteLLM")] = None
    litellm_trace_id: Annotated[Any, ignored("LiteLLM")] = None


def _field(setting: Setting) -> tuple[str, Any, None]:
    """Return a setting as the optional field of a Struct: its name, type and default."""
    kind, (low, high) = setting.kind, setting.range
    bounds: dict[str, Any] = {"le": high} if setting.le is not None or kind is int else {}
    if low > -math.inf:
        bounds["gt" if setting.gt is not None else "ge"] = low
    bounds |= (setting.extra or {}).get("on_the_wire", {})
    told = setting.sentence
    if setting.shapes_rows:
        told += " Default: the model's own recommendation."
    wire, meta = _OTHERWISE.get(setting.name, (Annotated[kind, Meta(**bounds)], {}))
    return setting.name, Annotated[wire | None, Meta(description=told, **meta)], None


_OTHERWISE: dict[str, tuple[Any, dict[str, Any]]] = {  # settings with a different form in JSON
    "logit_bias": (
        dict[Annotated[str, Meta(pattern="^[0-9]{1,10}$")], Annotated[float, Meta(ge=-100, le=100)]]
        | Annotated[list[Any], Meta(max_length=0)],  # llama.cpp's default
        {"extra": {"reason": "its keys are token ids"}},
    ),
    "seed": (int, {"extra_json_schema": SEEDS}),
    "max_tokens": (Length, {}),
    "stop": (str | Annotated[list[str], Meta(max_length=16)], {}),
    "stop_token_ids": (Annotated[list[TokenId], Meta(max_length=64)], {}),
}
_OTHERWISE["repetition_detection"] = (
    msgspec.defstruct(
        "RepetitionDetection",
        [_field(each) for each in settings_of(config.RepetitionDetection).values()],
        namespace={"__doc__": "Says when an answer that repeats itself ends, as in vLLM's API."},
        frozen=True,
        forbid_unknown_fields=True,
    ),
    {},
)


def with_settings(*names: str) -> Callable[[type[R]], type[R]]:
    """Return a decorator that adds settings of SamplingParams to a Struct of requests as fields.

    `given_of` reads these fields. names: the settings to add; without names, all settings except
    those that each API names in its own way.
    """
    settings = settings_of(SamplingParams)
    chosen = names or [name for name in settings if name not in ("logprobs", *config.CONSTRAINTS)]
    fields = [_field(settings[name]) for name in chosen]

    def extended(kind: type[R]) -> type[R]:
        namespace = {"__doc__": kind.__doc__}
        made: Any = msgspec.defstruct(
            kind.__name__, fields, bases=(kind,), namespace=namespace, module=kind.__module__,
            frozen=True, kw_only=True,
        )  # fmt: skip
        return made  # type: ignore[no-any-return]

    return extended


@with_settings()
class Generation(Request, frozen=True, kw_only=True):
    """The fields of all requests for text. Those that SamplingParams also has go to the engine."""

    stream: Streamed = None
    stream_options: Annotated[
        StreamOptions | None,
        about(
            "include_usage: a last chunk with the usage; continuous_usage_stats: the usage so far "
            "in every chunk, as in vLLM's API"
        ),
    ] = None
    return_tokens_as_token_ids: Annotated[
        bool | None, about("Log-probabilities name tokens as token_id:…")
    ] = None
    json_schema: Annotated[
        dict[str, Any] | None, about("The answer is JSON that follows this schema")
    ] = None
    grammar: Annotated[
        str | None, about("The answer follows this grammar, in llama.cpp's form or Lark's")
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, about("A form of the answer, under vLLM's names")
    ] = None
    n: Annotated[
        Annotated[int, Meta(ge=1, le=128)] | None,
        about(
            "Answers to each prompt (default: 1). The first has the request's seed, and each other "
            "one a seed that follows from it"
        ),
    ] = None
    on_busy: OnBusy = None
    user: Annotated[str | None, IGNORED] = None
    metadata: Annotated[dict[str, Any] | None, IGNORED] = None
    store: Annotated[bool | None, IGNORED] = None
    service_tier: Annotated[str | None, IGNORED] = None
    safety_identifier: Annotated[str | None, IGNORED] = None
    prompt_cache_key: Annotated[str | None, IGNORED] = None
    prompt_cache_retention: Annotated[str | None, IGNORED] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, IGNORED] = None


def read(body: bytes, *kinds: type[R]) -> R:
    """Return a body as the Struct among `kinds` whose required field the body has.

    Raises ApiError (400) with the name of a field that is unknown, missing or wrong.
    """
    return check(parsed(body), *kinds)


def check(values: Mapping[str, Any], *kinds: type[R]) -> R:
    """Return a parsed body as one of the Structs `kinds`, chosen and checked as in `read`."""
    known = [name for kind in kinds for name in kind.__struct_fields__]
    given = {
        name: value
        for name, value in values.items()
        if value is not None and (name not in _DEFAULTS or not _is_default(name, value))
    }
    if unknown := given.keys() - known:  # subtracting 40 names from 150,000 fields: 0.2 s
        raise _unknown(next(name for name in given if name in unknown), known)
    by_field = {_required(kind): kind for kind in kinds}
    present = [name for name in by_field if name in given]
    if not present:
        names = " or ".join(map(repr, by_field))
        raise bad_value(next(iter(by_field)), f"the field {names} is missing", "missing_parameter")
    if len(present) > 1:
        raise bad_value(present[1], f"give {present[0]!r} or {present[1]!r}, not both")
    try:
        return checked(given, by_field[present[0]])
    except Mismatch as mismatch:
        raise _refused(mismatch) from None


_DEFAULTS: dict[str, Any] = {  # fields of other servers, with the value that asks for nothing
    "add_generation_prompt": True,
    "betas": [],
    "dry_multiplier": 0,
    "dynatemp_range": 0,
    "length_penalty": 1,
    "mcp_servers": [],
    "min_keep": 0,
    "min_tokens": 0,
    "mirostat": 0,
    "n_keep": 0,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "tfs_z": 1,
    "top_a": 0,
    "top_n_sigma": -1,
    "typical_p": 1,
    "use_beam_search": False,
    "xtc_probability": 0,
}


def _is_default(name: str, value: Any) -> bool:
    return bool(
        isinstance(value, bool) == isinstance(_DEFAULTS[name], bool) and value == _DEFAULTS[name]
    )


def parsed(body: bytes) -> dict[str, Any]:
    """Return a body as a JSON object. Raises ApiError (400) if the body is anything else."""
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise bad_value(None, "the body is nested too deeply") from None
    except ValueError as error:  # msgspec's, and Unicode's
        reason = str(error).partition(" - at ")[0]
        raise bad_value(None, f"the body is not JSON in valid Unicode: {reason}") from None
    if not isinstance(value, dict):
        raise bad_value(None, "the body must be a JSON object")
    return value


def missing(place: str) -> ApiError:
    """Return the error for a required field that is missing."""
    return bad_value(place, f"the field {place!r} is missing", "missing_parameter")


@functools.cache
def _required(kind: type[Request]) -> str:
    return next(field.name for field in msgspec.structs.fields(kind) if field.required)


_OF_OTHERS = {  # fields of llama.cpp's server and of Ollama, with our names for them
    "content": "prompt",
    "max_length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "n_probs": "logprobs",
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "speculative.n_max": "num_draft_tokens",
    "t_max_predict_ms": "time_limit_s",
    "temp": "temperature",
}


def _unknown(name: str, known: list[str]) -> ApiError:
    ours = _OF_OTHERS.get(name)
    hint = f"here it is {ours!r}" if ours in known else did_you_mean(name, known)
    if hint.startswith("known"):
        hint = "/openapi.json lists those known"
    return bad_value(name[:80], f"unknown parameter {name[:80]!r}; {hint}", "unknown_parameter")


def _refused(mismatch: Mismatch) -> ApiError:
    param = mismatch.path.removeprefix("a key of ").removesuffix(":").removesuffix("[...]")[:80]
    if mismatch.expected == "must be null":
        message = f"{param} is not supported: {mismatch.hint}"
        return bad_value(param, message, "unsupported_parameter")
    codes = {"unknown": "unknown_parameter", "missing": "missing_parameter"}
    message = str(mismatch)
    if len(message) > _LONGEST:
        message = message[:_LONGEST] + "…"
    return bad_value(param, message, codes.get(mismatch.problem, "invalid_value"))


def is_shallow(value: Any) -> bool:
    """Return True if lists and objects in a JSON value are nested at most DEEPEST levels.

    The limit is there because templates and grammars process values recursively.
    """
    level = [value]
    for _ in range(DEEPEST + 1):
        if not level:
            return True
        inner = [list(v.values()) if isinstance(v, dict) else v for v in level if _holds(v)]
        level = [item for items in inner for item in items]
    return not level


def _holds(value: Any) -> bool:
    return isinstance(value, (dict, list))
