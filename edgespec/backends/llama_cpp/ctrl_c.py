"""Ctrl-C while native code runs."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def noting_ctrl_c(note: Callable[[], None]) -> Iterator[None]:
    """Call `note` when Ctrl-C is pressed, instead of raising KeyboardInterrupt: an exception that
    is raised within a callback of native code is lost. The caller has to raise it afterwards.

    Outside the main thread, and if the program has a Ctrl-C handler of its own, this does nothing.
    """
    on_main = threading.current_thread() is threading.main_thread()
    if not on_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def noted(*_: object) -> None:
        note()

    noted.ends_answers = True  # type: ignore[attr-defined]  # see `Watch`
    signal.signal(signal.SIGINT, noted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def ctrl_c_afterwards() -> Iterator[None]:
    """Hold Ctrl-C back: raise KeyboardInterrupt at the end of the block if it was pressed
    meanwhile. This is for work that is done once and must not be left half done.
    """
    pressed = threading.Event()
    with noting_ctrl_c(pressed.set):
        yield
    if pressed.is_set():
        raise KeyboardInterrupt
