"""Schemas as lists of alternatives: without references, allOf, anyOf and oneOf."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..constraints.schemas import DEFINITIONS

_MOST = 1000  # alternatives of a schema, and schemas that are looked at
_DEEPEST = 60  # references and alternatives in each other
_JOINED = ("$ref", "allOf", "anyOf", "oneOf")


class Alternatives:
    """Finds the alternatives of one schema.

    definitions: the schema that holds $defs.
    """

    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = definitions
        self._n = 0

    def of(self, schema: Any, depth: int = 0) -> list[dict[str, Any]]:
        """Return the schemas of which a value follows one. All that is joined is what texts have:
        type, enum (which const becomes), minLength and maxLength.

        Raises ValueError, with the reason, for what is no schema or has too many alternatives.
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
        found = [_checked(schema)]
        for choice in self._choices(schema):
            others = [each for part in choice for each in self.of(part, depth + 1)]
            if len(found) * len(others) > _MOST:
                raise _too_many()
            found = [_both(one, other) for one in found for other in others]
        return found

    def _choices(self, schema: Mapping[str, Any]) -> list[list[Any]]:
        """Return lists of schemas; a value follows one of each."""
        found = [[self._referred(schema["$ref"])]] if "$ref" in schema else []
        for name in ("allOf", "anyOf", "oneOf"):
            parts = schema.get(name, [])
            if not isinstance(parts, list):
                raise ValueError(f"{name} is a list of schemas, got {parts!r:.80}")
            if name == "allOf":
                found += [[part] for part in parts]
            elif name in schema:
                found.append(parts)
        return found

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
    """Return a schema by itself, without what it refers to and its alternatives."""
    found = {key: value for key, value in schema.items() if key not in _JOINED}
    if "const" in found:
        found["enum"] = [found.pop("const")]
    if not isinstance(found.get("enum", []), list):
        raise ValueError(f"enum is a list of values, got {found['enum']!r:.80}")
    if "type" in found:
        kinds = found["type"] if isinstance(found["type"], list) else [found["type"]]
        if not all(isinstance(each, str) for each in kinds):
            raise ValueError(f"type is a text or a list of texts, got {found['type']!r:.80}")
        found["type"] = kinds
    for name in ("minLength", "maxLength"):
        value = found.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{name} is a whole number that is not negative, got {value!r:.80}")
    _check_lengths(found)
    return found


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
    """Return a schema of the values that follow both."""
    found = one | other
    for name, join in _JOINS.items():
        if name in one and name in other:
            found[name] = join(one[name], other[name])
    _check_lengths(found)
    return found
