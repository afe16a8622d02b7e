"""The contract of APIs: they read a body as a question, and write its answers."""

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

REASONS = {
    "stop": "stop", "length": "length", "context_full": "length", "time_limit": "length",
    "repetition": "repetition",
}  # fmt: skip
"""Why an answer ended, in OpenAI's words, by our finish reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A question as an API has read it, and all that its answer needs besides.

    writer: makes what writes the answers. form: the field of the body that gives the answer a form,
    "" if none does. messages: the field that errors about the conversation name; tools: that of
    the parameters of each tool, by its name.
    """

    request: GenerationRequest
    writer: Callable[[PreparedRequest], Writer]
    model: str | None = None
    stream: bool = False
    form: str = ""
    messages: str = "messages"
    tools: Mapping[str, str] = field(default_factory=dict)


class PreparedRequest(NamedTuple):
    """A request as the engine takes it.

    prompts: token ids. constraint: what the answer has to follow, None for no limits. reader: finds
    reasoning and calls in it; None where there can be none. prediction: token ids.
    """

    prompts: Sequence[list[int]]
    constraint: Constraint | None = None
    reader: Reader | None = None
    prediction: Sequence[int] = ()


class ServedModel(NamedTuple):
    """The model that is served, as far as APIs tell of it.

    params: returns the settings of a request that names some fields of SamplingParams; raises
    ConfigError for values that are out of range or contradict each other.
    """

    model: str
    tokenizer: Tokenizer
    fingerprint: str
    params: Callable[[Mapping[str, Any]], SamplingParams]


class Answer:
    """One answer, as far as it has come.

    calls: those that were begun, the one that the answer's end cut among them. n_reasoning: how
    many of its tokens came up to the end of its reasoning. completion: once it has ended.
    """

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {"content": [], "reasoning": []}
        self._n_tokens = 0
        self.n_reasoning = 0
        self.calls: list[dict[str, Any]] = []
        self.completion: Completion | None = None

    def take(self, event: Event) -> None:
        """Add what an event says."""
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

    @property
    def content(self) -> str:
        """The text of it that is neither reasoning nor a call."""
        return "".join(self._texts["content"])

    @property
    def reasoning(self) -> str:
        """Its reasoning."""
        return "".join(self._texts["reasoning"])

    def parts(self) -> Iterator[Part]:
        """Yield all of it: reasoning, content, calls."""
        yield Part("reasoning", self.reasoning)
        yield Part("content", self.content)
        for index, call in enumerate(self.calls):
            yield Part("call", call["arguments"], index, call["id"], call["name"])

    @property
    def ended(self) -> Completion:
        """The completion, once it has ended."""
        assert self.completion
        return self.completion

    @property
    def finish_reason(self) -> str:
        """Why it ended, in OpenAI's words: calls are a reason of their own if they are complete."""
        reason = REASONS[self.ended.finish_reason]
        are_complete = self.calls and len(self.ended.tool_calls) == len(self.calls)
        return "tool_calls" if are_complete and reason == "stop" else reason


class Writer(ABC):
    """Writes the answers to one request, in pieces or as a whole.

    Pieces are server-sent events. Answers come one after the other: `begin`, `part` for each event,
    `end`; after all of them `close`, or `fail` at any time.
    """

    @abstractmethod
    def begin(self, index: int) -> Iterable[str]:
        """Return what is sent before an answer. index: its number."""

    @abstractmethod
    def part(self, index: int, event: Event) -> Iterable[str]:
        """Return what is sent for an event of an answer."""

    @abstractmethod
    def end(self, index: int, answer: Answer) -> Iterable[str]:
        """Return what is sent after an answer."""

    @abstractmethod
    def close(self, answers: Sequence[Answer]) -> Iterable[str]:
        """Return what is sent after all answers."""

    @abstractmethod
    def fail(self, error: ApiError, request_id: str) -> Iterable[str]:
        """Return what is sent where the answers break off."""

    @abstractmethod
    def whole(self, answers: Sequence[Answer]) -> Mapping[str, Any]:
        """Return the response with all answers."""


class BlockWriter(Writer):
    """Writes one answer as a row of blocks: reasoning, text, calls.

    A block is open until a part of another one comes. The whole answer is made of the same events
    as the pieces, so that both say the same, however the text was cut.
    """

    def __init__(self) -> None:
        self._open: tuple[str, int] | None = None

    def begin(self, index: int) -> Iterable[str]:
        """Return the events before the first part."""
        return map(named_event, self._begin())

    def part(self, index: int, event: Event) -> Iterable[str]:
        """Return the events that tell the parts of an event."""
        return [named_event(told) for part in parts_of(event) for told in self._take(part)]

    def end(self, index: int, answer: Answer) -> Iterable[str]:
        """Return the last events."""
        return map(named_event, self._end(answer))

    def close(self, answers: Sequence[Answer]) -> Iterable[str]:
        """Return nothing: there is one answer."""
        return ()

    def fail(self, error: ApiError, request_id: str) -> Iterable[str]:
        """Return the events that tell that the answer broke off."""
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
        """Close the open block, if there is one; cut: the answer ended inside it."""
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
        """Yield the events that tell that the answer broke off."""

    @abstractmethod
    def _whole(self) -> dict[str, Any]:
        """Return the whole answer, after its end."""

    @abstractmethod
    def _begin_block(self, part: Part) -> Iterator[dict[str, Any]]:
        """Begin the block of a part, without its text; yield the events that tell it."""

    @abstractmethod
    def _continue_block(self, part: Part) -> Iterator[dict[str, Any]]:
        """Add a part's text to the open block; yield the events that tell it."""

    @abstractmethod
    def _end_block(self, cut: bool) -> Iterator[dict[str, Any]]:
        """Yield the events that tell that the open block has ended."""


def parts_of(event: Event) -> Sequence[Part]:
    """Return the parts that an event adds to its answer; a notice is none."""
    if event.type == "notice":
        return ()
    return event.parts or ((Part("content", event.text),) if event.text else ())


def named_event(event: Mapping[str, Any]) -> str:
    """Return a server-sent event with a name, its `type`."""
    return f"event: {event['type']}\n{data_event(event)}"


def data_event(data: Mapping[str, Any]) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps(data, allow_nan=False, separators=(',', ':'))}\n\n"


def stats_of(answers: Sequence[Answer]) -> list[Stats]:
    """Return the statistics of answers that have ended."""
    return [answer.ended.stats for answer in answers]


def arguments_of(text: str) -> dict[str, Any] | None:
    """Return the arguments of a call; None for those of a call that was cut, and any others that
    are no JSON object.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
