"""Read the user's text from a pipe, or from a terminal with history and line editing."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from .render import is_terminal

if TYPE_CHECKING:
    import edgespec

log = logging.getLogger(__name__)
_MOST_HISTORY = 16 << 20  # bytes


def read(file: BinaryIO, name: str) -> str:
    """Return the rest of an open file as text. Raises UsageError as `decoded` does, and ConfigError
    if the file is too long.
    """
    from edgespec import named_files

    return decoded(named_files.read_stream(file, name), name)


def decoded(data: bytes, name: str) -> str:
    """Decode UTF-8 without its byte order mark. Raises UsageError for other bytes.

    name: names the data in the error.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{name} is not UTF-8 (byte 0x{data[error.start]:02x} at {error.start}); "
            "convert it first, for example with iconv"
        ) from None


def pictures(params: Mapping[str, Any]) -> list[edgespec.Picture]:
    """Return the pictures that --image names. Raises ConfigError if one cannot be read."""
    if not params["images"]:
        return []
    import edgespec

    return [edgespec.picture(path) for path in params["images"]]


def piped_text() -> str:
    """Return all of stdin if it is a pipe or a file, "" if it is a terminal or closed."""
    if sys.stdin is None or is_terminal(sys.stdin):
        return ""
    return read(sys.stdin.buffer, "the text on stdin")


def piped_lines() -> Iterator[tuple[str, bytes]]:
    """Yield each line of stdin as soon as it arrives, as (name for messages, bytes)."""
    if sys.stdin is None:
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        yield f"line {number} of stdin", line.rstrip(b"\r\n")


@contextlib.contextmanager
def no_echo(*, forget: bool = False) -> Iterator[None]:
    """Do not echo keys that are typed in this block. The next prompt shows them, also after Ctrl-C.

    forget: discard keys that were typed before the block.
    """
    try:
        import termios
    except ImportError:  # Windows does not echo them
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
    """Call `ask`, which shows a question, and return the key that is pressed after it. Keys that
    were typed before it are discarded.
    """
    if sys.platform == "win32":
        ask()
        return click.getchar()
    with no_echo(forget=True):
        ask()
        return os.read(sys.stdin.fileno(), 32).decode("utf-8", "replace")


def history_file() -> Path:
    """Return the path of the history of typed lines, a file in the user's state folder."""
    from edgespec.device import state_folder

    return state_folder() / "history"


def line_reader(commands: Iterable[str]) -> tuple[Callable[[], str], Callable[[], bool]]:
    """Return two functions, `read` and `is_interrupted`.

    `read` returns the text that the user types: Enter sends it, and Alt-Enter begins a new line. It
    raises EOFError for Ctrl-D. Ctrl-C clears the text, or raises KeyboardInterrupt if it is empty.
    `is_interrupted` returns True if Ctrl-C was pressed just after Enter, when the terminal still
    took it for an ordinary key.
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
        """A history in a file that only its owner can read. File errors are only logged."""

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
