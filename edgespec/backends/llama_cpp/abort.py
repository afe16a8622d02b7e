"""Stopping a native evaluation while it runs."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from ...types import Abort
from ..watch import Watch
from .ctrl_c import noting_ctrl_c
from .declarations import AbortCallback
from .library import lib

# Between the operations of a graph, llama.cpp calls a function, and stops if the result is not 0.
# strlen of the C library can be this function, so no Python is called: it returns 0 for an empty
# text until a character is written there.
_length = ctypes.CDLL("ucrtbase" if os.name == "nt" else None).strlen
_is_not_empty = ctypes.cast(_length, AbortCallback)


def _never() -> None:
    """Return None, no reason to stop: the `abort` of evaluations that only Ctrl-C can stop."""


class AbortableDecode:
    """Evaluations that the caller's `abort` or Ctrl-C can stop half-way, on CPUs.

    ctrl_c: Ctrl-C was pressed during the last evaluation. The caller then has to raise
    KeyboardInterrupt. If Python's own handler raised it while native code calls Python (for its log
    or hidden states), it would be lost.
    """

    def __init__(self, context: Any) -> None:
        self.ctrl_c = False
        self._context = context
        self._text = ctypes.create_string_buffer(2)
        self._watch = Watch(self._stop)
        lib.llama_set_abort_callback(context, _is_not_empty, ctypes.addressof(self._text))

    def __call__(self, batch: Any, abort: Abort | None, evaluate: Any = None) -> int:
        """Evaluate a native batch and return the engine's code: 2 means that the evaluation was
        stopped.

        evaluate: the native function, by default llama_decode.
        """
        if abort is None:
            code: int = (evaluate or lib.llama_decode)(self._context, batch)
            return code
        if abort():
            return 2
        try:
            with noting_ctrl_c(self._note_ctrl_c), self._watch.during(abort):
                return (evaluate or lib.llama_decode)(self._context, batch)  # type: ignore[no-any-return]
        finally:
            self._text[0] = b"\0"

    def calling_back(self, batch: Any, abort: Abort | None) -> int:
        """Evaluate a native batch during which native code calls Python. Ctrl-C stops it even if
        `abort` is None.
        """
        return self(batch, abort or _never)

    def _stop(self) -> None:
        self._text[0] = b"x"

    def _note_ctrl_c(self) -> None:
        self.ctrl_c = True
        self._stop()
