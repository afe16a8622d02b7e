"""What goes to the terminal: text made harmless, colours, figures, progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    import edgespec

DIM, DRAFTED = "2", "32"

# C0 controls become their pictures (␛), C1 controls the replacement character: a terminal
# takes both for commands.
_HARMLESS = {c: 0x2400 + c for c in range(32) if chr(c) not in "\n\t"}
_HARMLESS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)

_ENDINGS = {
    "length": "stopped at the token limit",
    "context_full": "stopped: the context is full",
    "time_limit": "stopped at the time limit",
    "cancelled": "cancelled",
}


def neutral(text: str) -> str:
    """`text` without anything that a terminal would obey."""
    return text.translate(_HARMLESS)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether `stream` is a terminal; None (closed) is not."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def has_colours(stream: TextIO | None) -> bool:
    """A terminal, and nobody said NO_COLOR."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return is_terminal(stream) and not plain


class Screen:
    """Where answers are shown: text as it comes on stdout, remarks dim.

    On a terminal remarks follow the text; otherwise they go to stderr, and stdout holds the
    answers alone. clean: make control characters harmless, always or only on a terminal.
    """

    def __init__(self, *, show_drafts: bool = False, clean: bool = False) -> None:
        self._out = sys.stdout
        self.terminal = is_terminal(sys.stdout)
        self._clean = clean or self.terminal
        self._colours = has_colours(sys.stdout)
        self._drafts = show_drafts and self._colours
        self._at_line_start = True

    def text(self, text: str, drafted: bool = False) -> None:
        """A piece of an answer."""
        if not text:
            return
        text = neutral(text) if self._clean else text
        self._at_line_start = text.endswith("\n")
        self.write(_painted(text, DRAFTED) if drafted and self._drafts else text)

    def end_line(self) -> None:
        """The next thing starts on a line of its own."""
        if not self._at_line_start:
            self.write("\n")
            self._at_line_start = True

    def remark(self, text: str, *, stderr: bool = False) -> None:
        """A line that is not part of an answer, nor of what the answer is piped into."""
        if self.terminal:
            self.end_line()
        stream = self._out if self.terminal and not stderr else sys.stderr
        text = neutral(text)
        self.write((_painted(text, DIM) if has_colours(stream) else text) + "\n", stream)

    def write(self, text: str, stream: TextIO | None = None) -> None:
        """As it is, at once."""
        stream = stream or self._out
        if stream is not None:
            stream.write(text)
            stream.flush()


def _painted(text: str, code: str) -> str:
    """Each line painted by itself, so that a pager or a resize leaves no colour behind."""
    lines = (f"\x1b[{code}m{part}\x1b[0m" if part else "" for part in text.split("\n"))
    return "\n".join(lines)


def figures(completion: edgespec.Completion) -> str:
    """The quiet line after an answer."""
    stats = completion.stats
    n = stats.num_emitted_tokens
    parts = [f"{n} token{'' if n == 1 else 's'}"]
    if stats.tokens_per_second > 0:
        gain = f" ({stats.speedup:.2f}× plain)" if stats.speedup and stats.num_draft_steps else ""
        parts.append(f"{stats.tokens_per_second:.1f} tok/s{gain}")
    if n:
        parts.append(_speculation(stats))
        parts.append(f"first token {stats.time_to_first_token_s:.2f} s")
    parts.append(_ENDINGS.get(completion.finish_reason, ""))
    return " · ".join(part for part in parts if part)


def _speculation(stats: edgespec.Stats) -> str:
    if stats.num_draft_tokens:
        return (
            f"{stats.mean_acceptance_length:.2f} tokens a step "
            f"({stats.draft_acceptance_rate:.0%} of {stats.num_draft_tokens} drafted accepted)"
        )
    if stats.speculation.startswith("off"):
        return f"speculation {stats.speculation}"
    return f"nothing drafted ({stats.speculation})" if stats.speculation else ""


def size(n: int | None) -> str:
    """Bytes for people."""
    if n is None:
        return "size unknown"
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= step:
            return f"{n / step:.1f} {unit}"
    return f"{n} bytes"


def count(n: int) -> str:
    """A number of parameters: 135M, 1.5B."""
    return f"{n / 1e9:.1f}B".replace(".0B", "B") if n >= 1e9 else f"{n / 1e6:.0f}M"


class Status:
    """A line on stderr that disappears again; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._status: Any = None

    def show(self, text: str) -> None:
        """Show `text`, or change what is shown."""
        if not is_terminal(sys.stderr):
            return
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status("")
            self._status.start()
        from rich.text import Text

        self._status.update(Text(neutral(text)))

    def hide(self) -> None:
        """Take it away."""
        if self._status is not None:
            self._status.stop()
            self._status = None


@contextmanager
def status(text: str) -> Iterator[None]:
    """Show `text` on a terminal while the block runs."""
    line = Status()
    line.show(text)
    try:
        yield
    finally:
        line.hide()
