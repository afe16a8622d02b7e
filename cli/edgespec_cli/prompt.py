"""Read what the user writes: from a pipe, or from a terminal with history and line editing."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import click

from .render import is_terminal

log = logging.getLogger(__name__)
_MOST_HISTORY = 16 << 20  # bytes


def read(file: BinaryIO, name: str) -> str:
    """Return the rest of an open file as text. Raises UsageError as `decoded`, and ConfigError for
    more than is read.
    """
    from edgespec import named_files

    return decoded(named_files.read_stream(file, name), name)


def decoded(data: bytes, name: str) -> str:
    """Return UTF-8 as text, without a byte order mark. Raises UsageError for anything else."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{name} is not UTF-8 (byte 0x{data[error.start]:02x} at {error.start}); "
            "convert it first, for example with iconv"
        ) from None


def piped_text() -> str:
    """Return all of stdin if something is piped in, else an empty text."""
    if sys.stdin is None or is_terminal(sys.stdin):
        return ""
    return read(sys.stdin.buffer, "the text on stdin")


def piped_lines() -> Iterator[tuple[str, bytes]]:
    """Yield each line of stdin as soon as it is there, as (name for messages, bytes)."""
    if sys.stdin is None:
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        yield f"line {number} of stdin", line.rstrip(b"\r\n")


@contextlib.contextmanager
def no_echo(*, forget: bool = False) -> Iterator[None]:
    """Keep what is typed meanwhile out of the text on the screen; the next prompt shows it, after
    Ctrl-C too.

    forget: throw away what was typed before.
    """
    try:
        import termios
    except ImportError:  # Windows, which shows nothing of it
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    flags = before[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
    silent = [*before[:3], flags, *before[4:]]
    termios.tcsetattr(sys.stdin, termios.TCSAFLUSH if forget else termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def pressed_key(ask: Callable[[], None]) -> str:
    """Ask something and return the key that is pressed then; what was typed before is no answer."""
    if sys.platform == "win32":
        ask()
        return click.getchar()
    with no_echo(forget=True):
        ask()
        return os.read(sys.stdin.fileno(), 32).decode("utf-8", "replace")


def history_file() -> Path:
    """Return the path of the file that keeps the lines typed, in the user's folder for state."""
    from edgespec.device import state_folder

    return state_folder() / "history"


def line_reader(commands: Iterable[str]) -> tuple[Callable[[], str], Callable[[], bool]]:
    """Return a function that reads a line: Enter sends, Alt-Enter begins a new line; and one that
    returns whether Ctrl-C was pressed after that Enter, while the terminal took it for a letter.

    The first raises EOFError for Ctrl-D. Ctrl-C clears what was typed, and raises
    KeyboardInterrupt if nothing was.
    """
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.keys import Keys

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    session: PromptSession[str] = PromptSession(
        history=_history(history_file()),
        multiline=True,
        key_bindings=keys,
        prompt_continuation=". ",
        completer=WordCompleter(list(commands), sentence=True),
        complete_while_typing=False,
        reserve_space_for_menu=0,
    )

    def read() -> str:
        while True:
            try:
                return session.prompt("> ")
            except KeyboardInterrupt:
                if not session.default_buffer.text:
                    raise

    def is_interrupted() -> bool:
        typed = get_typeahead(session.input)
        if sys.platform != "win32":
            typed += session.input.read_keys()
        rest = [press for press in typed if press.key != Keys.ControlC]
        store_typeahead(session.input, rest)  # the next line begins with it
        return len(rest) < len(typed)

    return read, is_interrupted


def _checked(path: Path) -> bytes:
    from edgespec import kept_files

    return kept_files.read(path, _MOST_HISTORY)


def _history(path: Path):  # type: ignore[no-untyped-def]
    from prompt_toolkit.history import FileHistory

    from edgespec import kept_files

    class History(FileHistory):
        """A file that only its owner can read; errors with it are only logged."""

        def load_history_strings(self) -> Iterable[str]:
            try:
                if kept_files.load(path, _checked, "it begins anew", is_users=True) is None:
                    return []
                return list(super().load_history_strings())
            except (OSError, ValueError) as error:
                log.info("history cannot be read: %s", error)
                return []

        def store_string(self, string: str) -> None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                if path.exists() and not path.is_file():
                    raise ValueError(f"{path} is no regular file")  # a pipe would block
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
                super().store_string(string)
            except (OSError, ValueError) as error:
                log.info("history cannot be written: %s", error)

    return History(str(path))
