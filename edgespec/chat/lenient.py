"""Tools that are not strict, without what cannot be followed in their schemas."""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..constraints import schemas
from ..errors import ConfigError

if TYPE_CHECKING:
    from .markers import PairMarkers, ToolMarkers
    from .options import AnswerOptions
    from .tools import Tool

_KEPT = 256  # tools of which is known what can be followed
_MOST_TRIALS = 5000  # of parts, for all tools of a request: each took about 0.5 ms


class LenientTools:
    """Leaves out of tools' schemas what cannot be followed, where they are not strict.

    llguidance ignores keywords that it does not know, but refuses those that it cannot follow, such
    as a pattern with look-ahead, and values that are none, such as null.

    is_wrong: says whether a schema, given as text, cannot be followed.
    """

    def __init__(self, is_wrong: Callable[[str], bool]) -> None:
        self._is_wrong = is_wrong
        self._trials = _Trials()
        self._followed = functools.lru_cache(_KEPT)(self._without)

    def of(self, options: AnswerOptions, markers: ToolMarkers, owner: str = "") -> AnswerOptions:
        """Return options whose tools can be followed, but for strict ones.

        After many trials the arguments of further tools may be any object.
        """
        self._trials.n = 0
        tools = tuple(self._tool(tool, markers, owner) for tool in options.tools)
        return dataclasses.replace(options, tools=tools)

    def _tool(self, tool: Tool, markers: ToolMarkers, owner: str) -> Tool:
        from .argument_schemas import arguments_schema

        if tool.strict:
            return tool
        whole = json.dumps(arguments_schema(tool, markers))
        try:
            found = self._followed(owner, whole, markers.pairs)
        except _TooManyTrials:
            found = {"type": "object"}
        return tool if found is None else dataclasses.replace(tool, parameters=found)

    def _without(self, owner: str, whole: str, pairs: PairMarkers | None) -> dict[str, Any] | None:
        """Return what can be followed of the schema of arguments, None for all of it.

        pairs: how arguments are written one by one, each of which is followed by itself then.
        """
        schema = json.loads(whole)
        guidance = {"x-guidance": schema.pop("x-guidance")}

        def is_wrong(part: Mapping[str, Any]) -> bool:
            self._trials.n += 1
            if self._trials.n > _MOST_TRIALS:
                raise _TooManyTrials
            return self._is_wrong(json.dumps({**part, **guidance}))

        found = schemas.followed(schema, is_wrong)
        if pairs:
            found = _each_by_itself(
                found, lambda part: is_wrong(part) or not _is_written(part, pairs)
            )
        return None if found == schema else found


def _each_by_itself(
    schema: Mapping[str, Any], is_wrong: Callable[[Mapping[str, Any]], bool]
) -> dict[str, Any]:
    """Return a schema of arguments in which each argument can be followed by itself."""
    definitions = {key: schema[key] for key in schemas.DEFINITIONS if key in schema}

    def alone(argument: Any) -> Any:
        if not isinstance(argument, Mapping):
            return argument
        found = schemas.followed({**definitions, **argument}, is_wrong)
        return {key: value for key, value in found.items() if key not in definitions}

    arguments = schema.get("properties")
    if not isinstance(arguments, Mapping):
        return dict(schema)
    return {**schema, "properties": {name: alone(each) for name, each in arguments.items()}}


def _is_written(argument: Mapping[str, Any], pairs: PairMarkers) -> bool:
    """Return True for an argument, with its definitions, that can be written alone."""
    from .argument_schemas import check
    from .tools import Tool

    definitions = {key: argument[key] for key in schemas.DEFINITIONS if key in argument}
    alone = {key: value for key, value in argument.items() if key not in definitions}
    try:
        check(Tool("a", "", {**definitions, "properties": {"a": alone}}, strict=False), pairs)
    except ConfigError:
        return False
    return True


class _Trials(threading.local):
    """The number of parts of schemas that a thread has tried for its request."""

    n = 0


class _TooManyTrials(Exception):
    """More parts of schemas were tried than a request may have tried."""
