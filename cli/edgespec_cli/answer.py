"""One answer: events go to a sink, Ctrl-C ends the answer and not the program."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from .render import Screen, Status

if TYPE_CHECKING:
    import edgespec

_LONG_PROMPT = 256  # tokens still to be read that are worth a progress line


class Sink(Protocol):
    """Something that shows events: one method a type."""

    def prefill(self, event: edgespec.Event) -> None:
        """Prompt tokens were read."""

    def notice(self, event: edgespec.Event) -> None:
        """Something the user should know."""

    def token(self, event: edgespec.Event) -> None:
        """A token was emitted."""

    def done(self, event: edgespec.Event) -> None:
        """The answer is complete."""


class CtrlC:
    """While it is entered: the first Ctrl-C cancels the answer, the next one interrupts.

    hit: whether there was one.
    """

    def __init__(self, engine: edgespec.Engine) -> None:
        self.hit = False
        self._engine = engine
        self._before: Any = None

    def __enter__(self) -> CtrlC:
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.hit:
            raise KeyboardInterrupt
        self.hit = True
        self._engine.cancel()


def play(
    engine: edgespec.Engine, events: Iterator[edgespec.Event], sink: Sink
) -> tuple[edgespec.Completion | None, bool]:
    """Show an answer as it comes; what it was, and whether Ctrl-C ended it."""
    completion = None
    closing = contextlib.closing(events)  # type: ignore[type-var]
    with CtrlC(engine) as ctrl_c, closing:
        for event in events:
            getattr(sink, event.type)(event)
            completion = event.completion or completion
            if ctrl_c.hit and not completion:
                engine.cancel()  # the first call may have come before the request had begun
    return completion, ctrl_c.hit


class TextSink:
    """Text on the screen, progress of long prompts on a terminal. A context manager."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._status = Status()

    def __enter__(self) -> TextSink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._status.hide()
        if not isinstance(error, BrokenPipeError):
            self._screen.end_line()

    def prefill(self, event: edgespec.Event) -> None:
        """A transient line while a long prompt is read."""
        if event.n_total - event.n_done >= _LONG_PROMPT:
            self._status.show(f"reading the prompt: {event.n_done} of {event.n_total} tokens")

    def notice(self, event: edgespec.Event) -> None:
        """A remark."""
        self._status.hide()
        self._screen.remark(f"note: {event.text}")

    def token(self, event: edgespec.Event) -> None:
        """The text of a token, as far as it can be shown."""
        self._status.hide()
        self._screen.text(event.text, event.from_draft)

    def done(self, event: edgespec.Event) -> None:
        """The rest of the text."""
        self._status.hide()
        self._screen.text(event.text)
        self._screen.end_line()


class JsonSink:
    """One JSON object a line."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def emit(self, kind: str, **fields: Any) -> None:
        """One line; ASCII only, so that no encoding of stdout gets in its way."""
        self._screen.write(json.dumps({"type": kind} | fields, allow_nan=False) + "\n")

    def prefill(self, event: edgespec.Event) -> None:
        """How much of the prompt was read."""
        self.emit("prefill", n_done=event.n_done, n_total=event.n_total)

    def notice(self, event: edgespec.Event) -> None:
        """Something the user should know."""
        self.emit("notice", text=event.text)

    def token(self, event: edgespec.Event) -> None:
        """A token, with log-probabilities where they were asked for."""
        self.emit(
            "token",
            token=event.token,
            text=event.text,
            from_draft=event.from_draft,
            logprob=_logprob(event.logprob),
        )

    def done(self, event: edgespec.Event) -> None:
        """The whole answer: always the last line of one that did not fail."""
        whole = event.completion
        assert whole is not None
        self.emit(
            "done",
            text=whole.text,
            token_ids=list(whole.token_ids),
            finish_reason=whole.finish_reason,
            stop_reason=whole.stop_reason,
            stats=whole.stats.to_dict(),
        )


def _logprob(logprob: edgespec.Logprob | None) -> dict[str, Any] | None:
    if logprob is None:
        return None
    top = [[token, _finite(value)] for token, value in logprob.top]
    return {"logprob": _finite(logprob.logprob), "top": top}


def _finite(value: float) -> float | None:
    """JSON has no infinity: null is probability zero."""
    return value if math.isfinite(value) else None
