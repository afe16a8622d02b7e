"""Turns requests into what the engine takes: settings, and the form of the answer.

Where the engine's defaults and OpenAI's differ: `temperature` and its like are those that the
server was started with or else the model's own (OpenAI: 1), which the engine knows; `max_tokens` of
completions is 16, as at OpenAI, because base models rarely end by themselves and
would keep everybody else waiting. A chat answer without `max_tokens` ends with the context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..config import SamplingParams, build
from .errors import bad_value
from .parameters import (
    SEEDS,
    ChatRequest,
    CompletionRequest,
    Generation,
    Schema,
    given_fields,
)

COMPLETION_TOKENS = 16


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
    if request.repetition_detection is not None:
        given["repetition_detection"] = given_fields(request.repetition_detection)
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
        found += [
            (f"structured_outputs.{name}", names[name], getattr(given, name)) for name in said
        ]
    if len(found) > 1:
        name = found[1][0]
        raise bad_value(name, f"{found[0][0]} and {name} both say what an answer is; give one")
    return (found[0][0], {found[0][1]: found[0][2]}) if found else ("", {})


def _seed(seed: int) -> int:
    low, high = SEEDS.values()
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
