"""The engine, one request after another: first come, first served, and not too many waiting."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator

from .errors import ApiError, closing

_MEMORY = 0.2  # weight of the last turn in the mean that waiting times are estimated from


class Turns:
    """Who may use the engine now. For the tasks of one event loop."""

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False
        self._closed = False
        self._mean_s = 1.0

    @property
    def n_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        """0 or 1."""
        return int(self._taken)

    @property
    def closed(self) -> bool:
        """Whether nobody gets a turn any more."""
        return self._closed

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the engine and have it. Raises ApiError: 429 at once where too many wait, 503
        where the server ends. A cancelled task leaves the queue.
        """
        await self._take()
        began = time.monotonic()
        try:
            yield
        finally:
            self._mean_s += _MEMORY * (time.monotonic() - began - self._mean_s)
            self._pass_on()

    def close(self) -> None:
        """Send everybody away who waits or comes; the running request goes on."""
        self._closed = True
        for place in self._waiting:
            if not place.done():
                place.set_exception(closing())
        self._waiting.clear()

    async def _take(self) -> None:
        if self._closed:
            raise closing()
        if not self._taken:
            self._taken = True
            return
        if len(self._waiting) >= self._max_waiting:
            raise self._full()
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and not place.exception():
                self._pass_on()  # the turn had just come
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(place)
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._taken = False

    def _full(self) -> ApiError:
        room = max(1, math.ceil(self._mean_s))
        whole = math.ceil(self._mean_s * (self.n_waiting + 1))
        return ApiError(
            429,
            f"{self.n_waiting} requests are waiting, as many as this server takes; there should "
            f"be room in about {room} s, and an answer would begin about {whole} s from now",
            code="queue_full",
            headers={"Retry-After": str(room)},
        )
