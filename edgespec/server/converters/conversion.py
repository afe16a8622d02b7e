"""Makes a chat-completions request of a request of another API, piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ApiError, bad_value

_BETWEEN = "\n\n"  # separates messages of one role


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

    What one role says in several messages becomes one, because many templates refuse two messages
    of one role in a row. What the system says joins the message before all others wherever it is
    said, because many templates refuse it later: Claude Code sends it in the middle of
    conversations (anthropics/claude-code#77698).
    """

    def __init__(self) -> None:
        self._system: list[str] = []
        self._talk: list[dict[str, Any]] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages so far."""
        system = [{"role": "system", "content": joined(*self._system)}] if self._system else []
        return [*system, *self._talk]

    def say(self, role: str, text: str) -> None:
        """Add a message of the system, a user or the assistant."""
        if role == "system":
            self._system.append(text)
        else:
            self._add(role, "content", text)

    def think(self, text: str) -> None:
        """Add reasoning of the assistant, if there is any."""
        if text:
            self._add("assistant", "reasoning_content", text)

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a call of a tool; arguments: JSON text."""
        function = {"name": name, "arguments": arguments}
        calls = self._last("assistant").setdefault("tool_calls", [])
        calls.append({"id": call_id, "type": "function", "function": function})

    def result(self, call_id: str, text: str) -> None:
        """Add what a tool returned."""
        self._talk.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _add(self, role: str, field: str, text: str) -> None:
        message = self._last(role)
        message[field] = joined(message.get(field, ""), text)

    def _last(self, role: str) -> dict[str, Any]:
        """Return the last message, which is begun if it is another role's."""
        if not self._talk or self._talk[-1]["role"] != role:
            self._talk.append({"role": role, "content": ""})
        return self._talk[-1]


def joined(*texts: str) -> str:
    """Return texts that stand by themselves as one, an empty line apart."""
    return _BETWEEN.join(text for text in texts if text)


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
