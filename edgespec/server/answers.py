"""Responses of chats whose answers hold reasoning and calls of tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..chat.reader import Reader
from ..types import Completion, Event, Part, Stats
from .responses import ChatResponseBuilder, Offsets


class Answer:
    """The parts of one answer that have been read, as the fields of its message.

    calls: those that were begun, the one that the answer's end cut among them. n_reasoning: how
    many of its tokens came up to the end of its reasoning.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._n_tokens = 0
        self.n_reasoning = 0
        self.calls: list[dict[str, Any]] = []

    def take(self, event: Event) -> list[Part]:
        """Return the parts that an event adds; the last one adds what was held back."""
        parts = self._reader.feed(event.text)
        self._n_tokens += event.token is not None
        if event.completion:
            parts = [*parts, *self._reader.end()]
        for part in parts:
            self._add(part)
        return parts

    def _add(self, part: Part) -> None:
        if part.kind == "reasoning":
            self.n_reasoning = self._n_tokens
        elif part.id:
            self.calls.append(_opened(part))
        elif part.kind == "call":
            self.calls[part.index]["function"]["arguments"] += part.text

    @property
    def has_calls(self) -> bool:
        """True if there are calls, all of them complete."""
        return bool(self.calls) and len(self._reader.calls) == len(self.calls)

    def message(self) -> dict[str, Any]:
        """Return the message of the assistant."""
        read = self._reader
        content = read.content if read.content or not self.calls else None
        found: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if read.reasoning:
            found |= _reasoning(read.reasoning)
        if self.calls:
            found["tool_calls"] = self.calls
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerResponseBuilder(ChatResponseBuilder):
    """Builds responses of `/v1/chat/completions` from the parts of one answer."""

    answer: Answer

    def take(self, event: Event) -> None:
        """Read the text of an event."""
        self.answer.take(event)

    def first_chunk(self, index: int) -> dict[str, Any]:
        """Return a chunk that says who speaks; whether there is any content is not known yet."""
        choice = {
            "index": index, "delta": {"role": "assistant", "content": None},
            "logprobs": None, "finish_reason": None,
        }  # fmt: skip
        return self.envelope([choice], chunk=True)

    def event_chunks(self, index: int, event: Event, offsets: Offsets) -> list[dict[str, Any]]:
        """Return a chunk for each part of an event; the first has the log-probabilities."""
        deltas = [_delta(part) for part in self.answer.take(event)]
        logprobs = self.event_logprobs(event, offsets)
        if logprobs is not None and not deltas:
            deltas = [{}]
        return [
            self.piece(index, {"delta": delta}, event, None if i else logprobs)
            for i, delta in enumerate(deltas)
        ]

    def choice_text(self, text: str) -> dict[str, Any]:
        """Return the message that was read."""
        return {"message": self.answer.message()}

    def ending(self, completion: Completion) -> dict[str, Any]:
        """Return why the answer ended: calls are a reason of their own if they are complete."""
        found = ChatResponseBuilder.ending(self, completion)
        if self.answer.has_calls and found["finish_reason"] == "stop":
            found["finish_reason"] = "tool_calls"
        return found

    def usage(self, stats: Iterable[Stats]) -> dict[str, Any]:
        """Return the token counts, those of reasoning among them."""
        usage = ChatResponseBuilder.usage(self, stats)
        usage["completion_tokens_details"]["reasoning_tokens"] = self.answer.n_reasoning
        return usage


def _delta(part: Part) -> Mapping[str, Any]:
    if part.kind == "content":
        return {"content": part.text}
    if part.kind == "reasoning":
        return _reasoning(part.text)
    call = _opened(part) if part.id else {"function": {"arguments": part.text}}
    return {"tool_calls": [{"index": part.index} | call]}


def _opened(part: Part) -> dict[str, Any]:
    function = {"name": part.name, "arguments": part.text}
    return {"id": part.id, "type": "function", "function": function}


def _reasoning(text: str) -> dict[str, str]:
    """Return reasoning under the names of llama.cpp and DeepSeek, and of vLLM and OpenRouter."""
    return {"reasoning_content": text, "reasoning": text}
