"""Work that needs a deeper stack than threads usually have."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

_starting = threading.Lock()  # the size of stacks is the process's


def with_stack(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs in a thread with a stack of `size` bytes.

    Native code that calls itself too deeply ends the process, and the usual stack differs: 8 MB
    with glibc, 512 KB on macOS. Memory is taken only for what is used of it.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    with _starting:
        before = threading.stack_size(size)
        try:
            threading.Thread(target=run, name="edgespec-deep", daemon=True).start()
        finally:
            threading.stack_size(before)
    return result.result()
