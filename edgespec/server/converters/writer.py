"""Turns chat completions, whole or in chunks, into answers of another API."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...types import Part
from ..errors import ApiError

Event = dict[str, Any]
"""An event of a stream, with its name as `type`."""


@dataclass(slots=True)
class Ending:
    """The end of a chat completion: finish_reason and stop_reason of its choice, and its usage."""

    finish_reason: str = "stop"
    stop_reason: str | int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    def read(self, chunk: Mapping[str, Any]) -> None:
        """Take over what a chunk, or a whole response, says about the end."""
        for choice in chunk["choices"]:
            if choice.get("finish_reason"):
                self.finish_reason = choice["finish_reason"]
                self.stop_reason = choice.get("stop_reason")
        if usage := chunk.get("usage"):
            self.prompt_tokens = usage["prompt_tokens"]
            self.completion_tokens = usage["completion_tokens"]
            self.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
            details = usage.get("completion_tokens_details") or {}
            self.reasoning_tokens = details.get("reasoning_tokens", 0)


class Writer(ABC):
    """Writes one answer in the form of another API: the events of a stream, and the whole.

    An answer is a row of blocks: reasoning, text, calls. A block is open until a part of another
    one comes. The whole answer is collected from the same parts as the events, so that both say
    the same, however the text was cut.
    """

    def __init__(self) -> None:
        self._open: tuple[str, int] | None = None

    def take(self, part: Part) -> Iterator[Event]:
        """Add a part of the answer; yield the events that tell it."""
        block = (part.kind, part.index)
        if not part.text and (part.kind != "call" or block == self._open):
            return
        if block != self._open:
            yield from self.close()
            self._open = block
            yield from self._begin_block(part)
        if part.text:
            yield from self._continue_block(part)

    def close(self, *, cut: bool = False) -> Iterator[Event]:
        """Close the open block, if there is one; cut: the answer ended inside it."""
        if self._open:
            yield from self._end_block(cut)
            self._open = None

    @abstractmethod
    def begin(self) -> Iterator[Event]:
        """Yield the events before the first part."""

    @abstractmethod
    def end(self, ending: Ending) -> Iterator[Event]:
        """Close the answer; yield its last events."""

    @abstractmethod
    def fail(self, error: ApiError, request_id: str) -> Iterator[Event]:
        """Yield the events that tell that the answer broke off."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the whole answer, after its end."""

    @abstractmethod
    def _begin_block(self, part: Part) -> Iterator[Event]:
        """Begin the block of a part, without its text; yield the events that tell it."""

    @abstractmethod
    def _continue_block(self, part: Part) -> Iterator[Event]:
        """Add a part's text to the open block; yield the events that tell it."""

    @abstractmethod
    def _end_block(self, cut: bool) -> Iterator[Event]:
        """Yield the events that tell that the open block has ended."""


class Converted:
    """Form of a response that a Writer writes; see `streams.Form`."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def whole(self, response: Mapping[str, Any]) -> dict[str, Any]:
        """Return a whole response in the other API's form."""
        ending = Ending()
        ending.read(response)
        for part in parts(response["choices"][0]["message"]):
            _exhaust(self._writer.take(part))
        _exhaust(self._writer.end(ending))
        return self._writer.whole()

    async def stream(self, chunks: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[str]:
        """Yield the events of a stream, as server-sent events."""
        ending = Ending()
        for event in self._writer.begin():
            yield _sent(event)
        async for chunk in chunks:
            ending.read(chunk)
            for choice in chunk["choices"]:
                for part in parts(choice["delta"]):
                    for event in self._writer.take(part):
                        yield _sent(event)
        for event in self._writer.end(ending):
            yield _sent(event)

    def failure(self, error: ApiError, request_id: str) -> str:
        """Return the events that end a stream that broke off."""
        return "".join(map(_sent, self._writer.fail(error, request_id)))


def parts(message: Mapping[str, Any]) -> Iterator[Part]:
    """Yield what a message of a chat completion says, or the delta of a chunk."""
    if text := message.get("reasoning_content"):
        yield Part("reasoning", text)
    if text := message.get("content"):
        yield Part("content", text)
    for number, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") or {}
        yield Part(
            "call",
            function.get("arguments") or "",
            call.get("index", number),
            call.get("id") or "",
            function.get("name") or "",
        )


def arguments_of(text: str) -> dict[str, Any] | None:
    """Return the arguments of a call; None for those of a call that was cut, and any others that
    are no JSON object.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _sent(event: Event) -> str:
    data = json.dumps(event, allow_nan=False, separators=(",", ":"))
    return f"event: {event['type']}\ndata: {data}\n\n"


def _exhaust(events: Iterator[Event]) -> None:
    for _ in events:
        pass
