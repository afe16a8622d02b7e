"""Ways to end one request: a cancel, and a time limit."""

from __future__ import annotations

import math
import threading
import time

from ..types import FinishReason


class Interrupt:
    """Tells a request when to stop: when it is cancelled, or when its time limit is reached."""

    def __init__(self, time_limit_s: float | None) -> None:
        self._cancelled = threading.Event()
        self._deadline = None if time_limit_s is None else time.monotonic() + time_limit_s

    def cancel(self) -> None:
        """Cancel the request. It may be called from any thread."""
        self._cancelled.set()

    def expire(self) -> None:
        """Let the time limit be reached now. It may be called from any thread."""
        self._deadline = time.monotonic()

    def left_s(self) -> float:
        """Return the seconds until the time limit, inf without a limit."""
        return math.inf if self._deadline is None else self._deadline - time.monotonic()

    def __call__(self) -> FinishReason | None:
        """Return why the request should stop, None if it should go on."""
        if self._cancelled.is_set():
            return "cancelled"
        if self.left_s() <= 0:
            return "time_limit"
        return None
