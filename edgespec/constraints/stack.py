"""Work in a separate thread: with a deeper stack, or to stop waiting for it."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from ..errors import Aborted
from ..types import Abort

T = TypeVar("T")

_POLL_S = 0.02
_starting = threading.Lock()  # the stack size of new threads is set for the complete process


def with_stack(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs in a thread with a stack of `size` bytes.

    Native code that recurses too deeply ends the process, and the default size differs: 8 MB with
    glibc, 512 KB on macOS. Only the part of the stack that is used takes memory.
    """
    with _starting:
        before = threading.stack_size(size)
        try:
            result = _begun(work)
        finally:
            threading.stack_size(before)
    return result.result()


def in_thread(work: Callable[[], T], abort: Abort) -> T:
    """Return the result of `work`, which runs in a thread.

    Raises Aborted as soon as `abort` returns a reason. The work then goes on, because it cannot be
    stopped, and its result is lost.
    """
    result = _begun(work)
    while not concurrent.futures.wait([result], _POLL_S).done:
        if abort():
            raise Aborted("stopped while waiting for a thread")
    return result.result()


def _begun(work: Callable[[], T]) -> Future[T]:
    """Start `work` in a new thread, and return the future of its result."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="edgespec-deep", daemon=True).start()
    return result
