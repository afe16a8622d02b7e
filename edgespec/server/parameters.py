"""The requests of the API as msgspec Structs: what bodies are checked with, and OpenAPI's schemas.

Null is the same as leaving a field out. Unknown fields are refused by name.

Where the engine's defaults and OpenAI's differ: `temperature` is 0 unless the server was started
with another one (OpenAI: 1), because greedy text is what the runtime gives everywhere else;
`max_tokens` of completions is 16, as at OpenAI, because base models rarely end by themselves and
would keep everybody else waiting. A chat answer without `max_tokens` ends with the context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from ..config import SamplingParams, build, did_you_mean
from ..schema import Mismatch, checked
from .errors import ApiError, bad_value

R = TypeVar("R", bound="Request")

COMPLETION_TOKENS = 16
_INT32 = (1 << 31) - 1
_SEEDS = {"minimum": -(1 << 63), "maximum": (1 << 64) - 1}  # beyond what msgspec can bound
_LONGEST = 500  # characters of a message that quotes a request


def _about(description: str) -> Meta:
    return Meta(description=description)


def _only(reason: str, **schema: Any) -> Meta:
    """Describe a field that is accepted only where it asks for what happens anyway."""
    return Meta(
        description=f"Not supported beyond this: {reason}",
        extra={"reason": reason},
        extra_json_schema=schema,
    )


_IGNORED = _about("Accepted and ignored: it changes no text here")
_NO_TOOLS = _only("this server calls no tools")
_PLAIN = _only("answers are plain text")

TokenId = Annotated[int, Meta(ge=0, le=_INT32)]
Length = Annotated[int, Meta(ge=1, le=_INT32)]
Penalty = Annotated[float, Meta(ge=-100, le=100)]
Share = Annotated[float, Meta(ge=0, le=1)]
StopText = Annotated[str, Meta(min_length=1)]
Top = Annotated[int, Meta(ge=0, le=20)]
Empty = Annotated[list[Any], Meta(max_length=0)]
Modalities = Annotated[list[Literal["text"]], Meta(max_length=1)]


class TextPart(Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a message's content."""

    type: Annotated[Literal["text"], _only("messages are plain text")]
    text: str


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Meta(min_length=1, max_length=1024)]
    name: str | None = None
    refusal: str | None = None
    annotations: Empty | None = None
    tool_calls: Annotated[Empty | None, _NO_TOOLS] = None


Messages = Annotated[
    list[Message],
    Meta(
        min_length=1,
        max_length=4096,
        description="The conversation, rendered with the model's own template",
    ),
]
Prompt = Annotated[
    str
    | Annotated[
        list[TokenId | str | Annotated[list[TokenId], Meta(min_length=1)]], Meta(min_length=1)
    ],
    _about("Text or token ids; of several prompts each gets a choice, in this order"),
]


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Schema(Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON schema as OpenAI's API has it."""

    schema: Annotated[dict[str, Any] | None, _about("Default: any JSON object")] = None
    name: str | None = None
    description: str | None = None
    strict: Annotated[bool | None, _about("Accepted: schemas are always followed")] = None


class ResponseFormat(Struct, frozen=True, forbid_unknown_fields=True):
    """The format of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Schema | None = None


class StructuredOutputs(Struct, frozen=True, forbid_unknown_fields=True):
    """A form of an answer, one of these, as vLLM's API has it."""

    json: dict[str, Any] | str | bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1, max_length=4096)] | None = None
    grammar: str | None = None


class Request(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of all requests."""

    model: Annotated[str | None, _about("Its name as in /v1/models")] = None


class Generation(Request, frozen=True, kw_only=True):
    """The fields of all requests for text; those that SamplingParams has too go to the engine."""

    stream: Annotated[bool | None, _about("Server-sent events, a token at a time")] = None
    stream_options: Annotated[
        StreamOptions | None, _about("include_usage: a last chunk with the usage")
    ] = None
    max_tokens: Annotated[Length | None, _about("Most tokens of the answer")] = None
    temperature: Annotated[
        Annotated[float, Meta(ge=0, le=100)] | None, _about("0 takes the likeliest token")
    ] = None
    top_p: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        _about("Keep the likeliest tokens that hold this probability"),
    ] = None
    top_k: Annotated[
        Annotated[int, Meta(ge=0, le=_INT32)] | None,
        _about("Keep the K likeliest tokens, 0 for all"),
    ] = None
    min_p: Annotated[
        Share | None, _about("Drop tokens below this share of the likeliest one's probability")
    ] = None
    presence_penalty: Annotated[
        Penalty | None, _about("Subtracted from the logits of tokens already emitted")
    ] = None
    frequency_penalty: Annotated[
        Penalty | None, _about("The same, for each time it was emitted")
    ] = None
    repetition_penalty: Annotated[
        Annotated[float, Meta(ge=0.01, le=100)] | None,
        _about("Divides the logits of tokens seen before, 1 is off"),
    ] = None
    logit_bias: Annotated[
        dict[Annotated[str, Meta(pattern="^[0-9]{1,10}$")], Penalty] | None,
        Meta(
            description="Token ids, and what is added to their logits",
            extra={"reason": "its keys are token ids"},
        ),
    ] = None
    seed: Annotated[
        int | None,
        Meta(
            description="The same seed gives the same text, with and without speculation",
            extra_json_schema=_SEEDS,
        ),
    ] = None
    stop: Annotated[
        StopText | Annotated[list[StopText], Meta(max_length=16)] | None,
        _about("Texts that end the answer and are not part of it"),
    ] = None
    stop_token_ids: Annotated[
        Annotated[list[TokenId], Meta(max_length=64)] | None, _about("Tokens that end the answer")
    ] = None
    ignore_eos: Annotated[bool | None, _about("Go on where the model would end")] = None
    time_limit_s: Annotated[
        Annotated[float, Meta(ge=0, le=86400)] | None,
        _about("Answer with what is there after so many seconds in the engine"),
    ] = None
    disable_spec_decode: Annotated[bool | None, _about("Decode this request plainly")] = None
    num_draft_tokens: Annotated[
        Annotated[int, Meta(ge=0, le=1024)] | None,
        _about("Most tokens drafted in a step, 0 for none"),
    ] = None
    return_tokens_as_token_ids: Annotated[
        bool | None, _about("Log-probabilities name tokens as token_id:…")
    ] = None
    json_schema: Annotated[
        dict[str, Any] | None, _about("The answer is JSON that follows this schema")
    ] = None
    grammar: Annotated[
        str | None, _about("The answer follows this grammar, in llama.cpp's form or Lark's")
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, _about("A form of the answer, under vLLM's names")
    ] = None
    n: Annotated[Literal[1] | None, _only("one answer a request")] = None
    user: Annotated[str | None, _IGNORED] = None
    metadata: Annotated[dict[str, Any] | None, _IGNORED] = None
    store: Annotated[bool | None, _IGNORED] = None
    service_tier: Annotated[str | None, _IGNORED] = None
    safety_identifier: Annotated[str | None, _IGNORED] = None
    prompt_cache_key: Annotated[str | None, _IGNORED] = None
    prompt_cache_retention: Annotated[str | None, _IGNORED] = None


_PARSE_SPECIAL = _about(
    "Read special tokens that are written in texts as such "
    "(default: true for a text, false for the contents of messages)"
)


class ChatRequest(Generation, frozen=True, kw_only=True):
    """The body of `/v1/chat/completions`."""

    messages: Messages
    parse_special: Annotated[bool | None, _PARSE_SPECIAL] = None
    max_completion_tokens: Annotated[Length | None, _about("Newer name of max_tokens")] = None
    logprobs: Annotated[
        bool | None, _about("Log-probability of each token under the unmodified logits")
    ] = None
    top_logprobs: Annotated[Top | None, _about("Likeliest tokens to name beside it")] = None
    response_format: Annotated[
        ResponseFormat | None, _about("json_schema and json_object: the answer is JSON")
    ] = None
    modalities: Annotated[Modalities | None, _PLAIN] = None
    tools: Annotated[Empty | None, _NO_TOOLS] = None
    functions: Annotated[Empty | None, _NO_TOOLS] = None
    tool_choice: Annotated[Literal["none"] | None, _NO_TOOLS] = None
    function_call: Annotated[Literal["none"] | None, _NO_TOOLS] = None
    parallel_tool_calls: Annotated[bool | None, _IGNORED] = None
    audio: Annotated[None, _PLAIN] = None
    prediction: Annotated[None, _only("drafts are the server's own")] = None
    reasoning_effort: Annotated[None, _only("the model decides")] = None
    verbosity: Annotated[None, _only("the model decides")] = None
    web_search_options: Annotated[None, _only("nothing is searched")] = None
    moderation: Annotated[None, _only("nothing is moderated")] = None


class CompletionRequest(Generation, frozen=True, kw_only=True):
    """The body of `/v1/completions`."""

    prompt: Prompt
    logprobs: Annotated[
        Top | None, _about("Log-probabilities, and so many of the likeliest tokens beside each")
    ] = None
    best_of: Annotated[Literal[1] | None, _only("one answer a request")] = None
    echo: Annotated[bool | None, _only("prompts are not repeated", enum=[False, None])] = None
    suffix: Annotated[None, _only("text is only continued")] = None


class TokenizeRequest(Request, frozen=True, kw_only=True):
    """The fields of both kinds of body that `/tokenize` takes."""

    add_special_tokens: Annotated[
        bool | None, _about("Begin a text as the model wants it begun (default: true)")
    ] = None
    add_generation_prompt: Annotated[
        bool | None,
        _about("End a conversation with the opening of the assistant's turn (default: true)"),
    ] = None
    content: Annotated[str | None, _IGNORED] = None  # llama-server's names, sent by some clients
    add_special: Annotated[bool | None, _IGNORED] = None
    parse_special: Annotated[bool | None, _PARSE_SPECIAL] = None


class TokenizeText(TokenizeRequest, frozen=True, kw_only=True):
    """The body of `/tokenize` for a text."""

    prompt: Annotated[str, _about("A text")]


class TokenizeConversation(TokenizeRequest, frozen=True, kw_only=True):
    """The body of `/tokenize` for a conversation."""

    messages: Messages


class DetokenizeRequest(Request, frozen=True, kw_only=True):
    """The body of `/detokenize`."""

    tokens: Annotated[list[TokenId], _about("Token ids")]


def read(body: bytes, *kinds: type[R]) -> R:
    """Return a body as the one of `kinds` whose required field it has.

    Raises ApiError (400) that names the field which is unknown, missing or wrong.
    """
    return check(parse(body), *kinds)


def check(values: Mapping[str, Any], *kinds: type[R]) -> R:
    """Return the fields of a request as `read` does."""
    given = {name: value for name, value in values.items() if value is not None}
    known = [name for kind in kinds for name in kind.__struct_fields__]
    if unknown := [name for name in given if name not in known]:
        raise _unknown(unknown[0], known)
    by_field = {_required(kind): kind for kind in kinds}
    found = [name for name in by_field if name in given]
    if not found:
        names = " or ".join(map(repr, by_field))
        raise bad_value(next(iter(by_field)), f"the field {names} is missing", "missing_parameter")
    if len(found) > 1:
        raise bad_value(found[1], f"give {found[0]!r} or {found[1]!r}, not both")
    try:
        return checked(given, by_field[found[0]])
    except Mismatch as mismatch:
        raise _refused(mismatch) from None


def parse(body: bytes) -> dict[str, Any]:
    """Return a body as a JSON object; raise ApiError (400) if it is none."""
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


def _required(kind: type[Request]) -> str:
    return next(field.name for field in msgspec.structs.fields(kind) if field.required)


def _unknown(name: str, known: list[str]) -> ApiError:
    hint = did_you_mean(name, known)
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


def sampling(request: Generation, defaults: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the fields of SamplingParams for a request, over the server's `defaults`, and which
    parameter gives the answer a form, "" if none does.

    Raises ApiError and ConfigError for values that contradict each other or are out of range.
    """
    named = ((f.name, getattr(request, f.name, None)) for f in dataclasses.fields(SamplingParams))
    given = {name: value for name, value in named if value is not None and name != "logprobs"}
    if request.seed is not None:
        given["seed"] = _seed(request.seed)
    if request.logit_bias is not None:
        given["logit_bias"] = {int(token): bias for token, bias in request.logit_bias.items()}
    param, form = _form(request)
    fields = {**defaults, **given, **form}
    if isinstance(request, ChatRequest):
        fields |= _chat_length(request) | _chat_logprobs(request)
    elif isinstance(request, CompletionRequest):
        if request.echo:
            raise bad_value("echo", "echo must be false: prompts are not repeated")
        fields.setdefault("max_tokens", COMPLETION_TOKENS)
        if request.logprobs is not None:
            fields["logprobs"] = request.logprobs
    build(SamplingParams, fields)
    return fields, param


def _form(request: Generation) -> tuple[str, dict[str, Any]]:
    """Return which parameter says what the answer has to look like ("": none), and that as a field
    of SamplingParams. Raises ApiError where it is said twice.
    """
    found: list[tuple[str, str, Any]] = []
    if (response := getattr(request, "response_format", None)) and response.type != "text":
        given = response.json_schema if response.type == "json_schema" else Schema()
        if given is None:
            raise bad_value("response_format", "response_format.json_schema is missing")
        schema = {"type": "object"} if given.schema is None else given.schema
        found.append(("response_format", "schema", schema))
    if request.json_schema is not None:
        found.append(("json_schema", "schema", request.json_schema))
    if request.grammar is not None:
        found.append(("grammar", "grammar", request.grammar))
    if given := request.structured_outputs:
        names = {"json": "schema", "regex": "regex", "choice": "choices", "grammar": "grammar"}
        said = [name for name in names if getattr(given, name) is not None]
        found += [("structured_outputs", names[name], getattr(given, name)) for name in said]
    if len(found) > 1:
        name = found[1][0]
        raise bad_value(name, f"{found[0][0]} and {name} both say what an answer is; give one")
    return (found[0][0], {found[0][1]: found[0][2]}) if found else ("", {})


def _seed(seed: int) -> int:
    low, high = _SEEDS.values()
    if not low <= seed <= high:
        raise bad_value("seed", f"seed must be at least {low} and at most {high}")
    return seed % (1 << 64)


def _chat_length(request: ChatRequest) -> dict[str, Any]:
    if request.max_completion_tokens is None:
        return {}
    if request.max_tokens is not None:
        raise bad_value(
            "max_completion_tokens",
            "max_tokens and max_completion_tokens are one thing; give one",
        )
    return {"max_tokens": request.max_completion_tokens}


def _chat_logprobs(request: ChatRequest) -> dict[str, Any]:
    if request.logprobs:
        return {"logprobs": request.top_logprobs or 0}
    if request.top_logprobs:
        raise bad_value("top_logprobs", "top_logprobs needs logprobs: true beside it")
    return {}
