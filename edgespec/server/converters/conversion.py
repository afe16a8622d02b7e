"""Makes a chat-completions request of a request of another API, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ApiError, bad_value

_BETWEEN = "\n\n"  # separates the pieces of a system prompt or of what a user says


@dataclass(frozen=True, slots=True)
class Conversion:
    """A chat-completions request that stands for a request of another API.

    names: what its fields are called there, by the beginning of their place here.
    """

    fields: dict[str, Any]
    names: Mapping[str, str]

    def renamed(self, error: ApiError) -> ApiError:
        """Return an error about the chat-completions request as one about the other request."""
        place = error.param or ""
        known = max((name for name in self.names if place.startswith(name)), key=len, default="")
        if known:
            error.param = self.names[known] + place.removeprefix(known)
            error.message = error.message.replace(place, error.param)
        return error


class Transcript:
    """The messages of a chat.

    What one role says in several pieces becomes one message, because many templates refuse two
    messages of one role in a row. An assistant's pieces are joined as they are: they are the parts
    of one answer.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def say(self, role: str, text: str) -> None:
        """Add what the system prompt, a user or the assistant says."""
        if role == "assistant":
            self._answer()["content"] += text
            return
        last = self.messages[-1] if self.messages else {}
        if last.get("role") == role:
            last["content"] += _BETWEEN + text
        else:
            self.messages.append({"role": role, "content": text})

    def think(self, text: str) -> None:
        """Add reasoning of the assistant."""
        answer = self._answer()
        answer["reasoning_content"] = answer.get("reasoning_content", "") + text

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a call of a tool; arguments: JSON text."""
        function = {"name": name, "arguments": arguments}
        calls = self._answer().setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})

    def result(self, call_id: str, text: str) -> None:
        """Add what a tool returned."""
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _answer(self) -> dict[str, Any]:
        """Return the assistant's message that is being collected."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def tool_fields(tools: list[dict[str, Any]], choice: Any, parallel: bool | None) -> dict[str, Any]:
    """Return the fields of a chat-completions request that are about tools.

    Without tools a choice that asks for none is left out, because all tools may have been skipped.
    """
    if not tools and choice in (None, "auto", "none"):
        return {}
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}


def called(name: str | None) -> dict[str, Any]:
    """Return a function by its name, as a choice of tools has it."""
    return {"type": "function", "function": {"name": name}}


def without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def missing(place: str) -> ApiError:
    """Return the error for a field that is needed and is not there."""
    return bad_value(place, f"the field {place!r} is missing", "missing_parameter")
