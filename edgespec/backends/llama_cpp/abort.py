"""Stopping a native evaluation from within."""

from __future__ import annotations

from typing import Any

from ...types import Abort
from .ctrl_c import noting_ctrl_c
from .declarations import AbortCallback
from .library import lib

ABORTABLE = 16  # evaluations of more tokens than this can be stopped half-way


class AbortableDecode:
    """Evaluations that the caller's `abort` or Ctrl-C can stop half-way; on CPUs, the callback is
    asked between the operations of the graph.

    ctrl_c: Ctrl-C was pressed during the last one. What Python's own handler raises within a
    callback of native code would be lost, so the caller has to raise KeyboardInterrupt.
    """

    def __init__(self, context: Any) -> None:
        self.ctrl_c = False
        self._context = context
        self._abort: Abort | None = None
        self._callback = AbortCallback(self._should_stop)  # native code keeps no reference

    def __call__(self, batch: Any, abort: Abort) -> int:
        """Evaluate a native batch and return llama_decode's code, 2 if it was stopped."""
        if abort():
            return 2
        self._abort = abort
        lib.llama_set_abort_callback(self._context, self._callback, None)
        try:
            with noting_ctrl_c(self._note_ctrl_c):
                code: int = lib.llama_decode(self._context, batch)
            return code
        finally:
            lib.llama_set_abort_callback(self._context, AbortCallback(), None)
            self._abort = None

    def whole(self, batch: Any) -> int:
        """Evaluate a native batch that nothing stops; for evaluations that call Python back."""
        with noting_ctrl_c(self._note_ctrl_c):
            code: int = lib.llama_decode(self._context, batch)
        return code

    def _should_stop(self, _: Any) -> bool:
        return self.ctrl_c or (self._abort is not None and self._abort() is not None)

    def _note_ctrl_c(self) -> None:
        self.ctrl_c = True
