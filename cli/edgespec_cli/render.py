"""Terminal output: text without control characters, colours, tables, figures and progress."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    import edgespec

DIM, DRAFTED = "2", "32"

# A terminal obeys control characters as commands. So C0 characters are shown as pictures (␛), and
# C1 characters as the replacement character.
_HARMLESS = {c: 0x2400 + c for c in range(32) if chr(c) not in "\n\t"}
_HARMLESS |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)

_ENDINGS = {
    "length": "stopped at the token limit",
    "context_full": "stopped: the context is full",
    "time_limit": "stopped at the time limit",
    "repetition": "stopped: it repeats itself",
    "cancelled": "cancelled",
}


def neutral(text: str) -> str:
    """Return `text` with its control characters, which a terminal would obey, made visible."""
    return text.translate(_HARMLESS)


def name(text: str) -> str:
    """Return `text` as one line with all invisible characters escaped. Names of files and models
    come from outside: they could move the cursor or reverse the direction of the text after them.
    """
    shown = neutral(text).replace("\n", "␊").replace("\t", "␉")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def names(text: str) -> str:
    """Return text with each line treated by `name`: line breaks are ours and stay."""
    return "\n".join(map(name, text.split("\n")))


class StdoutError(click.ClickException):
    """Raised if standard output cannot be written for any reason but a closed pipe."""


_stderr: list[Callable[[str], None]] = []  # functions that take lines for stderr; the last is used


@contextmanager
def said_through(write: Callable[[str], None]) -> Iterator[None]:
    """Send lines for stderr to `write` instead, so that a server's log has one format."""
    _stderr.append(write)
    try:
        yield
    finally:
        _stderr.pop()


def _echo(text: str, *, err: bool = False) -> None:
    """Write a line. Raises StdoutError, or BrokenPipeError if the reader has closed the pipe."""
    if err and _stderr:
        return _stderr[-1](text)
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        raise
    except OSError as error:
        if err:
            raise
        from edgespec import kept_files

        why = kept_files.obstacle(error, "send it to a file")
        raise StdoutError(f"standard output cannot be written: {why}") from None


def prepare_streams() -> None:
    """Make stdout and stderr UTF-8, whatever the locale says, unless they are terminals or
    PYTHONIOENCODING names another encoding. They print "?" for what they cannot encode.
    """
    named = os.environ.get("PYTHONIOENCODING")
    for stream in (sys.stdout, sys.stderr):
        encoding = None if named or is_terminal(stream) else "utf-8"
        with suppress(AttributeError, ValueError):
            stream.reconfigure(encoding=encoding, errors="replace")  # type: ignore[union-attr]


def say(text: str = "", *, err: bool = False) -> None:
    """Write a line to stdout or stderr, escaped by `name` because it may contain foreign text.

    On a terminal, a long line is wrapped at words.
    """
    text, stream = name(text), sys.stderr if err else sys.stdout
    width = _columns(stream) if is_terminal(stream) else len(text)
    _echo(text if len(text) <= width else _wrapped(text, width, 0), err=err)


def say_lines(text: str) -> None:
    """Write several lines to stdout, each escaped by `name`."""
    _echo(names(text))


def say_wrapped(text: str, indent: str = "") -> None:
    """Write a text to stdout, wrapped at words if stdout is a terminal."""
    import textwrap

    screen = console()
    width = screen.width if screen.is_terminal else 10_000
    say_lines(textwrap.fill(name(text), width, initial_indent=indent, subsequent_indent=indent))


def say_json(value: Any, indent: int | None = 2) -> None:
    """Write a value to stdout as JSON in ASCII, which has no control characters."""
    _echo(json.dumps(value, indent=indent))


def say_path(path: Path) -> None:
    """Write a path to stdout: escaped by `name` on a terminal, unchanged for programs."""
    print(name(str(path)) if is_terminal(sys.stdout) else path, flush=True)


def confirm(question: str) -> bool:
    """Ask a question on stderr; return True if the user agrees."""
    return bool(click.confirm(name(question), err=True))


def is_terminal(stream: TextIO | None) -> bool:
    """Return True if `stream` is a terminal. None stands for a closed stream."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def has_colours(stream: TextIO | None) -> bool:
    """Return True if `stream` is a terminal with colours and NO_COLOR is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return is_terminal(stream) and not plain


class Screen:
    """Shows answers on stdout while they are generated, and remarks in a dim colour.

    If stdout is a terminal, remarks follow the text there. Otherwise they go to stderr, and stdout
    gets only the answers. clean: replace control characters even if stdout is not a terminal.
    """

    def __init__(self, *, show_drafts: bool = False, clean: bool = False) -> None:
        self._out = sys.stdout
        self.terminal = is_terminal(sys.stdout)
        self._clean = clean or self.terminal
        self._colours = has_colours(sys.stdout)
        self._drafts = show_drafts and self._colours
        self._at_line_start = True
        self._in_reasoning = False

    def text(self, text: str, drafted: bool = False) -> None:
        """Write a piece of an answer."""
        if not text:
            return
        self._end_reasoning()
        text = neutral(text) if self._clean else text
        self._at_line_start = text.endswith("\n")
        self.write(_painted(text, DRAFTED) if drafted and self._drafts else text)

    def reasoning(self, text: str) -> None:
        """Write a piece of the model's reasoning, if stdout is a terminal."""
        if not text or not self.terminal:
            return
        if not self._in_reasoning and not self._colours:
            text = f"reasoning: {text}"
        self._in_reasoning = True
        text = neutral(text)
        self._at_line_start = text.endswith("\n")
        self.write(_painted(text, DIM) if self._colours else text)

    def _end_reasoning(self) -> None:
        """Write an empty line after reasoning, if reasoning was written last."""
        if self._in_reasoning:
            self._in_reasoning = False
            self.end_line()
            self.write("\n")

    def end_line(self) -> None:
        """Start a new line unless one has just begun."""
        if not self._at_line_start:
            self.write("\n")
            self._at_line_start = True

    def remark(self, text: str, *, stderr: bool = False, indent: int = 0) -> None:
        """Write a remark: a line that is not part of an answer, and never goes into a pipe with it.

        On a terminal, it is wrapped at words. indent: the number of blanks before the second and
        later lines. stderr: write to stderr even if stdout is a terminal.
        """
        if self.terminal:
            self._in_reasoning = False
            self.end_line()
        stream = self._out if self.terminal and not stderr else sys.stderr
        text = name(text)
        text = _wrapped(text, _columns(stream), indent) if is_terminal(stream) else text
        self.write((_painted(text, DIM) if has_colours(stream) else text) + "\n", stream)

    def write(self, text: str, stream: TextIO | None = None) -> None:
        """Write `text` unchanged, and flush the stream."""
        stream = stream or self._out
        if stream is not None:
            stream.write(text)
            stream.flush()


def _painted(text: str, code: str) -> str:
    """Return text with each line coloured separately, so that a pager or a resize of the terminal
    does not colour the text after it.
    """
    lines = (f"\x1b[{code}m{part}\x1b[0m" if part else "" for part in text.split("\n"))
    return "\n".join(lines)


def _columns(stream: TextIO | None) -> int:
    """Return the width of a terminal in characters, 80 if it is unknown."""
    try:
        given = int(os.environ.get("COLUMNS", 0))
        return given or os.get_terminal_size(stream.fileno() if stream else 1).columns or 80
    except (OSError, ValueError):
        return 80


def _wrapped(text: str, width: int, indent: int) -> str:
    lines = textwrap.wrap(
        text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines)


def figures(completion: edgespec.Completion, others: float = 0.0, *, why: bool = True) -> str:
    """Return the line of figures that follows an answer.

    others: the number of cores that other programs used during the answer. why: if nothing was
    drafted, give the reason.
    """
    from edgespec.device import BUSY

    stats = completion.stats
    if not completion.token_ids and completion.finish_reason == "cancelled":
        return "cancelled before its first token"
    reason: str = completion.finish_reason
    parts = [counted(stats.num_emitted_tokens, "token")]
    if stats.tokens_per_second > 0:
        is_fair = reason != "repetition" and others <= BUSY  # repetitions are too easy to draft
        gain = stats.speedup if is_fair else None
        times = f", {gain:.2f} times as fast as without speculation" if gain else ""
        parts.append(f"{stats.tokens_per_second:.1f} tokens/s{times}")
    if stats.num_draft_tokens:
        parts.append(
            f"{stats.mean_acceptance_length:.2f} tokens a step, {stats.draft_acceptance_rate:.0%} "
            f"of {stats.num_draft_tokens} drafted tokens accepted"
        )
    if stats.num_emitted_tokens:
        if not stats.num_draft_tokens:
            parts.append(_speculation(stats, others) if why else "nothing drafted")
        parts.append(f"first token after {stats.time_to_first_token_s:.2f} s")
    if stats.num_draft_tokens and others > BUSY:
        parts.append(f"other programs used {others:.1f} cores, so the gain is not known")
    parts.append(_ENDINGS.get(reason, ""))
    return " · ".join(part for part in parts if part)


def advice(completion: edgespec.Completion) -> str:
    """Return advice against an answer that repeats itself without end, "" for other answers."""
    if completion.finish_reason != "repetition":
        return ""
    return (
        "the answer repeated the same words without end; other words, --temp 0.7, a system prompt "
        "or a larger model help, and with -n N it goes on for N tokens"
    )


def _speculation(stats: edgespec.Stats, others: float) -> str:
    """Return the part of the figures that says why nothing was drafted."""
    from edgespec.device import BUSY

    if "costs are not measured yet" in stats.speculation:
        from .arguments import advised
        from .loading import cannot_keep_costs

        if others > BUSY:
            return (
                "speculation off: its costs cannot be measured while other programs use "
                f"{others:.1f} cores; stop them, or run {advised('tune', '--busy')} once if they "
                "never stop"
            )
        if refusal := cannot_keep_costs():
            return f"speculation off: its costs are not known and cannot be kept: {refusal}"
        return f"speculation {stats.speculation}; {advised('tune')} measures them now"
    if stats.speculation.startswith("off"):
        return f"speculation {stats.speculation}"
    return f"nothing drafted ({stats.speculation})" if stats.speculation else "nothing drafted"


def size(n: int | None) -> str:
    """Return a number of bytes for people to read, such as 1.2 GB."""
    if n is None:
        return "size unknown"
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= step:
            return f"{n / step:.1f} {unit}"
    return f"{n} bytes"


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, such as "1 file" or "2 files"."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def count(n: int) -> str:
    """Return a number of parameters for people to read, such as 135M or 1.5B."""
    return f"{n / 1e9:.1f}B".replace(".0B", "B") if n >= 1e9 else f"{n / 1e6:.0f}M"


def console() -> Console:
    """Return a rich console for tables. It wraps lines only if stdout is a terminal."""
    from rich.console import Console

    of_terminal = Console(highlight=False)
    return of_terminal if of_terminal.is_terminal else Console(highlight=False, width=10_000)


def table(
    titles: tuple[str, ...],
    rows: Iterable[tuple[str, ...]],
    *,
    drop: Iterable[str] = (),
    wrap: Collection[str] = (),
) -> None:
    """Print rows under titles. If stdout is not a terminal, each row is one line.

    No cell is ever cut, and no word is broken. If a terminal is too narrow, columns of `drop` are
    removed, in this order. Columns of `wrap` are texts that may be wrapped at blanks. If the other
    columns still do not fit, each cell is printed on its own line after its title.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [[name(cell) for cell in row] for row in rows]
    columns = {title: [title, *(row[at] for row in cells)] for at, title in enumerate(titles)}
    screen = console()
    if screen.is_terminal:
        _drop(columns, drop, wrap, screen.width)
    if sum(_least(columns, wrap).values()) + _BESIDE * len(columns) + 1 > screen.width:
        _show_rows(columns)
        return
    grid = Table(box=box.SIMPLE_HEAD if screen.is_terminal else None)
    for title, width in _widths(columns, wrap, screen.width).items():
        grid.add_column(title, overflow="fold", width=width)
    for row in list(zip(*columns.values(), strict=True))[1:]:
        grid.add_row(*map(Text, row))
    show(grid)


_LEAST_TEXT = 16  # least width, in characters, that a column of wrapped text should have
_BESIDE = 3  # characters of the border and blanks next to each cell


def _least(columns: dict[str, list[str]], wrap: Collection[str]) -> dict[str, int]:
    """Return the least width in characters with which each column breaks no word."""
    return {
        title: _longest(" ".join(texts).split() if title in wrap else texts)
        for title, texts in columns.items()
    }


def _drop(
    columns: dict[str, list[str]], drop: Iterable[str], wrap: Collection[str], most: int
) -> None:
    """Remove the columns of `drop`, in this order, until the table is at most `most` wide."""
    least = {
        title: max(_LEAST_TEXT, width) if title in wrap else width
        for title, width in _least(columns, wrap).items()
    }
    for title in drop:
        if sum(least.values()) + _BESIDE * len(least) + 1 <= most:
            return
        del least[title], columns[title]


def _widths(columns: dict[str, list[str]], wrap: Collection[str], most: int) -> dict[str, int]:
    """Return the width of each column. All columns get their least width; text columns share the
    remaining width, narrow ones first.
    """
    widths = _least(columns, wrap)
    left = most - _BESIDE * len(columns) - 1 - sum(widths.values())
    texts = sorted((t for t in columns if t in wrap), key=lambda title: _longest(columns[title]))
    for n_left, title in zip(range(len(texts), 0, -1), texts, strict=True):
        more = min(_longest(columns[title]) - widths[title], left // n_left)
        widths[title] += more
        left -= more
    return widths


def _show_rows(columns: dict[str, list[str]]) -> None:
    """Print a table that is too wide: each cell on its own line, after its title."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=_longest(columns))
    grid.add_column(overflow="fold")  # break words that are longer than a line
    for row in list(zip(*columns.values(), strict=True))[1:]:
        for title, cell in zip(columns, row, strict=True):
            grid.add_row(Text(title), Text(cell))
        grid.add_row()
    show(grid)


def _longest(texts: Iterable[str]) -> int:
    """Return the width in characters of the longest text on the screen."""
    from rich.cells import cell_len

    return max(map(cell_len, texts))


def show(grid: Table) -> None:
    """Print a table. If stdout is not a terminal, blanks at the ends of lines are removed."""
    screen = console()
    if screen.is_terminal:
        screen.print(grid)
        return
    with screen.capture() as printed:
        screen.print(grid)
    for line in printed.get().splitlines():
        print(line.rstrip())


_shown: list[Status] = []  # the status lines that are on the screen


@contextmanager
def without_status() -> Iterator[None]:
    """Hide the status lines while something else is written to stderr."""
    shown = tuple(_shown)
    for line in shown:
        line.pause()
    try:
        yield
    finally:
        for line in shown:
            line.go_on()


class Status:
    """A temporary line on stderr. If stderr is not a terminal, nothing is shown."""

    def __init__(self) -> None:
        self._status: Any = None
        self._text = ""
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def show(self, text: str, after_s: float = 0.0) -> None:
        """Show `text` in the line. after_s: seconds until a line that is hidden appears."""
        if not is_terminal(sys.stderr):
            return
        with self._lock:
            self._text = text
            if self._status or not after_s:
                self._update()
            elif self._timer is None:
                self._timer = threading.Timer(after_s, self._appear)
                self._timer.daemon = True
                self._timer.start()

    def hide(self) -> None:
        """Remove the line."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._status is not None:
                self._status.stop()
                self._status = None
                _shown.remove(self)

    def pause(self) -> None:
        """Hide the line until `go_on`."""
        with self._lock:
            if self._status is not None:
                self._status.stop()

    def go_on(self) -> None:
        """Show the line again after `pause`."""
        with self._lock:
            if self._status is not None:
                self._status.start()

    def _appear(self) -> None:
        with self._lock:
            if self._timer is not None:  # else `hide` was called in the meantime
                self._update()

    def _update(self) -> None:
        from rich.console import Console
        from rich.text import Text

        if self._status is None:
            self._status = Console(stderr=True).status("")
            self._status.start()
            _shown.append(self)
        self._status.update(Text(name(self._text)))


@contextmanager
def status(text: str = "") -> Iterator[Status]:
    """Yield a status line that shows `text` at first, and disappears when the block ends."""
    line = Status()
    if text:
        line.show(text)
    try:
        yield line
    finally:
        line.hide()


@contextmanager
def told() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the steps of work that may take minutes. It writes to a status
    line, or to separate lines if stderr is not a terminal.
    """
    if is_terminal(sys.stderr):
        with status() as line:
            yield line.show
        return

    def show(text: str) -> None:
        if sys.stderr is not None:
            say(text, err=True)

    yield show
