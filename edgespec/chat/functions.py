"""Tools that a program offers to a model; some of them are Python functions that can be run."""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from ..errors import ConfigError
from ..types import ToolCall
from .messages import result_of
from .pictures import Content
from .tools import Tool, tool_of


class Functions:
    """A list of tools, with the Python functions of those tools that can be run.

    tools: functions with type hints, `Tool` objects, or mappings in the form of OpenAI's API.
    before: an earlier `Functions`; a `Tool` that is also in it keeps its function. Raises
    ConfigError for any other tool.
    """

    def __init__(self, tools: Iterable[Any], before: Functions | None = None) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        self.tools = tuple(self._tool(given, before) for given in tools)

    def _tool(self, given: Any, before: Functions | None) -> Tool:
        if isinstance(given, Tool):
            if before and given in before.tools and given.name in before._functions:
                self._functions[given.name] = before._functions[given.name]
            return given
        if isinstance(given, Mapping):
            return _tool_of_mapping(given)
        if not callable(given):
            raise ConfigError(
                "a tool is a function, a Tool or a mapping as OpenAI's API has it, got "
                f"{given!r:.80}"
            )
        tool = tool_of(given)
        self._functions[tool.name] = given
        return tool

    def arguments(self, call: ToolCall) -> dict[str, Any]:
        """Return the arguments of a call, converted to the types that its function names.

        Raises ConfigError if there is no such function or the arguments do not fit it. The message
        is what the model should be told.
        """
        function = self._functions.get(call.name)
        if function is None:
            names = ", ".join(self._functions) or "none"
            raise ConfigError(f"there is no function {call.name!r:.80}; there are: {names}")
        try:
            return _fitted(function, json.loads(call.arguments))
        except (ValueError, RecursionError, msgspec.ValidationError) as error:
            raise ConfigError(f"the arguments of {call.name} do not fit: {error}") from None

    def run(self, call: ToolCall, allow: Callable[[ToolCall], bool] | None = None) -> Content:
        """Run the function of a call and return its result, or the text of an error. A result is
        text, or a list of parts if it has pictures.

        allow: called before a function is run, and only about calls that can be run; if it returns
        False, the function is not run.
        """
        try:
            arguments = self.arguments(call)
        except ConfigError as error:
            return str(error)
        if allow is not None and not allow(call):
            return f"{call.name} was not run: it was not allowed"
        try:
            return result_of(self._functions[call.name](**arguments))
        except Exception as error:  # the model reads the error and may correct its call
            return f"{call.name} failed: {type(error).__name__}: {error}"


def _fitted(function: Callable[..., Any], given: Any) -> dict[str, Any]:
    """Return arguments converted to the types in a function's hints. Raises ValidationError."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields = [
        (name, hints[name]) if p.default is p.empty else (name, hints[name], None)
        for name, p in inspect.signature(function).parameters.items()
    ]
    kind = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True)
    arguments = msgspec.convert(given, kind, str_keys=True, dec_hook=_of_pydantic)
    return {name: getattr(arguments, name) for name in given}  # the function has its own defaults


def _of_pydantic(kind: Any, value: Any) -> Any:
    """Return a value converted to a type that msgspec does not know: a pydantic model."""
    return kind.model_validate(value)  # pydantic's errors are ValueErrors


def _tool_of_mapping(given: Mapping[str, Any]) -> Tool:
    """Return the tool in {"type": "function", "function": {…}}, or in the inner mapping alone."""
    inner = given.get("function", given)
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise ConfigError(
            'a tool as a mapping is {"type": "function", "function": {"name": …, "description": …, '
            f'"parameters": JSON schema}}}}, got {dict(given)!r:.120}'
        )
    known = ("name", "description", "parameters", "strict")
    return Tool(**{key: inner[key] for key in known if inner.get(key) is not None})
