"""Finds out what a chat template accepts in a conversation, by rendering test conversations."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .probes import ARGUMENTS, FIRST, TOOLS, Probe, call_id, call_of
from .template_budget import JsonText

_FOREIGN = "call_Foreign-0123456789.abcdef"  # a form that no template prescribes
_SHOWN = "\udb00\udc00"  # the mark of a picture
_EMPTY: tuple[Any, ...] = ("", [{"type": "text", "text": ""}], None, " ", "-")
"""Contents that say nothing, the best first."""
_AROUND: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "user": ((), ("assistant", "user")),
    "assistant": (("user",), ("user",)),
    "call": (("user",), ("tool",)),
    "tool": (("user", "call"), ()),
}
"""For each kind of message, the kinds before and after it in a test conversation."""


class Accepted:
    """Knows what a chat template accepts in a conversation.

    Each question is answered by rendering short test conversations, once for each template. Only
    questions that a conversation raises are asked; most conversations raise none. Messages are of
    these kinds: system, user, assistant, call (the assistant calls a tool) and tool (its result).
    has_tools: True to ask about conversations with tools; some templates then have other rules.
    """

    def __init__(self, probe: Probe, has_tools: bool) -> None:
        self._probe = probe
        self._variables: dict[str, Any] = {"tools": TOOLS} if has_tools else {}
        self._orders: dict[tuple[str, ...], bool] = {}
        self._empty: dict[str, Any] = {}
        self._thoughts: dict[str, bool] = {}

    @staticmethod
    def by(template: str, special: Mapping[str, str], *, has_tools: bool) -> Accepted:
        """Return what a template accepts. special: the texts of special tokens by name."""
        return _accepted(template, tuple(sorted(special.items())), has_tools)

    def order(self, *kinds: str) -> bool:
        """Return True if messages of these kinds may follow each other.

        The texts of the system, the user and the assistant must all be written, in this order. A
        template that refuses even one question, or one call, tells nothing: then this is True.
        """
        if kinds not in self._orders:
            simplest = _AROUND["tool"][0] if "call" in kinds else ("user",)
            known = self._writes(self._messages(simplest))
            self._orders[kinds] = not known or self._writes(self._messages(kinds))
        return self._orders[kinds]

    def empty(self, kind: str) -> Any:
        """Return the content of a message of this kind that says nothing."""
        if kind not in self._empty:
            before, after = _AROUND[kind]
            messages = self._messages((*before, kind, *after))
            tried = (
                [{**m, "content": said} if i == len(before) else m for i, m in enumerate(messages)]
                for said in _EMPTY
            )
            accepted = (
                said for said, each in zip(_EMPTY, tried, strict=True) if self._writes(each)
            )
            self._empty[kind] = next(accepted, "")
        return self._empty[kind]

    @functools.cached_property
    def calls(self) -> bool:
        """False if the template accepts a question, but not a call with its result."""
        if self._called(self.arguments(_text(ARGUMENTS))) is not None:
            return True
        return not self._writes(self._messages(("user",)))

    def arguments(self, text: str) -> Any:
        """Return the arguments of a call as the template takes them. text: a JSON object."""
        return self._kind_of_arguments(text)

    @functools.cached_property
    def _kind_of_arguments(self) -> Callable[[str], Any]:
        """A function that makes the arguments that the template takes from JSON text.

        Text is preferred, as text or as JsonText, because the template does not change it.
        """
        of_object, text = self._called(ARGUMENTS), json.dumps(ARGUMENTS)
        is_written = of_object is not None and str(ARGUMENTS) not in of_object
        for kind in (str, JsonText):
            if is_written and self._called(kind(text)) == of_object:
                return kind
        return json.loads if is_written or self._called(text) is None else str

    @functools.cached_property
    def several_calls(self) -> bool:
        """True if a message may have more than one call, and the template writes all of them."""
        values = ("A first value.", "A second value.")
        given = [self.arguments(_text({"probe_key": value})) for value in values]
        calls = [call_of(FIRST, i, each) for i, each in enumerate(given)]
        user, call, first, second = self._messages(("user", "call", "tool", "tool"))
        second["tool_call_id"] = call_id(1)
        text = self._render([user, {**call, "tool_calls": calls}, first, second])
        if text is None:
            return not self.calls
        return values[1] in text or values[0] not in text

    @functools.cached_property
    def foreign_ids(self) -> bool:
        """False if the ids of calls must have the form of `probes.call_id`, as Mistral's."""
        user, call, result = self._messages(("user", "call", "tool"))
        calls = [{**call["tool_calls"][0], "id": _FOREIGN}]
        foreign = [user, {**call, "tool_calls": calls}, {**result, "tool_call_id": _FOREIGN}]
        return self._render(foreign) is not None or not self.calls

    @functools.cached_property
    def pictures_in_results(self) -> bool:
        """True if the template writes pictures in results of tools, given as marks in a text or in
        a part with text.
        """
        user, call, result = self._messages(("user", "call", "tool"))
        if self._render([user, call, result]) is None:
            return True
        contents = (_SHOWN, [{"type": "text", "text": _SHOWN}])
        rendered = (self._render([user, call, {**result, "content": each}]) for each in contents)
        return any(text is not None and _SHOWN in text for text in rendered)

    def thought_of_call(self, key: str) -> bool:
        """Return True if a message with calls may have text as well as reasoning.

        key: the field of a message that holds reasoning.
        """
        if key not in self._thoughts:
            user, call, result = self._messages(("user", "call", "tool"))
            thought = {**call, key: "A thought."}
            both = self._render([user, {**thought, "content": "A text."}, result])
            refused = both is None and self._render([user, thought, result]) is not None
            self._thoughts[key] = not refused
        return self._thoughts[key]

    def _called(self, arguments: Any) -> str | None:
        """Return the rendering of a conversation with a call, None if it is refused."""
        user, call, result = self._messages(("user", "call", "tool"), arguments)
        return self._render([user, call, result])

    def _messages(self, kinds: Sequence[str], arguments: Any = None) -> list[dict[str, Any]]:
        """Return a test conversation. arguments: those of calls, default: as they are accepted."""
        messages: list[dict[str, Any]] = []
        for i, kind in enumerate(kinds):
            message: dict[str, Any] = {"role": kind, "content": f"Text {i} of the {kind}."}
            if kind == "call":
                given = self.arguments(_text(ARGUMENTS)) if arguments is None else arguments
                calls = [call_of(FIRST, 0, given)]
                message = {"role": "assistant", "content": "", "tool_calls": calls}
            elif kind == "tool":
                message |= {"tool_call_id": call_id(0), "name": FIRST}
            messages.append(message)
        return messages

    def _writes(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Return True if a template accepts messages and writes their texts in their order.

        Results of tools need not be written, because not every template knows them.
        """
        written, at = self._render(messages), 0
        if written is None:
            return False
        for message in messages:
            text = message["content"]
            if message["role"] == "tool" or text in _EMPTY:
                continue
            at = written.find(text, at)
            if at < 0:
                return False
        return True

    def _render(self, messages: Sequence[Mapping[str, Any]]) -> str | None:
        return self._probe.rendered(messages, True, self._variables)


def _text(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments)


@functools.lru_cache(maxsize=16)
def _accepted(template: str, special: tuple[tuple[str, str], ...], has_tools: bool) -> Accepted:
    return Accepted(Probe(template, dict(special)), has_tools)
