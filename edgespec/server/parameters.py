"""What a request may say: one table for checks, for the OpenAPI description and for the engine.

Null is the same as not there. What is not in the table is refused by name.

Where the engine's defaults and OpenAI's differ: `temperature` is 0 unless the server was started
with another one (OpenAI: 1), because greedy text is what the runtime gives everywhere else;
`max_tokens` of completions is 16, as at OpenAI, because base models rarely end by themselves and
would keep everybody else waiting. A chat answer without `max_tokens` ends with the context.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config import SamplingParams, build
from . import schema
from .errors import bad_value
from .schema import Schema

COMPLETION_TOKENS = 16
_INT32 = (1 << 31) - 1
_TOP = 20


@dataclass(frozen=True, slots=True)
class Parameter:
    """One field of a request. field: of SamplingParams, where the value goes there as it is."""

    schema: Schema
    field: str = ""


def _number(what: str, field: str, **bounds: float) -> Parameter:
    return Parameter({"type": "number", "description": what} | bounds, field)


def _integer(what: str, field: str = "", **bounds: Any) -> Parameter:
    return Parameter({"type": "integer", "description": what} | bounds, field)


def _boolean(what: str, field: str = "", **more: Any) -> Parameter:
    return Parameter({"type": "boolean", "description": what} | more, field)


def _ignored(kind: str) -> Parameter:
    return Parameter({"type": kind, "description": "Accepted and ignored: it changes no text here"})


def _only(reason: str, **allowed: Any) -> Parameter:
    """Something that is not supported, as far as it means what happens anyway."""
    what = f"Not supported beyond this: {reason}"
    return Parameter(allowed | {"description": what, "x-reason": reason})


_NO_TOOLS = "this server calls no tools"
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": _INT32}}

_SAMPLING: dict[str, Parameter] = {
    "temperature": _number("0 takes the likeliest token", "temperature", minimum=0, maximum=100),
    "top_p": _number("Keep the likeliest tokens that hold this probability", "top_p",
                     exclusiveMinimum=0, maximum=1),
    "top_k": _integer("Keep the K likeliest tokens, 0 for all", "top_k",
                      minimum=0, maximum=_INT32),
    "min_p": _number("Drop tokens below this share of the likeliest one's", "min_p",
                     minimum=0, maximum=1),
    "presence_penalty": _number("Subtracted from the logits of tokens already emitted",
                                "presence_penalty", minimum=-100, maximum=100),
    "frequency_penalty": _number("The same, for each time it was emitted", "frequency_penalty",
                                 minimum=-100, maximum=100),
    "repetition_penalty": _number("Divides the logits of tokens seen before, 1 is off",
                                  "repetition_penalty", minimum=0.01, maximum=100),
    "logit_bias": Parameter({
        "type": "object", "description": "Token ids, and what is added to their logits",
        "propertyNames": {"pattern": "[0-9]{1,10}", "title": "its keys are token ids"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    }),
    "seed": _integer("The same seed gives the same text, with and without speculation",
                     minimum=-(1 << 63), maximum=(1 << 64) - 1),
    "stop": Parameter({
        "description": "Texts that end the answer and are not part of it",
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "title": "of texts", "maxItems": 16,
             "items": {"type": "string", "minLength": 1}},
        ],
    }),
    "stop_token_ids": Parameter(
        _TOKENS | {"maxItems": 64, "description": "Tokens that end the answer"}, "stop_token_ids"
    ),
    "ignore_eos": _boolean("Go on where the model would end", "ignore_eos"),
    "time_limit_s": _number("Answer with what is there after so many seconds in the engine",
                            "time_limit_s", minimum=0, maximum=86400),
    "disable_spec_decode": _boolean("Decode this request plainly", "disable_spec_decode"),
    "num_draft_tokens": _integer("Most tokens drafted in a step, 0 for none", "num_draft_tokens",
                                 minimum=0, maximum=1024),
}  # fmt: skip

_COMMON: dict[str, Parameter] = {
    "model": Parameter({"type": "string", "description": "Its name as in /v1/models"}),
    "stream": _boolean("Server-sent events, a token at a time"),
    "stream_options": Parameter({
        "type": "object",
        "properties": {
            "include_usage": {"type": "boolean"}, "include_obfuscation": {"type": "boolean"},
        },
        "additionalProperties": False,
        "description": "include_usage: a last chunk with the usage",
    }),
    "max_tokens": _integer("Most tokens of the answer", minimum=1, maximum=_INT32),
    **_SAMPLING,
    "return_tokens_as_token_ids": _boolean("Log-probabilities name tokens as token_id:…"),
    "n": _only("one answer a request", type="integer", enum=[1]),
    "user": _ignored("string"),
    "metadata": _ignored("object"),
    "store": _ignored("boolean"),
    "service_tier": _ignored("string"),
    "safety_identifier": _ignored("string"),
    "prompt_cache_key": _ignored("string"),
    "prompt_cache_retention": _ignored("string"),
}  # fmt: skip

_PARTS = {
    "type": "array", "title": "of text parts", "minItems": 1, "maxItems": 1024,
    "items": {
        "type": "object", "required": ["type", "text"], "additionalProperties": False,
        "properties": {"type": {"type": "string", "enum": ["text"]}, "text": {"type": "string"}},
    },
}  # fmt: skip
_MESSAGE = {
    "type": "object", "required": ["role", "content"], "additionalProperties": False,
    "properties": {
        "role": {"type": "string", "enum": ["system", "developer", "user", "assistant"]},
        "content": {"anyOf": [{"type": "string"}, _PARTS]},
        "name": {"type": "string"},
        "refusal": {"type": "string"},
        "annotations": {"type": "array", "maxItems": 0},
        "tool_calls": {"type": "array", "maxItems": 0, "x-reason": _NO_TOOLS},
    },
}  # fmt: skip

CHAT: dict[str, Parameter] = {
    "messages": Parameter({
        "type": "array", "minItems": 1, "maxItems": 4096, "items": _MESSAGE,
        "description": "The conversation, rendered with the model's own template",
    }),
    **_COMMON,
    "max_completion_tokens": _integer("Newer name of max_tokens", minimum=1, maximum=_INT32),
    "logprobs": _boolean("Log-probability of each token under the unmodified logits"),
    "top_logprobs": _integer("Likeliest tokens to name beside it", minimum=0, maximum=_TOP),
    "response_format": _only(
        "answers are plain text", type="object", required=["type"], additionalProperties=False,
        properties={"type": {"type": "string", "enum": ["text"],
                             "x-reason": "answers are plain text"}},
    ),
    "modalities": _only("answers are plain text", type="array", maxItems=1,
                        items={"type": "string", "enum": ["text"]}),
    "tools": _only(_NO_TOOLS, type="array", maxItems=0),
    "functions": _only(_NO_TOOLS, type="array", maxItems=0),
    "tool_choice": _only(_NO_TOOLS, type="string", enum=["none"]),
    "function_call": _only(_NO_TOOLS, type="string", enum=["none"]),
    "parallel_tool_calls": _ignored("boolean"),
    "audio": _only("answers are plain text", type="null"),
    "prediction": _only("drafts are the server's own", type="null"),
    "reasoning_effort": _only("the model decides", type="null"),
    "verbosity": _only("the model decides", type="null"),
    "web_search_options": _only("nothing is searched", type="null"),
    "moderation": _only("nothing is moderated", type="null"),
}  # fmt: skip

COMPLETIONS: dict[str, Parameter] = {
    "prompt": Parameter({
        "description": "Text or token ids; of several prompts each gets a choice, in this order",
        "anyOf": [
            {"type": "string"},
            {"type": "array", "title": "of token ids, of texts, or of lists of token ids",
             "minItems": 1, "items": {"anyOf": [
                 {"type": "integer", "minimum": 0, "maximum": _INT32}, {"type": "string"},
                 _TOKENS | {"minItems": 1, "title": "of token ids"},
             ]}},
        ],
    }),
    **_COMMON,
    "logprobs": _integer("Log-probabilities, and so many of the likeliest tokens beside each",
                         minimum=0, maximum=_TOP),
    "best_of": _only("one answer a request", type="integer", enum=[1]),
    "echo": _only("prompts are not repeated", type="boolean", enum=[False]),
    "suffix": _only("text is only continued", type="null"),
}  # fmt: skip

TOKENIZE: dict[str, Parameter] = {
    "model": _COMMON["model"],
    "prompt": Parameter({"type": "string", "description": "A text"}),
    "messages": Parameter({**CHAT["messages"].schema, "description": "Or a conversation"}),
    "add_special_tokens": _boolean("Begin a text as the model wants it begun (default: true)"),
    "add_generation_prompt": _boolean("End a conversation with the opening of the assistant's "
                                      "turn (default: true)"),
    "content": _ignored("string"),  # llama-server's names, from clients that send both
    "add_special": _ignored("boolean"),
    "parse_special": _ignored("boolean"),
}  # fmt: skip
DETOKENIZE: dict[str, Parameter] = {
    "model": _COMMON["model"],
    "tokens": Parameter(_TOKENS | {"description": "Token ids"}),
}


def read(body: bytes, table: Mapping[str, Parameter], *required: str) -> dict[str, Any]:
    """The fields that a request names, exactly one of `required` among them. Raises ApiError
    naming the first that is wrong.
    """
    given = {name: v for name, v in schema.parse(body).items() if v is not None}
    for name, value in given.items():
        if name not in table:
            raise _unknown(name, table)
        _check(name, value, table[name].schema)
    found = [name for name in required if name in given]
    if not found:
        names = " or ".join(map(repr, required))
        raise bad_value(required[0], f"the field {names} is missing", "missing_parameter")
    if len(found) > 1:
        raise bad_value(found[1], f"give {found[0]!r} or {found[1]!r}, not both")
    return given


def _check(name: str, value: Any, described: Schema) -> None:
    if described.get("type") == "null":
        raise bad_value(
            name, f"{name} is not supported: {described['x-reason']}", "unsupported_parameter"
        )
    schema.check(value, described, name)


def _unknown(name: str, table: Mapping[str, Parameter]) -> Exception:
    near = difflib.get_close_matches(name, table, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "/openapi.json lists those known"
    return bad_value(name[:80], f"unknown parameter {name[:80]!r}; {hint}", "unknown_parameter")


def sampling(
    given: Mapping[str, Any], table: Mapping[str, Parameter], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields of SamplingParams for a request. Raises ApiError and ConfigError."""
    fields = dict(defaults) | {
        table[name].field: value for name, value in given.items() if table[name].field
    }
    if "seed" in given:
        fields["seed"] = given["seed"] % (1 << 64)
    if "stop" in given:
        fields["stop"] = given["stop"]
    if "logit_bias" in given:
        fields["logit_bias"] = {int(k): float(v) for k, v in given["logit_bias"].items()}
    fields |= _length(given, table, fields) | _logprobs(given)
    build(SamplingParams, fields)
    return fields


def _length(
    given: Mapping[str, Any], table: Mapping[str, Parameter], fields: Mapping[str, Any]
) -> dict[str, Any]:
    names = [name for name in ("max_completion_tokens", "max_tokens") if name in given]
    if len(names) == 2:
        raise bad_value(names[0], "max_tokens and max_completion_tokens are one thing; give one")
    if names:
        return {"max_tokens": given[names[0]]}
    if table is COMPLETIONS and "max_tokens" not in fields:
        return {"max_tokens": COMPLETION_TOKENS}
    return {}


def _logprobs(given: Mapping[str, Any]) -> dict[str, Any]:
    """Chats switch them on and then count; completions count at once."""
    wanted = given.get("logprobs")
    if wanted is True:
        return {"logprobs": given.get("top_logprobs", 0)}
    if given.get("top_logprobs"):
        raise bad_value("top_logprobs", "top_logprobs needs logprobs: true beside it")
    return {} if wanted is None or wanted is False else {"logprobs": wanted}
