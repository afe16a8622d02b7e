"""Stopping an evaluation of onnxruntime from another thread."""

from __future__ import annotations

from typing import Any

from ...errors import Aborted, DecodeError
from ...types import Abort
from ..watch import Watch
from .session import ort, plainly


class AbortableRun:
    """Evaluations that the caller's `abort` or Ctrl-C can stop between two operations."""

    def __init__(self, path: object) -> None:
        self._path = path
        self._options = ort.RunOptions()
        self._watch = Watch(self._stop)

    def __call__(self, session: Any, binding: Any, abort: Abort | None, n_past: int) -> None:
        """Run a session with bound inputs and outputs. Raises Aborted, DecodeError.

        n_past: the number of tokens in the cache, for the error message.
        """
        if abort and abort():
            raise Aborted(f"stopped after {n_past} tokens")
        self._options.terminate = False
        try:
            with self._watch.during(abort):
                session.run_with_iobinding(binding, self._options)
        except Exception as error:  # the library's exceptions have no common base class
            if self._options.terminate:
                raise Aborted(f"stopped after {n_past} tokens") from None
            raise DecodeError(f"{self._path}: {plainly(str(error))}") from error

    def _stop(self) -> None:
        self._options.terminate = True
