"""Brings the messages of a conversation into the form that chat templates expect."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .messages import Message

_BETWEEN = "\n\n"  # separates joined messages of one role


def regular(messages: Iterable[Message]) -> list[Message]:
    """Return messages in the form that chat templates expect.

    Developer messages become system messages. The result of a call gets the name of its tool, which
    some templates write.
    """
    called: dict[str, str] = {}
    history = []
    for message in messages:
        if message["role"] == "developer":
            message = message | {"role": "system"}
        for call in message.get("tool_calls", ()):
            called[call["id"]] = call["function"]["name"]
        if message["role"] == "tool" and not message.get("name"):
            name = called.get(message["tool_call_id"])
            message = {k: v for k, v in message.items() if k != "name"}
            message |= {"name": name} if name else {}
        history.append(message)
    return history


class Transcript:
    """Builds the messages of a conversation piece by piece.

    Consecutive messages of one role are joined into one, because many templates refuse two messages
    of one role in a row. All system texts are joined into one message at the beginning, because
    many templates refuse them later: Claude Code sends them in the middle of conversations
    (anthropics/claude-code#77698).
    """

    def __init__(self) -> None:
        self._system: list[str] = []
        self._talk: list[dict[str, Any]] = []

    @property
    def messages(self) -> list[Message]:
        """The messages so far, in the form that chat templates expect."""
        system = [{"role": "system", "content": joined(self._system)}] if self._system else []
        return regular([*system, *self._talk])

    def say(self, role: str, text: str) -> None:
        """Add text of the system, a user or the assistant."""
        if role == "system":
            self._system.append(text)
        else:
            self._add(role, "content", text)

    def think(self, text: str) -> None:
        """Add reasoning of the assistant. An empty text adds nothing."""
        if text:
            self._add("assistant", "reasoning_content", text)

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a tool call of the assistant. arguments: JSON text."""
        calls = self._last("assistant").setdefault("tool_calls", [])
        calls.append(call_of(call_id, name, arguments))

    def result(self, call_id: str, text: str) -> None:
        """Add the result of a tool call."""
        self._talk.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _add(self, role: str, field: str, text: str) -> None:
        message = self._last(role)
        message[field] = joined([message.get(field, ""), text])

    def _last(self, role: str) -> dict[str, Any]:
        """Return the last message if it has this role, else begin a new message and return it."""
        if not self._talk or self._talk[-1]["role"] != role:
            self._talk.append({"role": role, "content": ""})
        return self._talk[-1]


def call_of(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a tool call as it appears in a message. arguments: JSON text, or "" for none."""
    function = {"name": name, "arguments": arguments or "{}"}
    return {"id": call_id, "type": "function", "function": function}


def joined(texts: Sequence[str]) -> str:
    """Return the texts as one, with an empty line between them. Empty texts are left out."""
    return _BETWEEN.join(text for text in texts if text)
