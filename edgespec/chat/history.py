"""Brings the messages of a conversation into the form that a chat template accepts.

Every conversation passes `regular` in front of its template, whoever sent it. Two rules hold. The
prompt of a conversation begins with the prompts of its beginnings, as far as the template allows:
what stands at the front never changes because of what comes later. And a message that a template
would refuse, such as an empty answer, a call that was cut or an id in a foreign form, is brought
into a form that it takes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .accepted import Accepted
from .cut_arguments import whole
from .markers import ID_LENGTH
from .messages import Message
from .pictures import marks_of, picture_at, without_marks

_BETWEEN = "\n\n"  # separates joined messages of one role
_DIGITS = string.digits + string.ascii_letters


def regular(
    messages: Iterable[Mapping[str, Any]], accepted: Accepted, thought_key: str = ""
) -> list[Message]:
    """Return messages in the form that a template accepts.

    messages: in OpenAI's form. An answer that is given as the text which the model wrote has the
    names of the tools that it calls, by their ids, in `called`. thought_key: the field from which
    the template reads reasoning, "" if it reads none.

    Developer messages become system messages. A system message that the template does not take at
    its place goes into the user's message that follows at once, or else becomes one. Messages of
    one role in a row are joined where roles must alternate. A message without text keeps its place.
    The result of a call gets the name of its tool, which some templates write. Calls and results
    become text for a template without tools that refuses them. Pictures in results that the
    template does not write go into a message of the user after all results of the same calls.
    """
    history = _History(accepted, thought_key)
    for message in messages:
        history.add(message)
    return history.finished()


class _History:
    """Messages in a regular form, to which further ones are added."""

    def __init__(self, accepted: Accepted, thought_key: str) -> None:
        self._accepted = accepted
        self._thought_key = thought_key
        self._messages: list[Message] = []
        self._held: list[str] = []  # texts of the system that wait for a message of the user
        self._called: dict[str, str] = {}  # names of tools by the ids of their calls
        self._waiting: dict[str, Message] = {}  # calls that are written with their results
        self._unwritten: list[str] = []  # pictures that wait for a message of the user

    def add(self, message: Mapping[str, Any]) -> None:
        """Add a message in OpenAI's form."""
        role = message["role"]
        message = {**message, "content": message.get("content") or ""}
        add = {"system": self._system, "developer": self._system, "user": self._user}
        add |= {"assistant": self._assistant, "tool": self._result}
        if role != "tool":
            self._waiting = {}
            self._show()
        add.get(role, self._messages.append)(message)

    def finished(self) -> list[Message]:
        """Return the messages."""
        self._show()
        self._let_go()
        return self._messages

    @property
    def _last(self) -> str:
        """The role of the last message, "" before the first."""
        return self._messages[-1]["role"] if self._messages else ""

    def _system(self, message: Message) -> None:
        if not message["content"]:
            return
        message["role"] = "system"
        if not self._messages:
            takes = self._accepted.order("system", "user")
        elif all(each["role"] == "system" for each in self._messages):
            takes = self._accepted.order("system", "system", "user")
            if not takes:
                self._join(message)
                return
        else:
            takes = self._accepted.order("user", "assistant", "system", "user")
        if takes and not self._held:
            self._messages.append(message)
        else:
            self._held.append(text_of(message["content"]))

    def _user(self, message: Message) -> None:
        if self._held:
            message["content"] = joined([*self._held, text_of(message["content"])])
            self._held = []
        after_user = self._last == "user" and not self._accepted.order("user", "user")
        after_result = self._last == "tool" and not self._accepted.order(
            "user", "call", "tool", "user"
        )
        if after_user or after_result:
            self._join(message)
        else:
            self._append("user", message)

    def _assistant(self, message: Message) -> None:
        self._let_go()
        if self._last in ("", "system") and not self._accepted.order("assistant", "user"):
            self._append("user", {"role": "user", "content": ""})
        self._called |= message.pop("called", {})
        calls = [self._call(call) for call in message.pop("tool_calls", None) or ()]
        if calls and not self._accepted.calls:
            said = [text_of(message["content"]), *map(_written, calls)]
            message["content"], calls = joined(said), []
        self._thought(message, bool(calls))
        if calls and len(calls) > 1 and not self._accepted.several_calls:
            self._waiting = {call["id"]: call for call in calls[1:]}
            calls = calls[:1]
        if calls:
            message["tool_calls"] = calls
        two = self._last == "assistant" and not self._messages[-1].get("tool_calls")
        if two and not self._accepted.order("user", "assistant", "assistant", "user"):
            self._join(message)
        else:
            self._append("call" if calls else "assistant", message)

    def _result(self, message: Message) -> None:
        call_id = self._id(str(message.get("tool_call_id") or ""))
        is_orphan = call_id not in self._called and not self._accepted.order("user", "tool")
        if is_orphan or not self._accepted.calls:
            self._user({"role": "user", "content": message["content"]})
            return
        marks = marks_of(text_of(message["content"]))
        if marks and not self._accepted.pictures_in_results:
            self._unwritten += marks
            message["content"] = without_marks(message["content"])
        if call := self._waiting.pop(call_id, None):
            self._append("call", {"role": "assistant", "content": "", "tool_calls": [call]})
        name = message.pop("name", None) or self._called.get(call_id)
        self._append("tool", message | {"tool_call_id": call_id} | ({"name": name} if name else {}))
        self._move_result(call_id)

    def _move_result(self, call_id: str) -> None:
        """Move the last message, a result, to its call, if other messages came in between."""
        ids = [[each["id"] for each in m.get("tool_calls", ())] for m in self._messages]
        place = next((i for i in reversed(range(len(ids))) if call_id in ids[i]), len(ids) - 1) + 1
        while place < len(ids) and self._messages[place]["role"] == "tool":
            place += 1
        if place < len(ids):
            self._messages.insert(place, self._messages.pop())

    def _thought(self, message: Message, calls: bool) -> None:
        """Put reasoning into the field from which the template reads it."""
        thought = message.pop("reasoning_content", None)
        key = self._thought_key or "reasoning_content"
        if not thought:
            return
        message[key] = thought
        if calls and message["content"] and not self._accepted.thought_of_call(key):
            message[key] = joined([thought, text_of(message["content"])])
            message["content"] = ""

    def _call(self, call: Mapping[str, Any]) -> Message:
        """Return a call with arguments and an id in the form that the template accepts."""
        function = call["function"]
        call_id = self._id(call["id"])
        self._called[call_id] = function["name"]
        arguments = self._accepted.arguments(whole(function.get("arguments")))
        return {**call, "id": call_id, "function": {**function, "arguments": arguments}}

    def _id(self, call_id: str) -> str:
        """Return the id of a call. An id that the template refuses becomes a hash of it."""
        is_short = len(call_id) == ID_LENGTH and call_id.isalnum() and call_id.isascii()
        if is_short or self._accepted.foreign_ids:
            return call_id
        number = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:8], "big")
        return "".join(
            _DIGITS[number // len(_DIGITS) ** i % len(_DIGITS)] for i in range(ID_LENGTH)
        )

    def _show(self) -> None:
        """Add the pictures that wait as a message of the user."""
        if self._unwritten:
            shown, self._unwritten = "".join(self._unwritten), []
            self._user({"role": "user", "content": shown})

    def _let_go(self) -> None:
        """Add the texts of the system that wait as a message of the user."""
        if self._held:
            self._user({"role": "user", "content": ""})

    def _append(self, kind: str, message: Message) -> None:
        if not message["content"]:
            message["content"] = self._accepted.empty(kind)
        self._messages.append(message)

    def _join(self, message: Message) -> None:
        """Add the parts of a message to the last one."""
        last = self._messages[-1]
        for field, value in message.items():
            if field == "tool_calls":
                last[field] = [*last.get(field, ()), *value]
            elif field in ("content", "reasoning_content", self._thought_key):
                last[field] = joined([text_of(last.get(field)), text_of(value)])


def _written(call: Mapping[str, Any]) -> str:
    """Return a call as text, for a template that accepts no calls."""
    function = call["function"]
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {whole(function["arguments"])}}}'


def text_of(content: Any) -> str:
    """Return the text of a content: a text, a list of parts with text, or None."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content or ())


class Transcript:
    """Builds the messages of a conversation piece by piece, from turns or items of a request.

    Consecutive pieces of one role are joined into one message. place: the place in the request of
    the pieces that are added next. places: for each message, the place at which it begins.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.places: list[str] = []
        self.place = ""

    def say(self, role: str, text: str) -> None:
        """Add text of the system, a user or the assistant. Without text, the system says nothing,
        and the others have an empty message.
        """
        if text or role != "system":
            self._add(role, "content", text)

    def show(self, url: str) -> None:
        """Add a picture to a message of the user. url: its data: URL."""
        message = self._last("user")
        if isinstance(text := message["content"], str):
            message["content"] = [{"type": "text", "text": text}] if text else []
        message["content"].append(picture_at(url))

    def think(self, text: str) -> None:
        """Add reasoning of the assistant. An empty text adds nothing."""
        if text:
            self._add("assistant", "reasoning_content", text)

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """Add a tool call of the assistant. arguments: JSON text."""
        calls = self._last("assistant").setdefault("tool_calls", [])
        calls.append(call_of(call_id, name, arguments))

    def result(self, call_id: str, pieces: Iterable[tuple[str, str]]) -> None:
        """Add the result of a tool call. pieces: its texts, and the data: URLs of its pictures,
        each with its kind: "text" or "picture".
        """
        parts: list[dict[str, Any]] = []
        for is_text, group in itertools.groupby(pieces, lambda piece: piece[0] == "text"):
            said = [piece for _, piece in group]
            if is_text:
                parts.append({"type": "text", "text": joined(said)})
            else:
                parts += map(picture_at, said)
        has_text = all(part["type"] == "text" for part in parts)
        content = text_of(parts) if has_text else parts
        self._begin({"role": "tool", "tool_call_id": call_id, "content": content})

    def _add(self, role: str, field: str, text: str) -> None:
        message = self._last(role)
        if isinstance(content := message.get(field, ""), list):
            content.append({"type": "text", "text": text})
        else:
            message[field] = joined([content, text])

    def _last(self, role: str) -> dict[str, Any]:
        """Return the last message if it has this role, else begin a new message and return it."""
        if not self.messages or self.messages[-1]["role"] != role:
            self._begin({"role": role, "content": ""})
        return self.messages[-1]

    def _begin(self, message: Message) -> None:
        self.messages.append(message)
        self.places.append(self.place)


def call_of(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a tool call as it appears in a message. arguments: JSON text, or "" for none."""
    function = {"name": name, "arguments": arguments or "{}"}
    return {"id": call_id, "type": "function", "function": function}


def joined(texts: Sequence[str]) -> str:
    """Return the texts as one, with an empty line between them. Empty texts are left out."""
    return _BETWEEN.join(text for text in texts if text)
