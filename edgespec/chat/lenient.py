"""Relaxes schemas that cannot be followed, in tools that are not strict."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..constraints.schemas import DEFINITIONS
from ..errors import ConfigError
from .argument_schemas import of_tool
from .call_forms.arguments import Arguments
from .call_forms.base import CallForm
from .options import AnswerOptions
from .tools import Tool

logger = logging.getLogger("edgespec.tools")

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

    def of(self, options: AnswerOptions, form: CallForm, owner: str = "") -> AnswerOptions:
        """Return options in which all tools can be followed; strict tools are not changed."""
        tools = tuple(self._tool(tool, form.arguments, owner) for tool in options.tools)
        return dataclasses.replace(options, tools=tools)

    def _tool(self, tool: Tool, arguments: Arguments, owner: str) -> Tool:
        if tool.strict:
            return tool
        whole = json.dumps(of_tool(tool, arguments.guidance(tool)))
        parameters = self._followed(owner, tool.name, whole, arguments)
        return tool if parameters is None else dataclasses.replace(tool, parameters=parameters)

    def _without(
        self, owner: str, name: str, whole: str, written: Arguments
    ) -> dict[str, Any] | None:
        """Return a schema of arguments that can be followed; None if the original can be followed.

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
            return None
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
        if shorter == schema:
            return None
        logger.info("tool %s: its schema is followed in part: %s", name, wrong or "not as a whole")
        return shorter


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
