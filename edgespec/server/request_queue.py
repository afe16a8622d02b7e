"""The queue for the engine: bounded, one request at a time, with clients taking turns."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from .errors import ApiError, shutting_down

_SMOOTHING = 0.2  # weight of the last request in the mean that waiting times are estimated from


class RequestQueue:
    """Lets the tasks of one event loop use the engine one after another.

    Clients take turns; the requests of one client are served in the order of arrival. If the queue
    is full, a new request is refused, unless a client has at least two requests more than the new
    request's client. Then the newest request of such a client is refused instead. A request whose
    response has begun keeps its place; if all those requests do, the queue grows, to twice its size
    at most.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}  # the next client is first
        self._staying: set[asyncio.Future[None]] = set()  # requests that keep their place
        self._served = ""  # the client that was served last
        self._running = False
        self._closed = False
        self._mean_s = 1.0

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait."""
        return sum(map(len, self._lines.values()))

    @property
    def n_running(self) -> int:
        """Number of requests that use the engine: 0 or 1."""
        return int(self._running)

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    @contextlib.asynccontextmanager
    async def acquire(
        self, client: str = "", admitted: Callable[[], None] | None = None
    ) -> AsyncIterator[None]:
        """Wait for the engine and hold it inside the `async with` block.

        client: the name of the client that sent the request. admitted: called as soon as the
        request has a place. It keeps this place, so that its response may begin. Raises ApiError
        with status 429 if too many requests wait, 503 if the queue is closed. A cancelled task
        leaves the queue.
        """
        await self._take(client, admitted)
        began = time.monotonic()
        try:
            yield
        finally:
            self._mean_s += _SMOOTHING * (time.monotonic() - began - self._mean_s)
            self._release()

    def close(self) -> None:
        """Refuse waiting and new requests with a 503; the running one goes on."""
        self._closed = True
        for waiter in itertools.chain(*self._lines.values()):
            if not waiter.done():
                waiter.set_exception(shutting_down())
        self._lines.clear()
        self._staying.clear()

    async def _take(self, client: str, admitted: Callable[[], None] | None) -> None:
        if self._closed:
            raise shutting_down()
        if self._running and self.n_waiting >= self._max_waiting:
            self._make_room(client)
        if admitted is not None:
            admitted()
        if not self._running:
            self._running, self._served = True, client
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(client, deque()).append(waiter)
        if admitted is not None:
            self._staying.add(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and not waiter.exception():
                self._release()  # the engine had just been handed to this task
            elif waiter in self._lines.get(client, ()):
                self._remove(client, self._lines[client].index(waiter))
            raise

    def _release(self) -> None:
        """Hand the engine to the next waiting request, of a different client if there is one."""
        while self._lines:
            others = (client for client in self._lines if client != self._served)
            self._served = client = next(others, self._served)
            waiter = self._remove(client, 0)
            if client in self._lines:  # its next turn comes after everybody else's
                self._lines[client] = self._lines.pop(client)
            if not waiter.done():
                waiter.set_result(None)
                return
        self._running = False

    def _make_room(self, client: str) -> None:
        """Refuse the newest request that need not stay, of a client that has at least two more than
        `client`; first of the client that has the most. Do nothing if all of these must stay.

        Raises ApiError (429) if there is no such client, or if the queue has twice its size.
        """
        busier = [each for each in self._lines if self._n_of(each) >= self._n_of(client) + 2]
        for other in sorted(busier, key=self._n_of, reverse=True):
            line = self._lines[other]
            for index in reversed(range(len(line))):
                if line[index] not in self._staying:
                    waiter = self._remove(other, index)
                    if not waiter.done():
                        waiter.set_exception(self._full())
                    return
        if not busier or self.n_waiting >= 2 * self._max_waiting:
            raise self._full()

    def _n_of(self, client: str) -> int:
        """Return how many requests a client has here, the running one included."""
        return len(self._lines.get(client, ())) + (client == self._served)

    def _remove(self, client: str, index: int) -> asyncio.Future[None]:
        """Remove a request from the queue and return it."""
        line = self._lines[client]
        waiter = line[index]
        del line[index]
        self._staying.discard(waiter)
        if not line:
            del self._lines[client]
        return waiter

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
