"""Work in a thread of its own: for a deeper stack, or because nothing can stop it."""

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
_starting = threading.Lock()  # the size of stacks is the process's


def with_stack(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs in a thread with a stack of `size` bytes.

    Native code that calls itself too deeply ends the process, and the usual stack differs: 8 MB
    with glibc, 512 KB on macOS. Memory is taken only for what is used of it.
    """
    with _starting:
        before = threading.stack_size(size)
        try:
            result = _begun(work)
        finally:
            threading.stack_size(before)
    return result.result()


def in_thread(work: Callable[[], T], abort: Abort) -> T:
    """Return the result of `work`, which runs in a thread. Raises Aborted as soon as `abort` has a
    reason; the work goes on, for it cannot be stopped, and its result is lost.
    """
    result = _begun(work)
    while not concurrent.futures.wait([result], _POLL_S).done:
        if abort():
            raise Aborted("stopped while waiting for a thread")
    return result.result()


def _begun(work: Callable[[], T]) -> Future[T]:
    """Return the result to come of `work`, which runs in a new thread."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="edgespec-deep", daemon=True).start()
    return result
