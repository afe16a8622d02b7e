"""One answer of a chat: its whole text, divided into content, reasoning and tool calls."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ..config import SamplingParams
from ..constraints.schemas import parsed
from ..types import Completion, Event
from . import messages

if TYPE_CHECKING:
    from .reader import Reader


class Reading:
    """Reads the answer of a model, event by event.

    reader: finds reasoning and calls; without a reader all text is content. begun: the text of an
    answer that is continued, or None for a new answer. said: all text of this request's answer.
    ids: the token ids of `said`. is_whole: True if the model itself ended the answer.
    """

    def __init__(
        self, reader: Reader | None, params: SamplingParams, begun: str | None = None
    ) -> None:
        self._reader = reader
        self._params = params
        self.begun = begun
        if reader:
            reader.feed(begun or "")
        self._n_before = (len(reader.content), len(reader.reasoning)) if reader else (0, 0)
        self.said = ""
        self.ids: list[int] = []
        self.has_ended = self.is_whole = False

    def take(self, event: Event) -> Event:
        """Return an event of the engine in the form in which the chat shows it."""
        if event.type not in ("token", "done"):
            return event
        self.said += event.text
        if event.token is not None:
            self.ids.append(event.token)
        whole = event.completion
        if whole:
            self.has_ended, self.is_whole = True, whole.finish_reason == "stop"
        if self._reader is None:
            return event
        parts = self._reader.feed(event.text)
        if whole:
            parts += self._reader.end(is_cut=not self.is_whole)
        content = "".join(part.text for part in parts if part.kind == "content")
        shown = event._replace(text=content, parts=tuple(parts))
        return shown._replace(completion=self._completed(whole, self._reader)) if whole else shown

    def so_far(self) -> messages.Message:
        """Return the text read so far as a message without calls. The answer may continue."""
        if self._reader is None:
            return self.message()
        return messages.answer(self._reader.content, self._reader.reasoning)

    def message(self) -> messages.Message:
        """Return the answer as a message of the conversation."""
        reader = self._reader
        if reader is None:
            return messages.answer((self.begun or "") + self.said)
        if not self.has_ended:
            reader.end(is_cut=True)
        return messages.answer(reader.content, reader.reasoning, reader.calls)

    def _completed(self, whole: Completion, reader: Reader) -> Completion:
        n_content, n_reasoning = self._n_before
        is_whole = self.is_whole and not isinstance(whole.stop_reason, str)
        return dataclasses.replace(
            whole,
            text=reader.content[n_content:],
            parsed=parsed(self._params, reader.content) if is_whole else None,
            reasoning=reader.reasoning[n_reasoning:],
            tool_calls=reader.calls,
        )
