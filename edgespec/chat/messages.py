"""Messages of a conversation in OpenAI's form: answers, tool calls, and results of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..errors import ConfigError
from ..types import ToolCall
from .pictures import Content, restored, shown_by
from .pictures import Message as Message

_FOLLOWS = {  # the roles that may come after a role, once all calls have their results
    "": ("user",),
    "user": ("assistant",),
    "assistant": ("user",),
    "tool": ("assistant", "user"),
}
_SHOWING = ("user", "tool")  # roles whose messages may have pictures
NO_RESULT = "no result"


def answer(text: str, reasoning: str = "", calls: Sequence[ToolCall] = ()) -> Message:
    """Return an assistant message with this text, reasoning and these tool calls."""
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    return message


def begin_of_turns(messages: Sequence[Message]) -> list[int]:
    """Return the indices at which turns begin. A turn is a user message and all that follows it."""
    return [i for i, message in enumerate(messages) if message["role"] == "user"]


def open_calls(messages: Sequence[Message]) -> dict[str, str]:
    """Return the calls of the last message, which have no results yet, as {id: name}."""
    calls = messages[-1].get("tool_calls", ()) if messages else ()
    return {call["id"]: call["function"]["name"] for call in calls}


def results(calls: Mapping[str, str], values: Any) -> list[Message]:
    """Return the results of tool calls as messages.

    calls: the names of the called tools, by call id. values: one value for each call, in their
    order, or a mapping from call ids to values. Raises ConfigError if they do not match these
    calls.
    """
    if not calls:
        raise ConfigError("the last answer made no calls, so there are no results to send")
    if isinstance(values, Mapping):
        by_id = dict(values)
    elif isinstance(values, (list, tuple)) and len(values) == len(calls):
        by_id = dict(zip(calls, values, strict=True))
    else:
        n = len(values) if isinstance(values, (list, tuple)) else repr(values)[:80]
        raise ConfigError(
            f"the last answer made {len(calls)} calls, got {n} results; give a list with one for "
            "each, in their order, or a mapping from their ids"
        )
    if by_id.keys() != calls.keys():
        raise ConfigError(
            f"the last answer made the calls {', '.join(calls)}; got results for "
            f"{', '.join(map(str, by_id)) or 'none'}"
        )
    return [
        {"role": "tool", "tool_call_id": id_, "name": name, "content": result_of(by_id[id_])}
        for id_, name in calls.items()
    ]


def result_of(value: Any) -> Content:
    """Return a result as the model reads it: text unchanged, pictures as parts, other values as
    JSON, or as `str`. Raises the errors of `pictures.content_of`.
    """
    if isinstance(value, str):
        return value
    if shown := shown_by(value):
        return shown
    if hasattr(value, "model_dump_json"):  # a pydantic model, without importing pydantic
        return str(value.model_dump_json())
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return str(value)


def checked(saved: Any) -> list[Message]:
    """Check a saved list of messages and return it.

    Raises ConfigError if it is not a conversation.
    """
    if not isinstance(saved, list):
        raise ConfigError('a saved chat needs "system" (text or null) and a list "messages"')
    messages: list[Message] = []
    missing: dict[str, str] = {}  # calls whose results have not come yet
    for i, message in enumerate(saved):
        expected = ("tool",) if missing else _FOLLOWS[messages[-1]["role"] if messages else ""]
        role = message.get("role") if isinstance(message, dict) else None
        if role in _SHOWING:
            message = {**message, "content": restored(message.get("content"))}
        if not isinstance(role, str) or role not in expected or not _has_text(message):
            raise ConfigError(
                f"message {i} of a saved chat must be "
                f'{{"role": "{" or ".join(expected)}", "content": text}}, got {message!r:.80}'
            )
        if role == "tool" and missing.pop(str(message.get("tool_call_id")), None) is None:
            raise ConfigError(f"message {i} of a saved chat is the result of no call before it")
        messages.append(_copied(message, i))
        if role == "assistant":
            missing = open_calls(messages)
    last = messages[-1]["role"] if messages else ""
    if last == "user" or (last == "tool" and missing):
        raise ConfigError(
            "a saved chat must end with an answer of the assistant, or with results of its calls"
        )
    return messages


def _has_text(message: Message) -> bool:
    names = ("reasoning_content", "name")
    if not all(isinstance(message.get(key, ""), str) for key in names):
        return False
    content = message.get("content")
    return isinstance(content, str) or (message["role"] in _SHOWING and isinstance(content, list))


def _copied(message: Message, i: int) -> Message:
    """Return a copy of a message with only the fields of its role.

    Raises ConfigError if its calls are malformed.
    """
    if message["role"] == "user":
        return {"role": "user", "content": message["content"]}
    if message["role"] == "tool":
        return {key: message.get(key, "") for key in ("role", "tool_call_id", "name", "content")}
    try:
        calls = [
            msgspec.convert(
                {"id": call["id"], **{k: call["function"][k] for k in ("name", "arguments")}},
                ToolCall,
            )
            for call in message.get("tool_calls") or ()
        ]
    except (KeyError, TypeError, msgspec.ValidationError):
        raise ConfigError(
            f"message {i} of a saved chat has calls that are not "
            '{"id": text, "function": {"name": text, "arguments": text}}'
        ) from None
    return answer(message["content"], message.get("reasoning_content", ""), calls)
