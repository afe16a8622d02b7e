"""OpenAI's `/v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from ....chat.request import GenerationRequest
from ...base import ParsedRequest, ServedModel
from ...errors import bad_value
from ..fields import check, missing, parsed
from ..openai_writer import envelope_of
from ..sampling import form_of, given_of, length_of
from ..tools import Choice, GivenTool, Tools, given_tool
from .foreign import regular
from .structs import (
    AllowedChoice,
    ChatRequest,
    NamedTool,
    Tool,
    messages_of,
    text_of,
)
from .writer import ChatWriter

_BUDGETS = ("thinking_token_budget", "reasoning_budget_tokens", "thinking_budget_tokens")


def parse(body: bytes, serving: ServedModel) -> ParsedRequest:
    """Return the request in a body. Raises ApiError, and ConfigError for settings out of range."""
    given = check(regular(parsed(body)), ChatRequest)
    fields = given_of(given)
    param, form = form_of(given, *_response_format(given))
    params = serving.params({**fields, **form, **_length(given, fields), **_logprobs(given)})
    tools = Tools(given_tools(given.tools))
    options = tools.options(
        _choice(given),
        given.parallel_tool_calls,
        variables=given.chat_template_kwargs,
        effort=given.reasoning_effort,
        budget=_budget(given),
    )
    envelope = envelope_of(given, serving, logprobs=params.logprobs is not None)
    return ParsedRequest(
        request=GenerationRequest(
            messages=messages_of(given.messages),
            params=params,
            options=options,
            prediction=text_of(given.prediction.content) if given.prediction else "",
            parse_special=bool(given.parse_special),
            continues=given.continue_final_message,
            n=given.n or 1,
            on_busy=given.on_busy or "wait",
        ),
        writer=lambda prepared: ChatWriter(
            envelope, [*map(len, prepared.prompts)], has_parts=bool(prepared.readers)
        ),
        model=given.model,
        stream=bool(given.stream),
        form=param,
        tools=tools.places,
    )


def given_tools(tools: list[Tool] | None) -> list[GivenTool]:
    """Return the functions among a request's tools. Raises ApiError if a definition is missing."""
    given = []
    for i, tool in enumerate(tools or ()):
        if tool.type != "function":
            continue
        place = f"tools[{i}].function"
        if tool.function is None:
            raise missing(place)
        given.append(given_tool(place, tool.function))
    return given


def _choice(request: ChatRequest) -> Choice:
    """Return the choice of tools: which may be called, and whether one has to be called."""
    given = request.tool_choice
    if isinstance(given, NamedTool):
        return Choice(given.function.name, [given.function.name])
    if isinstance(given, AllowedChoice):
        allowed = given.allowed_tools
        return Choice(allowed.mode, [tool.function.name for tool in allowed.tools], True)
    return Choice(given)


def _budget(request: ChatRequest) -> int | None:
    """Return the most tokens of reasoning, None for no limit. Raises ApiError if the fields that
    set it disagree.
    """
    given = {name: n for name in _BUDGETS if (n := getattr(request, name)) is not None}
    if len(set(given.values())) > 1:
        first, second = list(given)[:2]
        raise bad_value(second, f"{first} and {second} are one thing; give one")
    return next(iter(given.values()), None)


def _response_format(request: ChatRequest) -> list[tuple[str, str, Any]]:
    """Return the form that response_format gives, for `form_of`; an empty list if it gives none."""
    form = request.response_format
    if form is None or form.type == "text":
        return []
    given = form.schema
    if form.type == "json_schema":
        if form.json_schema is None and given is None:
            raise bad_value("response_format", "response_format.json_schema is missing")
        given = form.json_schema.schema if form.json_schema else given
    return [("response_format", "schema", {"type": "object"} if given is None else given)]


def _length(request: ChatRequest, fields: dict[str, Any]) -> dict[str, Any]:
    if request.max_completion_tokens is None:
        return {}
    if "max_tokens" in fields:
        raise bad_value(
            "max_completion_tokens",
            "max_tokens and max_completion_tokens are one thing; give one",
        )
    name = "max_completion_tokens"
    return {"max_tokens": length_of(name, request.max_completion_tokens)}


def _logprobs(request: ChatRequest) -> dict[str, Any]:
    if request.logprobs:
        return {"logprobs": request.top_logprobs or 0}
    if request.top_logprobs:
        raise bad_value("top_logprobs", "top_logprobs needs logprobs: true beside it")
    return {}
