"""Watches an event loop from another thread: nothing that takes long may run on it."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from types import FrameType

LIMIT_S = 0.1
_EVERY_S = 0.01
_LEAST_SAMPLES = 8  # of one standstill: on a busy machine the loop may just not have its turn


class LoopWatch:
    """Samples the stack of the thread that runs a loop, while it is entered.

    A callback stands still where many samples see it, or where no sample can be taken while the
    loop's thread computes: it keeps the interpreter's lock then, in native code. Nothing is noted
    where others take the machine's time.

    longest_s: how long the loop stood still at most. stood: stacks of LIMIT_S or more, as text.
    """

    def __init__(self, thread: threading.Thread) -> None:
        self.longest_s = 0.0
        self.stood: list[str] = []
        self._watched = thread
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> LoopWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """Raise AssertionError if the loop has stood still."""
        assert not self.stood, f"the event loop stood still for {self.longest_s:.2f} s:\n" + (
            "\n".join(self.stood)
        )

    def _watch(self) -> None:
        callback, since, n = None, 0.0, 0
        assert self._watched.ident
        clock = time.pthread_getcpuclockid(self._watched.ident)
        last = time.clock_gettime(clock)
        while not self._ended.wait(_EVERY_S) and self._watched.is_alive():
            now, cpu = time.monotonic(), time.clock_gettime(clock)
            frame = sys._current_frames().get(self._watched.ident)
            if cpu - last >= LIMIT_S:
                self._note(cpu - last, frame)
            last = cpu
            seen = _callback(frame)
            if seen is None or seen is not callback:
                callback, since, n = seen, now, 0
                continue
            n += 1
            if n >= _LEAST_SAMPLES:
                self._note(now - since, frame)

    def _note(self, seconds: float, frame: FrameType | None) -> None:
        self.longest_s = max(self.longest_s, seconds)
        if seconds >= LIMIT_S and len(self.stood) < 20:
            self.stood.append("".join(traceback.format_stack(frame)[-12:]))


def _callback(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the callback that the loop runs, None while it waits."""
    while frame is not None:
        if frame.f_code.co_name == "_run" and frame.f_code.co_filename.endswith("events.py"):
            return frame
        frame = frame.f_back
    return None
