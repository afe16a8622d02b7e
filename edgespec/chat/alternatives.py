"""Rewrites schemas as lists of alternatives, without references, allOf, anyOf and oneOf."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..constraints.omissions import DEFINITIONS

_MOST = 1000  # most alternatives of a schema, and most schemas that are visited to find them
_DEEPEST = 60  # levels of nested references and alternatives
_JOINED = ("$ref", "allOf", "anyOf", "oneOf")


class Alternatives:
    """Finds the alternatives of one schema.

    definitions: the schema that contains $defs.
    """

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._n = 0

    def of(self, schema: Any, depth: int = 0) -> list[dict[str, Any]]:
        """Return a list of simple schemas; a value follows `schema` if it follows one of them.

        Where schemas are combined, only the keywords of texts are merged: type, minLength,
        maxLength and enum. Of any other keyword in both, one value is left, which says only that
        the keyword is there. A const becomes an enum.

        Raises ValueError, with the reason, if `schema` is not a schema or has too many
        alternatives.
        """
        self._n += 1
        if depth > _DEEPEST:
            raise ValueError("it refers to itself")
        if self._n > _MOST:
            raise _too_many()
        if isinstance(schema, bool):
            return [{}] if schema else []
        if not isinstance(schema, Mapping):
            raise ValueError(f"a schema is a JSON object, got {schema!r:.80}")
        alternatives = [_checked(schema)]
        for choice in self._choices(schema):
            others = [each for part in choice for each in self.of(part, depth + 1)]
            if len(alternatives) * len(others) > _MOST:
                raise _too_many()
            alternatives = [_both(one, other) for one in alternatives for other in others]
        return alternatives

    def _choices(self, schema: Mapping[str, Any]) -> list[list[Any]]:
        """Return lists of schemas; a value must follow one schema of each list."""
        choices = [[self._referred(schema["$ref"])]] if "$ref" in schema else []
        for name in ("allOf", "anyOf", "oneOf"):
            parts = schema.get(name, [])
            if not isinstance(parts, list):
                raise ValueError(f"{name} is a list of schemas, got {parts!r:.80}")
            if name == "allOf":
                choices += [[part] for part in parts]
            elif name in schema:
                choices.append(parts)
        return choices

    def _referred(self, reference: Any) -> Any:
        for name in DEFINITIONS:
            known = self._definitions.get(name, {})
            key = str(reference).removeprefix(f"#/{name}/")
            if key in known:
                return known[key]
        raise ValueError(
            f"it refers to {reference!r:.80}, and only what stands in $defs can be followed"
        )


def _too_many() -> ValueError:
    return ValueError(f"it has more than {_MOST} alternatives, or is nested too often")


def _checked(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without its references and alternatives, after checking its keywords."""
    checked = {key: value for key, value in schema.items() if key not in _JOINED}
    if "const" in checked:
        checked["enum"] = [checked.pop("const")]
    if not isinstance(checked.get("enum", []), list):
        raise ValueError(f"enum is a list of values, got {checked['enum']!r:.80}")
    if "type" in checked:
        kinds = checked["type"] if isinstance(checked["type"], list) else [checked["type"]]
        if not all(isinstance(each, str) for each in kinds):
            raise ValueError(f"type is a text or a list of texts, got {checked['type']!r:.80}")
        checked["type"] = kinds
    for name in ("minLength", "maxLength"):
        value = checked.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} is a whole number that is not negative, got {value!r:.80}")
    _check_lengths(checked)
    return checked


def _check_lengths(schema: Mapping[str, Any]) -> None:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if most is not None and least > most:
        raise ValueError(f"minLength is {least} and maxLength {most}")


def _common(one: list[Any], other: list[Any]) -> list[Any]:
    known = [json.dumps(each) for each in other]
    return [each for each in one if json.dumps(each) in known]


_JOINS: dict[str, Callable[[Any, Any], Any]] = {
    "type": _common, "enum": _common, "minLength": max, "maxLength": min,
}  # fmt: skip


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return a schema for the values that follow both schemas."""
    both = one | other
    for name, join in _JOINS.items():
        if name in one and name in other:
            both[name] = join(one[name], other[name])
    _check_lengths(both)
    return both
