"""Prepares the schemas of tools for grammars, and relaxes those of tools that are not strict."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..constraints import omissions
from ..constraints.omissions import DEFINITIONS
from ..constraints.schemas import closed
from ..errors import ConfigError
from .argument_schemas import of_tool
from .call_forms.arguments import Arguments
from .tools import Tool

logger = logging.getLogger("edgespec.tools")

Notes = tuple[str, ...]

_OF_PARAMETERS = {  # keywords with which a tool has parameters other than its properties
    "additionalProperties", "patternProperties", "propertyNames", "minProperties", "required",
    "$ref", "allOf", "anyOf", "oneOf", "if", "not", "dependentSchemas",
}  # fmt: skip
_KEPT = 256  # tools whose relaxed schemas are remembered


class LenientTools:
    """Relaxes argument schemas that cannot be followed, in tools that are not strict.

    An argument with such a schema may then have any value. llguidance ignores keywords that it does
    not know. It refuses keywords that it cannot follow, such as a pattern with look-ahead, and
    keywords with senseless values, such as null.

    is_wrong: returns True if a schema, given as text, cannot be followed.
    """

    def __init__(self, is_wrong: Callable[[str], bool]) -> None:
        self._is_wrong = is_wrong
        self._followed = functools.lru_cache(_KEPT)(self._without)

    def tool(
        self, tool: Tool, arguments: Arguments, owner: str = "", *, is_open: bool = True
    ) -> tuple[Tool, Notes]:
        """Return a tool with the schema that its arguments follow, and notes on what that leaves
        out. A strict tool may still have a schema that cannot be followed.

        arguments: how the model writes arguments. is_open: allow fields that the schema does not
        name, where it does not say whether they may be there; never in a tool without parameters.
        """
        given = tool.parameters
        if not tool.strict and not given.get("properties") and not {*given} & _OF_PARAMETERS:
            given = {**given, "properties": {}, "additionalProperties": False}
        elif not tool.strict and not is_open:
            given = closed(given)
        parameters, notes = omissions.followed(given)
        if parameters != tool.parameters:
            tool = dataclasses.replace(tool, parameters=parameters)
        if not tool.strict:
            whole = json.dumps(of_tool(tool, arguments.guidance(tool)))
            shorter, more = self._followed(owner, tool.name, whole, arguments)
            notes += more
            if shorter is not None:
                tool = dataclasses.replace(tool, parameters=shorter)
        return tool, tuple(f"tool {tool.name}: {note}" for note in notes)

    def _without(
        self, owner: str, name: str, whole: str, written: Arguments
    ) -> tuple[dict[str, Any] | None, Notes]:
        """Return a schema of arguments that can be followed, and notes on what it leaves out; None
        if the original can be followed.

        Each definition and each argument is tried separately. A definition is tried with {} in
        place of all definitions that it refers to. written: how the arguments are written.
        """
        schema = json.loads(whole)
        guidance = {"x-guidance": schema.pop("x-guidance")}

        def fits(part: Any, definitions: Mapping[str, Any]) -> bool:
            if not isinstance(part, Mapping):
                return isinstance(part, bool)
            return not self._is_wrong(json.dumps({**definitions, **part, **guidance}))

        def writable(part: Any, definitions: Mapping[str, Any]) -> bool:
            return fits(part, definitions) and _is_written(part, definitions, written)

        if written.is_whole and fits(schema, {}):
            return None, self._in_part(schema)
        given = {key: _parts(schema, key) for key in DEFINITIONS if _parts(schema, key)}
        known: dict[str, Any] = {key: {name: {} for name in parts} for key, parts in given.items()}
        definitions = {
            key: {name: part if fits(part, known) else {} for name, part in parts.items()}
            for key, parts in given.items()
        }
        arguments = _parts(schema, "properties")
        wrong = [name for name, part in arguments.items() if not writable(part, definitions)]
        left = arguments | {name: {} for name in wrong}
        shorter = {**schema, **definitions, **({"properties": left} if left else {})}
        if not fits(shorter, {}):
            shorter = {**definitions, "type": "object", "properties": left}
            shorter = shorter if fits(shorter, {}) else {"type": "object"}
        notes = self._in_part(shorter)
        if shorter == schema:
            return None, notes
        logger.info("tool %s: its schema is followed in part: %s", name, wrong or "not as a whole")
        places = [f"/properties/{name}" for name in wrong] or ["/"]
        return shorter, (*notes, *(f"{place} may be anything" for place in places))

    def _in_part(self, schema: dict[str, Any]) -> Notes:
        """Return a note for each argument with keywords that llguidance ignores."""
        if not self._is_wrong(json.dumps(schema)):
            return ()
        definitions = {key: schema[key] for key in DEFINITIONS if key in schema}
        unknown = [
            name
            for name, part in _parts(schema, "properties").items()
            if isinstance(part, Mapping) and self._is_wrong(json.dumps({**definitions, **part}))
        ]
        return tuple(f"/properties/{name} is followed in part" for name in unknown)


def _parts(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the schemas under a keyword by their names, or none if its value is not an object."""
    parts = schema.get(key)
    return dict(parts) if isinstance(parts, Mapping) else {}


def _is_written(part: Any, definitions: Mapping[str, Any], written: Arguments) -> bool:
    """Return True if an argument can be written when it is the only one."""
    try:
        written.check(Tool("a", "", {**definitions, "properties": {"a": part}}, strict=False))
    except ConfigError:
        return False
    return True
