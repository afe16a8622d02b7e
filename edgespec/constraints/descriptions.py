"""Descriptions of constraints that come from another machine: the form and the limit.

The other machine may not have checked them, so everything is checked here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..config import CONSTRAINTS
from ..errors import ConfigError
from . import schemas


class Limit(NamedTuple):
    """A limit on reasoning: the most tokens it may have, and the markers before and after it.

    open: the prompt ends inside the reasoning.
    """

    budget: int
    begin: str
    end: str
    open: bool


_LIMIT_FIELDS = {
    "budget": (int, "a whole number"),
    "begin": (str, "text that is not empty"),
    "end": (str, "text that is not empty"),
    "open": (bool, "true or false"),
}


def form_of(description: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind and the text of the form in a description, as the compiler takes them.

    Raises ConfigError if the form is invalid.
    """
    kinds = [name for name in (*CONSTRAINTS, "answer") if name in description]
    if not kinds:
        raise ConfigError(f"{', '.join(description)} came without a form of answers")
    if len(kinds) > 1:
        raise ConfigError(f"{' and '.join(kinds)} were given; an answer follows one of them")
    kind, given = kinds[0], description[kinds[0]]
    if not isinstance(given, str):
        raise ConfigError(f"{kind} must be text, got {given!r:.80}")
    if kind in ("regex", "grammar"):
        return kind, json.dumps(given)
    return kind, given if kind == "answer" else _checked(kind, given)


def limit_of(description: Mapping[str, Any]) -> Limit | None:
    """Return the limit on reasoning in a description, None if it has none.

    Raises ConfigError if the limit is invalid.
    """
    settings = {name: description.get(f"reasoning_{name}") for name in Limit._fields}
    if all(value is None for value in settings.values()):
        return None
    for name, (kind, meant) in _LIMIT_FIELDS.items():
        if type(settings[name]) is not kind or settings[name] == "":
            raise ConfigError(f"reasoning_{name} must be {meant}, got {settings[name]!r:.80}")
    return Limit(**settings)  # type: ignore[arg-type]


def _checked(kind: str, given: str) -> str:
    """Return the text of a schema or of choices. Raises ConfigError if it is invalid."""
    try:
        value = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{kind} cannot be followed: it is no JSON: {error}") from None
    if kind == "schema":
        return schemas.text_of(value)
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value):
        raise ConfigError(f"choices must be a list of texts that are not empty, got {given!r:.80}")
    if not value:
        raise ConfigError("choices are empty; give one at least")
    return given
