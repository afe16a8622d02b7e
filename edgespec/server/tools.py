"""Reads the tools and the reasoning that a chat request asks for, as the engine takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..chat import templates
from ..chat.format import AnswerFormat
from ..chat.options import AnswerOptions
from ..chat.tools import Tool
from ..config import SamplingParams
from ..engine import Engine
from ..errors import ConfigError
from .errors import bad_value
from .messages import TOO_DEEP, AllowedChoice, Function, NamedTool, ToolChoice, is_shallow
from .messages import Tool as GivenTool
from .parameters import ChatRequest, TokenizeConversation

_WORDS = ("auto", "none", "required")
_BUDGETS = ("thinking_token_budget", "reasoning_budget_tokens", "thinking_budget_tokens")


def answer_options(request: ChatRequest, form: AnswerFormat) -> AnswerOptions:
    """Return the tools that a chat offers, and what it says about reasoning.

    form: how the model writes answers. Raises ApiError with the place of what cannot be.
    """
    choice, tools = _chosen(request.tool_choice, _tools(request.tools))
    options = AnswerOptions(
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False or not tools,
        template_kwargs=_variables(request),
        reasoning_budget=_budget(request),
    )
    return _checked(options, form)


def template_options(request: TokenizeConversation, form: AnswerFormat) -> AnswerOptions:
    """Return what the chat template is told of tools, and its variables.

    form: how the model writes answers. Raises ApiError with the place of what cannot be.
    """
    variables = _given_variables(request.chat_template_kwargs)
    options = AnswerOptions(_tools(request.tools), template_kwargs=variables)
    return _checked(options, form)


def _checked(options: AnswerOptions, form: AnswerFormat) -> AnswerOptions:
    try:
        form.check(options)
    except ConfigError as error:
        raise bad_value("tools", str(error), "unsupported_parameter") from None
    return options


def _tools(given: Sequence[GivenTool] | None) -> tuple[Tool, ...]:
    """Return the functions among the tools of a request. Raises ApiError where they cannot be."""
    found: dict[str, Tool] = {}
    for place, tool in _functions(given):
        if tool.name in found:
            raise bad_value(f"{place}.name", f"two tools have the name {tool.name!r}")
        if tool.name in _WORDS:
            message = f"a tool cannot be named {tool.name!r}, a word of tool_choice; rename it"
            raise bad_value(f"{place}.name", message)
        found[tool.name] = tool
    return tuple(found.values())


def _functions(given: Sequence[GivenTool] | None) -> Iterator[tuple[str, Tool]]:
    """Yield the functions among the tools of a request, each with its place there."""
    for i, tool in enumerate(given or ()):
        if tool.type != "function":
            continue
        place = f"tools[{i}].function"
        if tool.function is None:
            raise bad_value(place, f"the field {place!r} is missing", "missing_parameter")
        yield place, _tool(place, tool.function)


def _tool(place: str, given: Function) -> Tool:
    """Return a function as a tool; without parameters it takes no arguments."""
    if given.parameters is None:
        return Tool(given.name, given.description or "")
    _check_depth(f"{place}.parameters", given.parameters)
    try:
        return Tool(given.name, given.description or "", given.parameters, bool(given.strict))
    except ConfigError as error:
        raise bad_value(f"{place}.parameters", str(error)) from None


def _chosen(given: ToolChoice | None, tools: tuple[Tool, ...]) -> tuple[str, tuple[Tool, ...]]:
    """Return whether a tool is called, or which one, and the tools that may be."""
    if isinstance(given, NamedTool):
        _check_known([given], tools)
        return given.function.name, tools
    if isinstance(given, AllowedChoice):
        allowed = given.allowed_tools
        _check_known(allowed.tools, tools)
        names = {tool.function.name for tool in allowed.tools}
        return allowed.mode, tuple(tool for tool in tools if tool.name in names)
    if given == "required" and not tools:
        raise bad_value("tool_choice", "tool_choice is required, but tools has no function")
    return given or "auto", tools


def _check_known(named: Sequence[NamedTool], tools: Sequence[Tool]) -> None:
    known = [tool.name for tool in tools]
    unknown = [tool.function.name for tool in named if tool.function.name not in known]
    if unknown:
        names = ", ".join(known) or "none"
        raise bad_value(
            "tool_choice",
            f"tool_choice names {unknown[0]!r:.80}, which is not in tools; there are: {names:.400}",
        )


def _variables(request: ChatRequest) -> dict[str, Any]:
    """Return variables for the chat template: those that were given, and the effort."""
    given = _given_variables(request.chat_template_kwargs)
    effort = request.reasoning_effort
    return given if effort in (None, "none") else {"reasoning_effort": effort} | given


def _given_variables(given: dict[str, Any] | None) -> dict[str, Any]:
    """Return the template variables of a request. Raises ApiError for those that it may not set."""
    found = given or {}
    for name in templates.RESERVED:
        if name in found:
            place = f"chat_template_kwargs.{name}"
            raise bad_value(place, f"{place} cannot be given: it is not for requests to say")
    _check_depth("chat_template_kwargs", found)
    return found


def _budget(request: ChatRequest) -> int | None:
    """Return the most tokens of reasoning, None for any number. Its names must agree."""
    given = {name: n for name in _BUDGETS if (n := getattr(request, name)) is not None}
    if len(set(given.values())) > 1:
        first, second = list(given)[:2]
        raise bad_value(second, f"{first} and {second} are one thing; give one")
    budget = next(iter(given.values()), -1)
    return 0 if request.reasoning_effort == "none" else None if budget < 0 else budget


def _check_depth(place: str, value: Any) -> None:
    if not is_shallow(value):
        raise bad_value(place, f"the values of {place} {TOO_DEEP}")


def place_of(request: ChatRequest, param: str, engine: Engine, owner: str) -> str:
    """Return which parameter of a request holds what cannot be followed.

    param: the parameter that gives the answer a form, "" if none does.
    """
    for place, tool in _functions(request.tools):
        try:
            engine.constraint(SamplingParams(), AnswerOptions((tool,), tool.name), owner=owner)
        except ConfigError:
            return f"{place}.parameters"
    return param or "tools"
