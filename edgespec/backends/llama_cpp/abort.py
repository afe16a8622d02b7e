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

# Between the operations of a graph, llama.cpp calls a function to ask whether to stop. The C
# library has one that answers without Python: strlen, which returns 0 for a text until a character
# is written to it.
_length = ctypes.CDLL("ucrtbase" if os.name == "nt" else None).strlen
_is_not_empty = ctypes.cast(_length, AbortCallback)


def _never() -> None:
    """Return no reason to stop: an `abort` for evaluations that only Ctrl-C stops."""


class AbortableDecode:
    """Evaluations that the caller's `abort` or Ctrl-C can stop half-way, on CPUs.

    ctrl_c: Ctrl-C was pressed during the last evaluation. The caller then has to raise
    KeyboardInterrupt: an exception that Python's own handler raises within a callback of native
    code (its log, hidden states) would be lost.
    """

    def __init__(self, context: Any) -> None:
        self.ctrl_c = False
        self._context = context
        self._text = ctypes.create_string_buffer(2)
        self._watch = Watch(self._stop)
        lib.llama_set_abort_callback(context, _is_not_empty, ctypes.addressof(self._text))

    def __call__(self, batch: Any, abort: Abort | None, evaluate: Any = None) -> int:
        """Evaluate a native batch and return the engine's code, which is 2 if it was stopped.

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
        """Evaluate a native batch whose evaluation calls Python back; Ctrl-C stops it in any
        case.
        """
        return self(batch, abort or _never)

    def _stop(self) -> None:
        self._text[0] = b"x"

    def _note_ctrl_c(self) -> None:
        self.ctrl_c = True
        self._stop()
