"""Stopping an evaluation of onnxruntime from another thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from ...types import Abort

_POLL_S = 0.05


@contextlib.contextmanager
def watched(abort: Abort | None, options: Any) -> Iterator[None]:
    """Ask `abort` from another thread meanwhile; a reason ends the evaluation that runs with
    `options`.
    """
    if abort is None:
        yield
        return
    options.terminate = abort() is not None
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(_POLL_S):
            if abort():
                options.terminate = True
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
