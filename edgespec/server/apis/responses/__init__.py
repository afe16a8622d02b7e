"""OpenAI's `/v1/responses`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....chat.history import Transcript, joined
from ....chat.request import GenerationRequest
from ...base import ParsedRequest, ServedModel
from ...errors import bad_value
from ..fields import check, missing, parsed
from ..pictures import url_of
from ..sampling import given_of, length_of
from ..tools import Choice, GivenTool, Tools, given_tool
from .structs import (
    AllowedFunctions,
    FlatTool,
    FunctionCallItem,
    FunctionCallOutputItem,
    FunctionChoice,
    InputImage,
    Item,
    MessageItem,
    ReasoningItem,
    Refusal,
    ResponsesRequest,
    TextOptions,
    prepared,
)
from .writer import ResponsesWriter


def parse(body: bytes, serving: ServedModel) -> ParsedRequest:
    """Return the request in a body. Raises ApiError, and ConfigError for settings out of range."""
    values = prepared(parsed(body))
    given = check(values, ResponsesRequest)
    tools = Tools(_functions(given.tools))
    schema, renamed = _schema(given.text), dict[str, Any]()
    if schema is not None:
        renamed["schema"] = schema
    if given.max_output_tokens is not None:
        renamed["max_tokens"] = length_of("max_output_tokens", given.max_output_tokens)
    params = serving.params(given_of(given) | renamed)
    effort = given.reasoning.effort if given.reasoning else None
    options = tools.options(_choice(given), given.parallel_tool_calls, effort=effort)
    talk = _talk(given)
    return ParsedRequest(
        request=GenerationRequest(
            messages=talk.messages,
            params=params,
            options=options,
            continues=False,
            on_busy=given.on_busy or "wait",
        ),
        writer=lambda _: ResponsesWriter(given, values, serving.model),
        model=given.model,
        stream=bool(given.stream),
        form="text.format" if "schema" in renamed else "",
        messages="input",
        tools=tools.places,
        places=talk.places,
    )


def _talk(given: ResponsesRequest) -> Transcript:
    talk = Transcript()
    talk.place = "instructions"
    if given.instructions is not None:
        talk.say("system", given.instructions)
    items = given.input
    if isinstance(items, str):
        items = [MessageItem("user", items)]
    for i, item in enumerate(items):
        talk.place = f"input[{i}]"
        _add(talk, item)
    return talk


def _add(talk: Transcript, item: Item) -> None:
    if isinstance(item, MessageItem):
        role = "system" if item.role == "developer" else item.role
        if _shows(item):
            _add_parts(talk, item)
            return
        texts = _texts(item.content)
        talk.say(role, "".join(texts) if role == "assistant" else joined(texts))
    elif isinstance(item, FunctionCallItem):
        talk.call(item.call_id, item.name, item.arguments or "")
    elif isinstance(item, FunctionCallOutputItem):
        talk.result(item.call_id, _output(item.output))
    elif isinstance(item, ReasoningItem):
        talk.think("".join(part.text for part in item.content or item.summary or ()))


def _shows(item: MessageItem) -> bool:
    """Return True if a message has pictures. Raises ApiError if it is not the user's."""
    parts = item.content if isinstance(item.content, list) else ()
    shows = any(isinstance(part, InputImage) for part in parts)
    if shows and item.role != "user":
        raise bad_value("input", f"pictures belong in a message of the user, not {item.role}")
    return shows


def _add_parts(talk: Transcript, item: MessageItem) -> None:
    """Add the parts of a user's message with pictures, in their order."""
    for part in item.content or ():
        if isinstance(part, InputImage):
            talk.show(url_of(part))
        else:
            talk.say("user", "".join(_texts([part])))


def _output(content: str | list[Any] | None) -> Iterator[tuple[str, str]]:
    """Yield the texts and the pictures of a function's output, each with its kind."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, InputImage):
            yield "picture", url_of(part)
        else:
            yield "text", "".join(_texts(part if part is None or isinstance(part, str) else [part]))


def _texts(content: str | list[Any] | None) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part.refusal if isinstance(part, Refusal) else part.text for part in content or ()]


def _schema(options: TextOptions | None) -> dict[str, Any] | None:
    """Return the JSON schema of an answer, None if the answer is plain text."""
    if options is None or options.format is None or options.format.type == "text":
        return None
    told = options.format
    if told.type == "json_schema" and told.schema is None:
        raise missing("text.format.schema")
    return {"type": "object"} if told.type == "json_object" else told.schema


def _functions(tools: list[FlatTool] | None) -> list[GivenTool]:
    """Return the functions among the tools of a request."""
    functions = [(i, tool) for i, tool in enumerate(tools or ()) if tool.type == "function"]
    return [given_tool(f"tools[{i}]", tool) for i, tool in functions]


def _choice(given: ResponsesRequest) -> Choice:
    """Return the choice of tools: which may be called, and whether one has to be called."""
    choice = given.tool_choice
    if isinstance(choice, FunctionChoice):
        return Choice(choice.name, [choice.name])
    if isinstance(choice, AllowedFunctions):
        names = [tool.name or "" for tool in choice.tools if tool.type == "function"]
        return Choice(choice.mode, names, True)
    return Choice(choice)
