"""Show one answer: its events go to a sink, and Ctrl-C ends the answer, not the program."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from .render import Screen, Status, name

if TYPE_CHECKING:
    import edgespec

_LONG_PROMPT = 256  # tokens; a shorter prompt is read too quickly to show progress


class Sink(Protocol):
    """Shows the events of an answer, with one method for each type of event."""

    def prefill(self, event: edgespec.Event) -> None:
        """Show that prompt tokens were read."""

    def notice(self, event: edgespec.Event) -> None:
        """Show something that the user should know."""

    def token(self, event: edgespec.Event) -> None:
        """Show a token."""

    def done(self, event: edgespec.Event) -> None:
        """Show the end of the answer."""


class CtrlC:
    """A context in which the first Ctrl-C cancels the answer and the next one raises
    KeyboardInterrupt.

    hit: True once Ctrl-C was pressed.
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

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.hit:
            raise KeyboardInterrupt
        self.hit = True
        self._engine.cancel()

    _on_signal.ends_answers = True  # type: ignore[attr-defined]  # may end a running step


def play(
    engine: edgespec.Engine, events: Iterator[edgespec.Event], sink: Sink
) -> tuple[edgespec.Completion | None, bool]:
    """Show an answer while it is generated; return it, and True if Ctrl-C was pressed."""
    completion = None
    closing = contextlib.closing(events)  # type: ignore[type-var]
    with CtrlC(engine) as ctrl_c, closing:
        for event in events:
            getattr(sink, event.type)(event)
            completion = event.completion or completion
    return completion, ctrl_c.hit


class TextSink:
    """A context manager that writes the text to the screen, and shows on a terminal how far a long
    prompt has been read.

    n_calls: the number of tool calls that the answer has begun.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._status = Status()
        self.n_calls = 0

    def __enter__(self) -> TextSink:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._status.hide()
        if not isinstance(error, BrokenPipeError):
            self._screen.end_line()

    def prefill(self, event: edgespec.Event) -> None:
        """Show a line of progress if the prompt is long, or takes over a second to read."""
        is_long = event.picture or event.n_total - event.n_done >= _LONG_PROMPT
        doing = f"encoding {name(event.picture)}" if event.picture else "reading the prompt"
        text = f"{doing}: {event.n_done} of {event.n_total} tokens"
        self._status.show(text, 0.0 if is_long else 1.0)

    def notice(self, event: edgespec.Event) -> None:
        """Show a remark."""
        self._status.hide()
        self._screen.remark(f"note: {event.text}")

    def token(self, event: edgespec.Event) -> None:
        """Show the text that a token completes, and set reasoning apart. For a tool call, only show
        that one is being written.
        """
        if any(part.kind == "call" for part in event.parts):
            self._status.show("writing a call of a tool")
        else:
            self._status.hide()
        self._pieces(event)

    def done(self, event: edgespec.Event) -> None:
        """Show the rest of the text."""
        self._status.hide()
        self._pieces(event)
        self._screen.end_line()

    def _pieces(self, event: edgespec.Event) -> None:
        if not event.parts:
            self._screen.text(event.text, event.from_draft)
        for part in event.parts:
            if part.kind == "reasoning":
                self._screen.reasoning(part.text)
            elif part.kind == "content":
                self._screen.text(part.text, event.from_draft)
            elif part.name:
                self.n_calls += 1


class JsonSink:
    """Writes each event as a JSON object on its own line."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def emit(self, kind: str, **fields: Any) -> None:
        """Write an object as JSON in ASCII, which works with every encoding of stdout."""
        self._screen.write(json.dumps({"type": kind} | fields, allow_nan=False) + "\n")

    def prefill(self, event: edgespec.Event) -> None:
        """Write the number of prompt tokens read so far, and their total number."""
        shown = {"picture": event.picture} if event.picture else {}
        self.emit("prefill", n_done=event.n_done, n_total=event.n_total, **shown)

    def notice(self, event: edgespec.Event) -> None:
        """Write something that the user should know."""
        self.emit("notice", text=event.text)

    def token(self, event: edgespec.Event) -> None:
        """Write a token, with its log-probabilities if the request asked for them."""
        reasoning = "".join(part.text for part in event.parts if part.kind == "reasoning")
        self.emit(
            "token",
            token=event.token,
            text=event.text,
            from_draft=event.from_draft,
            logprob=_logprob(event.logprob),
            **({"reasoning": reasoning} if reasoning else {}),
        )

    def done(self, event: edgespec.Event) -> None:
        """Write the complete answer as the last line. A failed answer ends with an error."""
        whole = event.completion
        assert whole is not None
        self.emit(
            "done",
            text=whole.text,
            **({"reasoning": whole.reasoning} if whole.reasoning else {}),
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
    """Return None for infinity, which JSON does not have: a logprob of null is probability 0."""
    return value if math.isfinite(value) else None
