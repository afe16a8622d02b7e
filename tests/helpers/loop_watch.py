"""Watches an event loop: nothing that takes long may run on it."""

from __future__ import annotations

import gc
import threading
import time
from asyncio import Handle, events

LIMIT_S = 0.1
_EVERY_S = 0.01
_TURNS = 0.5  # of all that it would have alone: on a busy machine the loop may not have its own
_run = Handle._run
_watches: dict[int, LoopWatch] = {}  # by the thread that is watched


class LoopWatch:
    """Times what a thread's event loop calls, while it is entered.

    A callback stands still where it computes, or where another thread has its turn all the time
    meanwhile. Nothing is noted where other programs take the machine's time, nor what collecting
    the garbage of all tests takes. It looks into no other thread: `sys._current_frames` can stop
    Python 3.11 for good (https://github.com/python/cpython/issues/106883).

    stood: what took LIMIT_S or more.
    """

    def __init__(self, thread: threading.Thread) -> None:
        self.stood: list[str] = []
        self.ticks = 0
        self.collecting_s = 0.0
        self._watched = thread
        self._ended = threading.Event()
        self._ticking = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> LoopWatch:
        assert self._watched.ident
        self._ticking.start()
        _watches[self._watched.ident] = self
        return self

    def __exit__(self, *error: object) -> None:
        del _watches[self._watched.ident or 0]
        self._ended.set()
        self._ticking.join()

    def check(self) -> None:
        """Raise AssertionError if the loop has stood still."""
        assert not self.stood, "the event loop stood still:\n" + "\n".join(self.stood)

    def _tick(self) -> None:
        while not self._ended.wait(_EVERY_S):
            self.ticks += 1


def _collecting(phase: str, _: object) -> None:
    if watch := _watches.get(threading.get_ident()):
        watch.collecting_s += time.thread_time() * (1 if phase == "stop" else -1)


def _timed(handle: Handle) -> None:
    watch = _watches.get(threading.get_ident())
    if watch is None:
        return _run(handle)
    ticks, computed, began = watch.ticks, time.thread_time() - watch.collecting_s, time.monotonic()
    _run(handle)
    computed = time.thread_time() - watch.collecting_s - computed
    took = time.monotonic() - began
    others_have_turns = watch.ticks - ticks >= _TURNS * took / _EVERY_S
    if computed >= LIMIT_S or (took >= LIMIT_S and others_have_turns):
        called = getattr(handle._callback, "__self__", handle)  # of a step: the task
        watch.stood.append(f"{took:.2f} s ({computed:.2f} s computing): {called!r}")


events.Handle._run = _timed
gc.callbacks.append(_collecting)
