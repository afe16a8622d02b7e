"""Conversations and tools in requests: msgspec Structs, and what templates are given of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from .errors import bad_value


def about(description: str) -> Meta:
    """Return the description of a field."""
    return Meta(description=description)


def only(reason: str, **schema: Any) -> Meta:
    """Describe a field that is accepted only where it asks for what happens anyway."""
    return Meta(
        description=f"Not supported beyond this: {reason}",
        extra={"reason": reason},
        extra_json_schema=schema,
    )


def ignored(senders: str) -> Meta:
    """Describe a field that some clients send to every server."""
    return Meta(description=f"Accepted and ignored, for {senders}: it changes no text here")


IGNORED = about("Accepted and ignored: it changes no text here")
TEXT_ONLY = only("messages are plain text")
Empty = Annotated[list[Any], Meta(max_length=0)]
DEEPEST = 64
TOO_DEEP = f"are nested more than {DEEPEST} levels deep; flatten them"


class TextPart(Struct, frozen=True):
    """A piece of a message's content."""

    type: Annotated[Literal["text"], TEXT_ONLY]
    text: str


Content = str | Annotated[list[TextPart], Meta(min_length=1, max_length=1024)]


class CalledFunction(Struct, frozen=True):
    """The function that a call names, and its arguments as the model wrote them."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: Annotated[str | None, about("JSON, as a text; default: no arguments")] = None


class Call(Struct, frozen=True):
    """A call of a tool in a message of the assistant."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = None


class Message(Struct, frozen=True, kw_only=True, tag_field="role"):
    """The fields of messages of every role. Others are ignored: clients send answers back with
    everything that they hold.
    """

    name: str | None = None


class SystemMessage(Message, frozen=True, kw_only=True, tag="system"):
    """Instructions to the model."""

    content: Content


class DeveloperMessage(SystemMessage, frozen=True, kw_only=True, tag="developer"):
    """Instructions to the model, under OpenAI's newer name."""


class UserMessage(Message, frozen=True, kw_only=True, tag="user"):
    """Words of a user."""

    content: Content


class AssistantMessage(Message, frozen=True, kw_only=True, tag="assistant"):
    """Words of the model, and the tools that it called."""

    content: Content | None = None
    reasoning_content: str | None = None
    reasoning: Annotated[str | None, about("Another name of reasoning_content")] = None
    tool_calls: Annotated[list[Call], Meta(max_length=1024)] | None = None
    refusal: str | None = None
    audio: Annotated[None, TEXT_ONLY] = None
    function_call: Annotated[None, only("tool_calls holds calls")] = None


class ToolMessage(Message, frozen=True, kw_only=True, tag="tool"):
    """The result of a call."""

    content: Content | None = None
    tool_call_id: str


Messages = Annotated[
    list[SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage],
    Meta(
        min_length=1,
        max_length=4096,
        description="The conversation, rendered with the model's own template",
    ),
]
Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.:/-]{1,128}$")]


class Function(Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: Name
    description: str | None = None
    parameters: Annotated[
        dict[str, Any] | None, about("A JSON schema of its arguments; default: no arguments")
    ] = None
    strict: Annotated[
        bool | None,
        about("true: a schema that cannot be followed in all is refused (default: false)"),
    ] = None


class Tool(Struct, frozen=True):
    """Something that the model may use. Those of another type than "function" are skipped."""

    type: str
    function: Function | None = None


Tools = Annotated[list[Tool], Meta(max_length=512)]


class FunctionName(Struct, frozen=True, forbid_unknown_fields=True):
    """The name of one of the tools."""

    name: str


class NamedTool(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="function"):
    """The tool that has to be called."""

    function: FunctionName


class AllowedTools(Struct, frozen=True, forbid_unknown_fields=True):
    """The tools that may be called, and whether one has to be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=512)]


class AllowedChoice(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="allowed_tools"
):
    """Some of the tools."""

    allowed_tools: AllowedTools


ToolChoice = Literal["none", "auto", "required"] | NamedTool | AllowedChoice


def for_templates(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return messages as chat templates read them.

    Arguments of calls are objects there, if they are JSON objects at all. A result of a tool also
    has the tool's name, which some templates write. Raises ApiError for arguments nested too
    deeply.
    """
    called: dict[str, str] = {}
    return [_for_template(message, called) for message in messages]


def _for_template(message: Message, called: dict[str, str]) -> dict[str, Any]:
    assert isinstance(message, (SystemMessage, UserMessage, AssistantMessage, ToolMessage))
    role = str(message.__struct_config__.tag)
    found: dict[str, Any] = {
        "role": "system" if role == "developer" else role, "content": text_of(message.content),
    }  # fmt: skip
    if isinstance(message, AssistantMessage):
        if reasoning := message.reasoning_content or message.reasoning:
            found["reasoning_content"] = reasoning
        if message.tool_calls:
            found["tool_calls"] = [_call(call) for call in message.tool_calls]
            called |= {call.id or "": call.function.name for call in message.tool_calls}
    elif isinstance(message, ToolMessage):
        found["tool_call_id"] = message.tool_call_id
        if name := message.name or called.get(message.tool_call_id):
            found["name"] = name
    return found


def text_of(content: str | list[TextPart] | None) -> str:
    if isinstance(content, list):
        return "".join(part.text for part in content)
    return content or ""


def _call(call: Call) -> dict[str, Any]:
    arguments = _arguments(call.function.arguments or "{}")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id or "", "type": "function", "function": function}


def _arguments(text: str) -> Any:
    """Return arguments as an object; as the text itself where a model wrote something else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not is_shallow(value):
        raise bad_value("messages", f"arguments of a call {TOO_DEEP}")
    return value if isinstance(value, dict) else text


def is_shallow(value: Any) -> bool:
    """Return True if lists and objects in a JSON value are nested at most DEEPEST levels.

    Templates and grammars walk values by recursion.
    """
    level = [value]
    for _ in range(DEEPEST + 1):
        if not level:
            return True
        inner = [list(v.values()) if isinstance(v, dict) else v for v in level if _holds(v)]
        level = [item for items in inner for item in items]
    return not level


def _holds(value: Any) -> bool:
    return isinstance(value, (dict, list))
