"""The queue for the engine: one request at a time, first come, first served, of bounded length."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator

from .errors import ApiError, shutting_down

_SMOOTHING = 0.2  # weight of the last request in the mean that waiting times are estimated from


class RequestQueue:
    """Lets the tasks of one event loop use the engine one after another."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._running = False
        self._closed = False
        self._mean_s = 1.0

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        """Number of requests that use the engine: 0 or 1."""
        return int(self._running)

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    @contextlib.asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        """Wait for the engine and hold it inside the `async with` block.

        Raises ApiError: 429 at once if too many requests wait, 503 if the queue is closed. A
        cancelled task leaves the queue.
        """
        await self._take()
        began = time.monotonic()
        try:
            yield
        finally:
            self._mean_s += _SMOOTHING * (time.monotonic() - began - self._mean_s)
            self._release()

    def close(self) -> None:
        """Refuse waiting and new requests with a 503; the running one goes on."""
        self._closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(shutting_down())
        self._waiting.clear()

    async def _take(self) -> None:
        if self._closed:
            raise shutting_down()
        if not self._running:
            self._running = True
            return
        if len(self._waiting) >= self._max_waiting:
            raise self._full()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and not waiter.exception():
                self._release()  # the engine had just been handed to this task
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(waiter)
            raise

    def _release(self) -> None:
        """Hand the engine to the next request that still waits."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._running = False

    def _full(self) -> ApiError:
        retry_s = max(1, math.ceil(self._mean_s))
        answer_s = math.ceil(self._mean_s * (self.n_waiting + 1))
        return ApiError(
            429,
            f"{self.n_waiting} requests are waiting, as many as this server takes; try again in "
            f"about {retry_s} s; an answer would begin about {answer_s} s from now",
            code="queue_full",
            headers={"Retry-After": str(retry_s)},
        )
