"""A lock that lets one request run at a time on an engine, and ways to end requests."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Literal

from ..errors import EdgeSpecError, EngineBusy
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


class RequestLock:
    """Lets one request run at a time; once it is closed and no request runs, frees the models.

    on_busy: as in EngineConfig. free: frees the models; it may be called more than once.
    """

    def __init__(self, on_busy: Literal["wait", "error"], free: Callable[[], None]) -> None:
        self._on_busy = on_busy
        self._free_models = free
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._interrupt: Interrupt | None = None
        self._waiting: set[Interrupt] = set()
        self._begun: set[weakref.ref[Interrupt]] = set()  # requests that have begun and not ended
        self._closed = False
        self._process = os.getpid()

    def begin(self, time_limit_s: float | None) -> Interrupt:
        """Return the interrupt of a request that begins now; its turn may come much later.

        `RequestLock.cancel` also reaches a request that waits.
        """
        interrupt = Interrupt(time_limit_s)
        self._begun.add(weakref.ref(interrupt, self._begun.discard))
        return interrupt

    @contextlib.contextmanager
    def held(self, interrupt: Interrupt) -> Iterator[bool]:
        """Hold the lock for one request; yield True when its turn comes.

        Yield False if the request was cancelled or ran out of time before its turn. Raises
        EngineBusy, and EdgeSpecError as `check_open` does.
        """
        self._check_process()
        try:
            if not self._take(interrupt):
                yield False
                return
            try:
                self._interrupt = interrupt  # first, so that a `close` from now on cancels it
                self.check_open()
                yield True
            finally:
                self._release()
        finally:
            self._begun.discard(weakref.ref(interrupt))

    @property
    def wanted(self) -> bool:
        """True if a request waits for the lock, or the engine is closed."""
        return bool(self._waiting) or self._closed

    @property
    def wanted_soon(self) -> bool:
        """True if a request with a time limit waits for the lock, or the engine is closed."""
        return self._closed or any(math.isfinite(i.left_s()) for i in tuple(self._waiting))

    @property
    def is_open(self) -> bool:
        """True before `close`, in the process that has loaded the models."""
        return not self._closed and os.getpid() == self._process

    @contextlib.contextmanager
    def between_requests(self) -> Iterator[bool]:
        """Hold the lock and yield True if no request runs or waits and the engine is open.

        Else yield False.
        """
        if self.wanted or not self._lock.acquire(blocking=False):
            yield False
            return
        try:
            yield not self.wanted
        finally:
            self._release()

    @contextlib.contextmanager
    def turn(self) -> Iterator[bool]:
        """Hold the lock once the running request has ended, even if others wait; yield True.

        Yield False if the engine is closed.
        """
        while not self._lock.acquire(timeout=0.05):
            if not self.is_open:
                yield False
                return
        try:
            yield self.is_open
        finally:
            self._release()

    def cancel(self) -> None:
        """Cancel the running request; if none runs, cancel all that wait for their turn.

        It may be called from any thread and from a signal handler.
        """
        running = self._interrupt
        begun = [running] if running else [each() for each in tuple(self._begun)]
        for interrupt in begun:
            if interrupt:
                interrupt.cancel()

    def close(self) -> None:
        """Cancel the running request, and free the models as soon as no request runs.

        Nothing is freed in a forked process, because the models belong to its parent.
        """
        self._closed = True
        if os.getpid() == self._process:
            self.cancel()
            self._free()

    def check_open(self) -> None:
        """Raise EdgeSpecError after `close`, and in a fork of the process that loaded models."""
        self._check_process()
        if self._closed:
            raise EdgeSpecError("this engine is closed; load the model again")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise EdgeSpecError(
                f"this engine was loaded in process {self._process} and this is process "
                f"{os.getpid()}, forked from it: the threads of an engine do not survive a fork. "
                'Load the model after the fork, or start processes with the method "spawn"'
            )

    def _take(self, interrupt: Interrupt) -> bool:
        """Wait for the lock and return True; return False if the request ends before its turn."""
        me = threading.get_ident()
        self._waiting.add(interrupt)
        try:
            if not self._lock.acquire(blocking=False):
                self._refuse(me)
                while not self._lock.acquire(timeout=0.05):
                    self._refuse(me)
                    if interrupt():
                        return False
            self._holder = me
        finally:
            self._waiting.discard(interrupt)
        return True

    def _refuse(self, me: int) -> None:
        """Raise EngineBusy if thread `me` must not wait for the running request.

        Work between requests does not count as a request, because it gives way at once.
        """
        if self._holder is None:
            return
        if self._on_busy == "error":
            raise EngineBusy("a request is running on this engine; wait for it or cancel() it")
        if self._holder == me:
            raise EngineBusy(
                "this thread is still reading a stream of this engine; exhaust it or close() it"
            )

    def _release(self) -> None:
        self._interrupt = self._holder = None
        self._lock.release()
        if self._closed:
            self._free()

    def _free(self) -> None:
        """Free the models, unless a request is running; they are then freed when it ends."""
        if self._lock.acquire(blocking=False):
            try:
                self._free_models()
            finally:
                self._lock.release()
