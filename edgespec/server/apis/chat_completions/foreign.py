"""Brings messages that other servers and older clients write into the form of `structs`.

Clients send back what another provider, an older API or their own history gave them. A message that
was refused would be refused again at every later turn, so what says something becomes text,
reasoning or a call, and the rest is left out. Each message stays one message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....chat.pictures import LEFT_OUT, picture_at
from ..pictures import url_of
from ..skipped import as_text, text_in

_TEXTS = ("text", "input_text", "output_text", "refusal")
_THOUGHTS = ("thinking", "reasoning", "reasoning_text", "redacted_thinking")
_ATTACHED = ("image", "image_url", "input_image", "input_audio", "file", "document", "video_url")


def regular(body: dict[str, Any]) -> dict[str, Any]:
    """Return a request's body with its messages in a regular form. What is not known stays as it
    is, and is refused by its name later.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        return body
    waiting: list[str] = []  # ids of calls without a result yet
    return body | {"messages": [_message(message, waiting) for message in messages]}


def _message(message: Any, waiting: list[str]) -> Any:
    if not isinstance(message, dict):
        return message
    role = message.get("role")
    if role == "assistant":
        message = _answer(message)
        ids = [
            call.get("id") for call in _list(message.get("tool_calls")) if isinstance(call, dict)
        ]
        waiting[:] = [each for each in ids if isinstance(each, str)]
    elif role in ("tool", "function"):
        message = _result(message, waiting)
    elif isinstance(content := message.get("content"), list):
        message = message | {"content": [_user_part(part) for part in content]}
    return message


def _result(message: dict[str, Any], waiting: list[str]) -> dict[str, Any]:
    """Return the result of a call. Without an id it answers the next call without a result."""
    content, call_id = message.get("content"), message.get("tool_call_id")
    if isinstance(content, list):
        content = [_result_part(part) for part in content]
    elif isinstance(content, Mapping):
        content = as_text(content)
    if call_id is None:
        call_id = waiting[0] if waiting else ""
    if call_id in waiting:
        waiting.remove(call_id)
    return message | {"role": "tool", "content": content, "tool_call_id": call_id}


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with thoughts as reasoning_content, and calls as tool_calls."""
    message = {key: value for key, value in message.items() if key != "audio"}
    calls = message.get("tool_calls")
    said = []
    if isinstance(calls, list):
        said = [text_in(call["custom"]) for call in calls if _is_custom(call)]
        message["tool_calls"] = [_call(call) for call in calls if not _is_custom(call)]
    if isinstance(function := message.pop("function_call", None), dict):
        call = {"id": str(function.get("name", "")), "type": "function", "function": function}
        message["tool_calls"] = [*_list(message.get("tool_calls")), _call(call)]
    content = message.get("content")
    if isinstance(content, list):
        thoughts = [_thought(part) for part in content if _is_of(part, _THOUGHTS)]
        content = [_other_part(part) for part in content if not _is_of(part, _THOUGHTS)]
        message["content"] = content
        if thoughts and not message.get("reasoning_content"):
            message["reasoning_content"] = "".join(thoughts)
    if said := [text for text in said if text]:
        is_text = isinstance(content, str) and content
        parts = [{"type": "text", "text": content}] if is_text else _list(content)
        added = "\n\n".join(said)
        message["content"] = [*parts, {"type": "text", "text": f"\n\n{added}" if parts else added}]
    return message


def _call(call: Any) -> Any:
    """Return a call with its arguments as text."""
    if not isinstance(call, dict) or not isinstance(function := call.get("function"), dict):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, (dict, list)):
        function = function | {"arguments": as_text(arguments)}
    return call | {"function": function}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_custom(call: Any) -> bool:
    is_custom = isinstance(call, dict) and call.get("type") == "custom"
    return is_custom and isinstance(call.get("custom"), dict)


def _text_part(part: Any) -> Any:
    """Return a part with text in it as a part of the type text; any other part unchanged."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict) or part.get("type", "text") not in _TEXTS:
        return part
    kind = "refusal" if part.get("type") == "refusal" else "text"
    return {"type": kind, kind: part.get(kind) or ""}


def _user_part(part: Any) -> Any:
    """Return a part of a user's message: pictures in other APIs' forms as image_url."""
    if not _is_of(part, ("image_url", "input_image")):
        return _text_part(part)
    return _picture(part) or {"type": "image_url", "image_url": part.get("image_url")}


def _result_part(part: Any) -> Any:
    """Return a part of a result: pictures as image_url. Files, and what is no picture, become a
    text that says that they are missing.
    """
    if _is_of(part, _ATTACHED):
        return _picture(part) or {"type": "text", "text": LEFT_OUT}
    return _other_part(part)


def _picture(part: Any) -> dict[str, Any] | None:
    url = url_of(part)
    return picture_at(url) if url else None


def _other_part(part: Any) -> Any:
    """Return a part as text, also if its type is not known, as long as there is text in it."""
    known = _text_part(part)
    if not isinstance(known, dict) or known.get("type") in _TEXTS:
        return known
    text = text_in(known)
    return {"type": "text", "text": text} if text else known


def _is_of(part: Any, kinds: tuple[str, ...]) -> bool:
    return isinstance(part, dict) and part.get("type") in kinds


def _thought(part: Mapping[str, Any]) -> str:
    """Return the text of a part with reasoning: in the field of its type, in `text`, or in parts of
    its own, as Mistral writes it.
    """
    given = part.get("thinking") or part.get("reasoning") or part.get("text") or ""
    if isinstance(given, list):
        return "".join(each.get("text") or "" for each in given if isinstance(each, dict))
    return given if isinstance(given, str) else ""
