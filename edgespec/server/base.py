"""The contract of an API: it parses the body of a request and writes the answers."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..backends.base import Tokenizer
from ..chat.reader import Reader
from ..chat.request import GenerationRequest
from ..config import SamplingParams
from ..sampling.base import Constraint
from ..types import Completion, Event, Part, Stats
from .errors import ApiError
from .filling import Filling

REASONS = {
    "stop": "stop", "length": "length", "context_full": "length", "time_limit": "length",
    "repetition": "repetition",
}  # fmt: skip
"""OpenAI's finish reason for each of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A request as an API has parsed it, and what is needed to write its answers.

    writer: makes the writer of the answers. form: the field of the body that gives the answer a
    form, "" if none does. messages: the field to name in errors about the conversation. tools: for
    each tool's name, the field to name in errors about its parameters. places: for each message of
    the request, its place in the body; none if the messages are those of the body. watch: makes a
    function for an answer, which is called with the event of each token; when it returns True, the
    answer ends with the reason "time_limit".
    """

    request: GenerationRequest
    writer: Callable[[PreparedRequest], Writer]
    model: str | None = None
    stream: bool = False
    form: str = ""
    messages: str = "messages"
    tools: Mapping[str, str] = field(default_factory=dict)
    places: Sequence[str] = ()
    watch: Callable[[], Callable[[Event], bool]] | None = None

    @property
    def message_places(self) -> Sequence[str]:
        """The place in the body of each message."""
        n = len(self.request.messages)
        return self.places or [f"{self.messages}[{i}]" for i in range(n)]


class PreparedRequest(NamedTuple):
    """A request as the engine takes it.

    prompts: the token ids of each prompt. constraint: the constraint on the answer, None if there
    is none. readers: one for each choice, which finds reasoning and calls in it; none if answers
    can have neither. prediction: the token ids of a predicted output.
    """

    prompts: Sequence[list[int]]
    constraint: Constraint | None = None
    readers: Sequence[Reader] = ()
    prediction: Sequence[int] = ()


class ServedModel(NamedTuple):
    """The facts about the served model that APIs need.

    filling: how it fills in the middle of texts. params: returns the sampling settings of a
    request, given the fields of SamplingParams in the request. It raises ConfigError if values are
    out of range or contradict each other.
    """

    model: str
    tokenizer: Tokenizer
    fingerprint: str
    params: Callable[[Mapping[str, Any]], SamplingParams]
    filling: Filling


class Answer:
    """One answer, as far as it has been generated.

    calls: the calls that have begun, including one that a limit cut off. If the model ends the
    answer, only complete calls are left: the text of the others is content.
    n_reasoning: the number of tokens until the end of the reasoning. completion: None until the
    answer has ended.
    """

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {"content": [], "reasoning": []}
        self._n_tokens = 0
        self.n_reasoning = 0
        self.calls: list[dict[str, Any]] = []
        self.completion: Completion | None = None

    def take(self, event: Event) -> None:
        """Add the parts of an event, and its completion if it has one."""
        self._n_tokens += event.token is not None
        for part in parts_of(event):
            if part.kind != "call":
                self._texts[part.kind].append(part.text)
                if part.kind == "reasoning":
                    self.n_reasoning = self._n_tokens
            elif part.id:
                self.calls.append({"id": part.id, "name": part.name, "arguments": part.text})
            else:
                self.calls[part.index]["arguments"] += part.text
        self.completion = event.completion
        if self.completion and self.completion.finish_reason == "stop":
            ids = {call.id for call in self.completion.tool_calls}
            self.calls = [call for call in self.calls if call["id"] in ids]

    @property
    def content(self) -> str:
        """The text of the answer that is neither reasoning nor a call."""
        return "".join(self._texts["content"])

    @property
    def reasoning(self) -> str:
        """The reasoning of the answer."""
        return "".join(self._texts["reasoning"])

    def parts(self) -> Iterator[Part]:
        """Yield the whole answer: its reasoning, its content, then its calls."""
        yield Part("reasoning", self.reasoning)
        yield Part("content", self.content)
        for index, call in enumerate(self.calls):
            yield Part("call", call["arguments"], index, call["id"], call["name"])

    @property
    def ended(self) -> Completion:
        """The completion of an answer that has ended."""
        assert self.completion
        return self.completion

    @property
    def finish_reason(self) -> str:
        """OpenAI's finish reason. "stop" becomes "tool_calls" if all calls are complete."""
        reason = REASONS[self.ended.finish_reason]
        are_complete = self.calls and len(self.ended.tool_calls) == len(self.calls)
        return "tool_calls" if are_complete and reason == "stop" else reason


class Writer(ABC):
    """Writes the answers to one request, in pieces or as one response.

    Pieces are server-sent events. `opening` is called first, while the request may still wait. For
    each answer, `begin` is called, then `part` for each event, then `end`; several answers may be
    under way at once. After all answers `close` is called. `alive` and `fail` may be called at any
    time after `opening`.
    """

    def opening(self) -> Iterable[str]:
        """Return the pieces to send before anything is known of an answer."""
        return ()

    def alive(self) -> str:
        """Return a piece without content, which shows that the server is still at work."""
        return ": ping\n\n"  # a comment, which clients skip

    @abstractmethod
    def begin(self, index: int) -> Iterable[str]:
        """Return the pieces that begin an answer. index: the number of the answer."""

    @abstractmethod
    def part(self, index: int, event: Event) -> Iterable[str]:
        """Return the pieces for an event of an answer."""

    @abstractmethod
    def end(self, index: int, answer: Answer) -> Iterable[str]:
        """Return the pieces that end an answer."""

    @abstractmethod
    def close(self, answers: Sequence[Answer]) -> Iterable[str]:
        """Return the pieces that follow all answers."""

    @abstractmethod
    def fail(self, error: ApiError, request_id: str) -> Iterable[str]:
        """Return the pieces that report an error, after which nothing is sent."""

    @abstractmethod
    def whole(self, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """Return the response with all answers."""


class BlockWriter(Writer):
    """Writes one answer as a sequence of blocks: reasoning, text, calls.

    A block stays open until a part of a different block comes. `whole` builds the response with
    the same methods as the pieces, so that both have the same content however the text was split.
    """

    def __init__(self) -> None:
        self._open: tuple[str, int] | None = None

    def opening(self) -> Iterable[str]:
        """Return the events before the first part."""
        return map(named_event, self._begin())

    def begin(self, index: int) -> Iterable[str]:
        """Return nothing: there is only one answer, and `opening` has begun it."""
        return ()

    def part(self, index: int, event: Event) -> Iterable[str]:
        """Return the server-sent events for the parts of an engine's event."""
        return [named_event(told) for part in parts_of(event) for told in self._take(part)]

    def end(self, index: int, answer: Answer) -> Iterable[str]:
        """Return the last events."""
        return map(named_event, self._end(answer))

    def close(self, answers: Sequence[Answer]) -> Iterable[str]:
        """Return nothing: there is only one answer, and `end` has ended it."""
        return ()

    def fail(self, error: ApiError, request_id: str) -> Iterable[str]:
        """Return the events that report an error."""
        return map(named_event, self._fail(error, request_id))

    def whole(self, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """Return the whole answer."""
        (answer,) = answers
        for part in answer.parts():
            for _ in self._take(part):
                pass
        for _ in self._end(answer):
            pass
        return self._whole()

    def _take(self, part: Part) -> Iterator[dict[str, Any]]:
        block = (part.kind, part.index)
        if not part.text and (part.kind != "call" or block == self._open):
            return
        if block != self._open:
            yield from self._close_block()
            self._open = block
            yield from self._begin_block(part)
        if part.text:
            yield from self._continue_block(part)

    def _close_block(self, *, cut: bool = False) -> Iterator[dict[str, Any]]:
        """Close the open block, if there is one. cut: the answer ended inside the block."""
        if self._open:
            yield from self._end_block(cut)
            self._open = None

    @abstractmethod
    def _begin(self) -> Iterator[dict[str, Any]]:
        """Yield the events before the first part."""

    @abstractmethod
    def _end(self, answer: Answer) -> Iterator[dict[str, Any]]:
        """Close the answer; yield its last events."""

    @abstractmethod
    def _fail(self, error: ApiError, request_id: str) -> Iterator[dict[str, Any]]:
        """Yield the events that report an error."""

    @abstractmethod
    def _whole(self) -> dict[str, Any]:
        """Return the whole answer, after its end."""

    @abstractmethod
    def _begin_block(self, part: Part) -> Iterator[dict[str, Any]]:
        """Begin the block of a part, without the part's text; yield the events for this."""

    @abstractmethod
    def _continue_block(self, part: Part) -> Iterator[dict[str, Any]]:
        """Add a part's text to the open block; yield the events for this."""

    @abstractmethod
    def _end_block(self, cut: bool) -> Iterator[dict[str, Any]]:
        """End the open block; yield the events for this. cut: the answer ended inside the block."""


def parts_of(event: Event) -> Sequence[Part]:
    """Return the parts that an event adds to its answer; a notice adds none."""
    if event.type == "notice":
        return ()
    return event.parts or ((Part("content", event.text),) if event.text else ())


def named_event(event: Mapping[str, Any]) -> str:
    """Return a server-sent event as text, with the event's `type` as its name."""
    return f"event: {event['type']}\n{data_event(event)}"


def data_event(data: Mapping[str, Any]) -> str:
    """Return a server-sent event without a name, as text."""
    return f"data: {json.dumps(data, allow_nan=False, separators=(',', ':'))}\n\n"


def stats_of(answers: Sequence[Answer]) -> list[Stats]:
    """Return the statistics of answers that have ended."""
    return [answer.ended.stats for answer in answers]


def notes_of(completion: Completion) -> dict[str, Any]:
    """Return the notes of an answer as the field `notes`, nothing if there are none."""
    return {"notes": list(completion.notes)} if completion.notes else {}


def arguments_of(text: str) -> dict[str, Any] | None:
    """Return the arguments of a call, or None if they are not a JSON object, for example because
    the call was cut off.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
