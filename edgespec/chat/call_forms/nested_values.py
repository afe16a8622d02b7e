"""Grammars of values that a model writes in a notation of its own, made from their schemas."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import argument_schemas
from ..alternatives import Alternatives
from ..tools import Tool
from .arguments import Arguments

if TYPE_CHECKING:
    from ..grammar import AnswerGrammar

KINDS = ("string", "number", "boolean", "null", "array", "object")
_MOST_COUNTED = 50  # the most characters or items that a grammar counts
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_NOTES = ("title", "description", "default", "examples", "type", "enum", "$defs", "definitions")
_FOLLOWED = {
    "string": ("minLength", "maxLength"),
    "array": ("items", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties"),
    "number": _NUMBERS,
    "integer": _NUMBERS,
}


@dataclass(frozen=True, slots=True)
class NestedArguments(Arguments):
    """Arguments whose values are written in a notation of the model's own."""

    def check(self, tool: Tool) -> None:
        """Raise ConfigError, with the place, if some arguments cannot be written."""
        check(tool)


class Notation(ABC):
    """A notation for values. All methods return grammars in Lark's form.

    grammar: the grammar that the rules become part of. prefix: what their names begin with.
    """

    def __init__(self, grammar: AnswerGrammar, prefix: str) -> None:
        self.grammar = grammar
        self.prefix = prefix
        self._n = 0
        self._known: dict[str, str] = {}  # rules by schemas

    @abstractmethod
    def anything(self) -> str:
        """Return the grammar of any value."""

    @abstractmethod
    def text(self, least: int, most: int | None) -> str:
        """Return the grammar of a text with these numbers of characters."""

    @abstractmethod
    def known(self, value: Any) -> str:
        """Return the grammar of one value."""

    def number(self, schema: Mapping[str, Any]) -> str:
        """Return the grammar of a number."""
        kept = {name: schema[name] for name in ("type", *_NUMBERS) if name in schema}
        return f"%json {json.dumps(kept)}"

    @abstractmethod
    def array(self, item: str, least: int, most: int | None) -> str:
        """Return the grammar of a list. item: the grammar of an item."""

    @abstractmethod
    def object(self, pairs: Sequence[tuple[str, str, bool]], is_open: bool) -> str:
        """Return the grammar of an object.

        pairs: keys, the grammars of their values, and True for keys that must be there. is_open:
        True if other keys may be there.
        """

    def rule(self, body: str) -> str:
        """Add a rule with a new name and return the name."""
        self._n += 1
        return self.grammar.rule(f"{self.prefix}_{self._n}", body)

    def arguments(self, tool: Tool) -> list[tuple[str, str, bool]]:
        """Return the arguments of a tool as the pairs that `object` takes."""
        return [
            (key, self.following(tool, schema), argument_schemas.is_required(tool, key))
            for key, schema in argument_schemas.properties(tool).items()
        ]

    # --- values that follow a schema -----------------------------------------------------------

    def following(self, tool: Tool, schema: Any) -> str:
        """Return the rule of the values that follow a schema of a tool.

        A schema that refers to itself becomes a rule that refers to itself.
        """
        key = json.dumps(schema, sort_keys=True)
        if key not in self._known:
            self._n += 1
            name = self._known[key] = f"{self.prefix}_{self._n}"
            rules = (
                rule
                for each in Alternatives(tool.parameters).of(schema)
                for rule in self._alternative(tool, each)
            )
            self.grammar.rule(name, " | ".join(dict.fromkeys(rules)))
        return self._known[key]

    def _alternative(self, tool: Tool, schema: Mapping[str, Any]) -> Iterator[str]:
        if "enum" in schema:
            yield from map(self.known, schema["enum"])
            return
        if not schema.keys() - {*_NOTES} and "type" not in schema:
            yield self.anything()
            return
        for kind in schema.get("type", KINDS):
            yield from self._kind(tool, kind, schema)

    def _kind(self, tool: Tool, kind: str, schema: Mapping[str, Any]) -> Iterator[str]:
        if kind == "string":
            yield self.text(*_bounds(schema, "Length"))
        elif kind == "boolean":
            yield from map(self.known, (True, False))
        elif kind == "null":
            yield self.known(None)
        elif kind in ("number", "integer"):
            yield self.number({**schema, "type": kind})
        elif kind == "array":
            item = self.following(tool, schema.get("items", {}))
            yield self.array(item, *_bounds(schema, "Items"))
        elif kind == "object":
            yield self.object(*self._members(tool, schema))

    def _members(
        self, tool: Tool, schema: Mapping[str, Any]
    ) -> tuple[list[tuple[str, str, bool]], bool]:
        properties, required = schema.get("properties", {}), schema.get("required", ())
        pairs = [
            (key, self.following(tool, each), key in required) for key, each in properties.items()
        ]
        is_open = not properties and schema.get("additionalProperties", True) is not False
        return pairs, is_open


def _bounds(schema: Mapping[str, Any], name: str) -> tuple[int, int | None]:
    """Return the least and the most, as far as a grammar counts them; None for no maximum."""
    least, most = schema.get(f"min{name}", 0), schema.get(f"max{name}")
    return min(least, _MOST_COUNTED), None if most is None or most > _MOST_COUNTED else most


def check(tool: Tool) -> None:
    """Raise ConfigError, with the place, if a tool's arguments cannot be followed in a notation."""
    argument_schemas.check_shape(tool)
    for key, schema in argument_schemas.properties(tool).items():
        try:
            wrong = _wrong(tool, schema, set())
        except (ValueError, TypeError, AttributeError) as error:
            raise argument_schemas.refused(tool, str(error), f"/properties/{key}") from None
        if wrong and tool.strict:
            why = f"{wrong} cannot be followed in the form in which this model writes arguments"
            raise argument_schemas.refused(tool, why, f"/properties/{key}", is_broken=False)


def _wrong(tool: Tool, schema: Any, seen: set[str]) -> str:
    """Return what a grammar cannot follow in a schema, or ""."""
    key = json.dumps(schema, sort_keys=True)
    alternatives = [] if key in seen else Alternatives(tool.parameters).of(schema)
    if key not in seen and not alternatives:
        raise ValueError("it allows no value")
    seen.add(key)
    wrong = (_wrong_in(tool, each, seen) for each in alternatives if "enum" not in each)
    return next(filter(None, wrong), "")


def _wrong_in(tool: Tool, schema: Mapping[str, Any], seen: set[str]) -> str:
    kinds = schema.get("type", KINDS)
    followed = {*_NOTES, *(name for kind in kinds for name in _FOLLOWED.get(kind, ()))}
    for name in ("minLength", "maxLength", "minItems", "maxItems"):
        if schema.get(name, 0) > _MOST_COUNTED:
            return f"{name} above {_MOST_COUNTED}"
    properties = schema.get("properties", {})
    if properties and schema.get("additionalProperties", False) is not False:
        return "additionalProperties next to properties"
    inner = [*properties.values(), *([schema["items"]] if "items" in schema else [])]
    wrong = (_wrong(tool, part, seen) for part in inner)
    return next(iter([*sorted(schema.keys() - followed), *filter(None, wrong), ""]))


def separated(notation: Notation, pairs: Sequence[tuple[str, bool]], between: str = "") -> str:
    """Return the grammar of pairs in their order, with a text between two of them.

    pairs: the grammar of each pair, and True if it must be there. The result is made from the last
    pair to the first; "" if there are no pairs.
    """
    first = more = ""
    separator = notation.grammar.text(between)
    for pair, is_required in reversed(pairs):
        if is_required:
            first = notation.rule(f"{pair} {more}")
            more = notation.rule(f"{separator} {pair} {more}")
        else:
            first = notation.rule(f"{pair} {more} | {first}" if first else f"({pair} {more})?")
            more = notation.rule(f"({separator} {pair})? {more}")
    return first
