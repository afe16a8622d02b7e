"""The queue for the engine's slots: bounded, with clients taking turns."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from ..config import OnBusy
from .errors import ApiError, shutting_down

_SMOOTHING = 0.2  # weight of the last request in the mean that waiting times are estimated from


class Place:
    """The place of a request, in the queue or at the engine.

    client: the name of the client that sent the request. owner: as in `RequestQueue.acquire`.
    is_replaced: a later request of the owner takes over the slot. cancel: called then; it ends the
    request.
    """

    def __init__(self, client: str, owner: str, *, stays: bool) -> None:
        self.client, self.owner = client, owner
        self.stays = stays  # keeps its place in a full queue
        self.is_replaced = False
        self.cancel: Callable[[], None] = lambda: None
        self.turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.heir: Place | None = None  # the request that takes over the slot


class RequestQueue:
    """Lets the tasks of one event loop use an engine, `n_slots` of them at once.

    Clients take turns: a free slot goes to a client with the fewest running requests, and among
    those to another one than the last. The requests of one client are served in the order of
    arrival. If the queue is full, a new request is refused, unless a client has at least two
    requests more than the new request's client. Then the newest request of such a client is refused
    instead. A request whose response has begun keeps its place; if all those requests do, the queue
    grows, to twice its size at most.
    """

    def __init__(self, max_waiting: int, n_slots: int = 1) -> None:
        self._max_waiting = max_waiting
        self.n_slots = n_slots
        self._lines: dict[str, deque[Place]] = {}  # the next client is first
        self._running: list[Place] = []  # those that began first come first
        self._served = ""  # the client that was served last
        self._closed = False
        self._mean_s = 1.0

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait."""
        return sum(map(len, self._lines.values())) + sum(
            place.heir is not None for place in self._running
        )

    @property
    def n_running(self) -> int:
        """Number of slots that requests use."""
        return len(self._running)

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    @contextlib.asynccontextmanager
    async def acquire(
        self,
        client: str = "",
        admitted: Callable[[], None] | None = None,
        *,
        owner: str = "",
        on_busy: OnBusy = "wait",
        is_more: bool = False,
    ) -> AsyncIterator[Place]:
        """Wait for a slot of the engine and hold it inside the `async with` block.

        client: the name of the client that sent the request. admitted: called as soon as the
        request has a place in the queue. It keeps this place, so that its response may begin.
        owner, on_busy: if all slots are taken, a request with "replace" ends the running request of
        its owner that began first, and takes its slot; one with "error" is refused. is_more: a
        request that runs wants one more slot, which is not refused if the queue is full. Raises
        ApiError with status 429 if too many requests wait, 503 if the queue is closed. A cancelled
        task leaves the queue.
        """
        place = Place(client, owner, stays=is_more or admitted is not None)
        self._enter(place, on_busy, is_more=is_more)
        if admitted is not None:
            admitted()
        await self._turn(place)
        began = time.monotonic()
        try:
            yield place
        finally:
            self._mean_s += _SMOOTHING * (time.monotonic() - began - self._mean_s)
            self._release(place)

    def close(self) -> None:
        """Refuse waiting and new requests with a 503; the running ones go on."""
        self._closed = True
        waiting = [place for line in self._lines.values() for place in line]
        for place in (*waiting, *filter(None, (each.heir for each in self._running))):
            if not place.turn.done():
                place.turn.set_exception(shutting_down())
        self._lines.clear()
        for place in self._running:
            place.heir = None

    def _enter(self, place: Place, on_busy: OnBusy, *, is_more: bool) -> None:
        """Give a request a slot or a place in the queue. Raises ApiError."""
        if self._closed:
            raise shutting_down()
        if len(self._running) < self.n_slots:
            self._begin(place)
            return
        if on_busy == "error":
            raise self._refused("all slots are busy", "busy")
        if on_busy == "replace" and (running := self._replaceable(place.owner)):
            running.is_replaced, running.heir = True, place
            running.cancel()
            return
        if not is_more and self.n_waiting >= self._max_waiting:
            self._make_room(place.client)
        self._lines.setdefault(place.client, deque()).append(place)

    async def _turn(self, place: Place) -> None:
        try:
            await place.turn
        except asyncio.CancelledError:
            if place in self._running:
                self._release(place)  # a slot had just been handed to this task
            elif place in self._lines.get(place.client, ()):
                self._remove(place.client, self._lines[place.client].index(place))
            for each in self._running:
                if each.heir is place:
                    each.heir = None
            raise

    def _begin(self, place: Place) -> None:
        self._running.append(place)
        self._served = place.client
        place.turn.set_result(None)

    def _replaceable(self, owner: str) -> Place | None:
        """Return the running request of an owner that began first and was not replaced yet."""
        own = (place for place in self._running if place.owner == owner and not place.is_replaced)
        return next(own, None)

    def _release(self, place: Place) -> None:
        """Hand a slot to the request that takes it over, or else to the next one that waits."""
        self._running.remove(place)
        heir = place.heir or self._next()
        while heir and heir.turn.done():
            heir = self._next()
        if heir:
            self._begin(heir)

    def _next(self) -> Place | None:
        """Take the next request out of the queue and return it, None if none waits.

        It is of a client with the fewest running requests, not of the last client if possible.
        """
        if not self._lines:
            return None
        client = min(self._lines, key=lambda each: (self._n_running(each), each == self._served))
        place = self._remove(client, 0)
        if client in self._lines:  # its next turn comes after everybody else's
            self._lines[client] = self._lines.pop(client)
        return place

    def _make_room(self, client: str) -> None:
        """Refuse the newest request that need not stay, of a client that has at least two more than
        `client`; first of the client that has the most. Do nothing if all of these must stay.

        Raises ApiError (429) if there is no such client, or if the queue has twice its size.
        """
        busier = [each for each in self._lines if self._n_of(each) >= self._n_of(client) + 2]
        for other in sorted(busier, key=self._n_of, reverse=True):
            line = self._lines[other]
            for index in reversed(range(len(line))):
                if not line[index].stays:
                    refused = self._remove(other, index)
                    if not refused.turn.done():
                        refused.turn.set_exception(self._full())
                    return
        if not busier or self.n_waiting >= 2 * self._max_waiting:
            raise self._full()

    def _n_of(self, client: str) -> int:
        """Return how many requests a client has here, the running ones included."""
        return len(self._lines.get(client, ())) + self._n_running(client)

    def _n_running(self, client: str) -> int:
        return sum(place.client == client for place in self._running)

    def _remove(self, client: str, index: int) -> Place:
        """Remove a request from the queue and return it."""
        line = self._lines[client]
        place = line[index]
        del line[index]
        if not line:
            del self._lines[client]
        return place

    def _full(self) -> ApiError:
        return self._refused(
            f"{self.n_waiting} requests are waiting, as many as this server takes", "queue_full"
        )

    def _refused(self, why: str, code: str) -> ApiError:
        mean_s = self._mean_s / self.n_slots
        retry_s, answer_s = max(1, math.ceil(mean_s)), math.ceil(mean_s * (self.n_waiting + 1))
        return ApiError(
            429,
            f"{why}; try again in about {retry_s} s; an answer would begin about {answer_s} s from "
            "now",
            code=code,
            headers={"Retry-After": str(retry_s)},
        )
