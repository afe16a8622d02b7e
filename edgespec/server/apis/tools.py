"""Converts the tools and the reasoning options of requests to what the engine takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...chat import templates
from ...chat.options import AnswerOptions
from ...chat.tools import Tool
from ...errors import ConfigError
from ..errors import bad_value
from .fields import TOO_DEEP, is_shallow, missing

_WORDS = ("auto", "none", "required")


class GivenTool(NamedTuple):
    """A function among the tools of a request. Without parameters it takes no arguments.

    place, parameters_place: the places of the function and of its schema in the body.
    """

    place: str
    parameters_place: str
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def given_tool(place: str, tool: Any, parameters: str = "parameters") -> GivenTool:
    """Return the function at a place of a body. parameters: the field that holds its schema.

    Raises ApiError if the function has no name.
    """
    if tool.name is None:
        raise missing(f"{place}.name")
    schema = getattr(tool, parameters)
    parameters_place = f"{place}.{parameters}"
    return GivenTool(place, parameters_place, tool.name, tool.description, schema, tool.strict)


class Choice(NamedTuple):
    """A request's choice of tools.

    word: auto, none, required or the name of a tool; None means auto. named: the tools that the
    request names. are_all: True if only the named tools may be called.
    """

    word: str | None = None
    named: Sequence[str] = ()
    are_all: bool = False


class Tools:
    """The tools of a request. Raises ApiError for a tool that is not valid.

    places: the place of each tool's parameters in the body, by the name of the tool.
    """

    def __init__(self, given: Sequence[GivenTool]) -> None:
        self._tools: dict[str, Tool] = {}
        self.places: dict[str, str] = {}
        for tool in given:
            self._add(tool)

    def options(
        self,
        choice: Choice | None = None,
        parallel: bool | None = None,
        *,
        variables: Mapping[str, Any] | None = None,
        effort: str | None = None,
        budget: int | None = None,
    ) -> AnswerOptions:
        """Return the options for the tools that an answer may call and for its reasoning.

        variables: variables of the chat template. effort: the effort of reasoning, as a word.
        budget: the most tokens of reasoning, negative for no limit. Raises ApiError with the name
        of the wrong field.
        """
        word, tools = self._chosen(choice or Choice())
        told = variables_of(variables)
        if effort not in (None, "none"):
            told = {"reasoning_effort": effort} | told
        limit = None if budget is None or budget < 0 else budget
        return AnswerOptions(
            tools=tools,
            tool_choice=word,
            parallel_tool_calls=parallel is not False or not tools,
            template_kwargs=told,
            reasoning_budget=0 if effort == "none" else limit,
        )

    def _add(self, given: GivenTool) -> None:
        if given.name in self._tools:
            raise bad_value(f"{given.place}.name", f"two tools have the name {given.name!r}")
        if given.name in _WORDS:
            message = f"a tool cannot be named {given.name!r}, a word of tool_choice; rename it"
            raise bad_value(f"{given.place}.name", message)
        self._tools[given.name] = _tool(given)
        self.places[given.name] = given.parameters_place

    def _chosen(self, choice: Choice) -> tuple[str, tuple[Tool, ...]]:
        """Return the word of a choice, and the tools that may be called."""
        unknown = [name for name in choice.named if name not in self._tools]
        if unknown:
            names = ", ".join(self._tools) or "none"
            raise bad_value(
                "tool_choice",
                f"tool_choice names {unknown[0]!r:.80}, which is not in tools; there are: "
                f"{names:.400}",
            )
        tools = tuple(self._tools.values())
        if choice.are_all:
            tools = tuple(tool for tool in tools if tool.name in choice.named)
        if choice.word == "required" and not tools:
            message = "tool_choice is required, but tools has no function"
            raise bad_value("tool_choice", message)
        return choice.word or "auto", tools


def variables_of(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a request's template variables. Raises ApiError for variables that it may not set."""
    variables = dict(given or {})
    for name in templates.RESERVED:
        if name in variables:
            place = f"chat_template_kwargs.{name}"
            raise bad_value(place, f"{place} cannot be given: it is not for requests to say")
    check_depth("chat_template_kwargs", variables)
    return variables


def check_depth(place: str, value: Any) -> None:
    """Raise ApiError for a value whose lists and objects are nested too deeply."""
    if not is_shallow(value):
        raise bad_value(place, f"the values of {place} {TOO_DEEP}")


def _tool(given: GivenTool) -> Tool:
    if given.parameters is None:
        return Tool(given.name, given.description or "")
    check_depth(given.parameters_place, given.parameters)
    try:
        return Tool(given.name, given.description or "", given.parameters, bool(given.strict))
    except ConfigError as error:
        raise bad_value(given.parameters_place, str(error)) from None
