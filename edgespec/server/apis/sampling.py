"""Converts the fields of requests to sampling settings.

Our defaults differ from OpenAI's in two ways. Settings such as `temperature` default to the values
that the server was started with, or else to the model's own (OpenAI: 1). A chat answer without
`max_tokens` can go on until the context is full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...config import CONSTRAINTS, SamplingParams
from ...setting import settings_of
from ..errors import bad_value
from .fields import SEEDS, Generation

_NAMES = [name for name in settings_of(SamplingParams) if name != "logprobs"]
_STRUCTURED = {"json": "schema", "regex": "regex", "choice": "choices", "grammar": "grammar"}


def with_defaults(defaults: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a request names, and the server's defaults for the others.

    A form says where its answer ends, so that defaults which say it differently do not apply.
    """
    has_form = any(named.get(name) is not None for name in CONSTRAINTS)
    left_out = ("stop_token_ids", "ignore_eos", *CONSTRAINTS) if has_form else ()
    return {name: value for name, value in defaults.items() if name not in left_out} | {**named}


def given_of(request: Any) -> dict[str, Any]:
    """Return the settings of SamplingParams that a request gives in fields of the same names."""
    named = ((name, getattr(request, name, None)) for name in _NAMES)
    given = {name: value for name, value in named if value is not None}
    if "seed" in given:
        given["seed"] = _seed(given["seed"])  # -1: a random one, as in llama.cpp
    if "max_tokens" in given:
        given["max_tokens"] = length_of("max_tokens", given["max_tokens"])
    if given.get("grammar") == "":  # llama.cpp's default
        del given["grammar"]
    if "stop" in given:
        given["stop"] = stops_of(given["stop"])
    if "logit_bias" in given:
        given["logit_bias"] = {
            int(token): bias for token, bias in dict(given["logit_bias"]).items()
        }
    if "repetition_detection" in given:
        rule = msgspec.structs.asdict(given["repetition_detection"])
        given["repetition_detection"] = {k: v for k, v in rule.items() if v is not None}
    return given


def form_of(request: Generation, *others: tuple[str, str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the parameter that gives the answer a form ("" if none does), and the form
    as a field of SamplingParams. Raises ApiError if several parameters give one.

    others: more parameters that give a form, each as (parameter, field of SamplingParams, value).
    """
    forms = list(others)
    if request.json_schema is not None:
        forms.append(("json_schema", "schema", request.json_schema))
    if request.grammar:
        forms.append(("grammar", "grammar", request.grammar))
    if given := request.structured_outputs:
        said = [name for name in _STRUCTURED if getattr(given, name) not in (None, "")]
        forms += [
            (f"structured_outputs.{name}", _STRUCTURED[name], getattr(given, name)) for name in said
        ]
    if len(forms) > 1:
        name = forms[1][0]
        raise bad_value(name, f"{forms[0][0]} and {name} both say what an answer is; give one")
    closes = given.disable_additional_properties if given else None
    fields = {} if closes is None else {"additional_properties": not closes}
    return (forms[0][0], {forms[0][1]: forms[0][2], **fields}) if forms else ("", fields)


def length_of(param: str, n: int) -> int | None:
    """Return the largest number of tokens of an answer, None for -1, which is no limit, as in
    llama.cpp. Raises ApiError for 0.
    """
    if n == 0:
        raise bad_value(param, f"{param} must be at least 1, or -1 for no limit")
    return None if n < 0 else n


def stops_of(given: str | Sequence[str]) -> list[str]:
    """Return the stop strings that a request gives, without empty ones, which some clients send."""
    return [stop for stop in ([given] if isinstance(given, str) else given) if stop]


def _seed(seed: int) -> int | None:
    if seed == -1:
        return None
    low, high = SEEDS.values()
    if not low <= seed <= high:
        raise bad_value("seed", f"seed must be at least {low} and at most {high}")
    return seed % (1 << 64)
