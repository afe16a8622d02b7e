"""A request for asyncio: it runs in a thread of its own and hands events to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType

from ..types import Event
from .interrupt import Interrupt

_LATER_S = 0.002  # the next evaluation has usually begun by then
_Item = Event | BaseException | None  # None: the request has ended


class AsyncStream:
    """The events of one request, for `async for`; the request begins with the first `anext`.

    Cancelling a task that waits here cancels the request and waits for its end. The request's
    remaining events can still be read afterwards; the last one is its completion, with finish
    reason "cancelled".
    """

    def __init__(self, events: Iterator[Event], interrupt: Interrupt) -> None:
        self._events, self._interrupt = events, interrupt
        self._arrived: asyncio.Queue[_Item] | None = None
        self._left: deque[_Item] = deque()
        self._ended = False

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Event:
        if self._arrived is None:
            self._arrived = _start(self._events)
        try:
            item = self._left.popleft() if self._left else await self._next()
        except asyncio.CancelledError:
            self._cancel()
            await self._wait()
            raise
        if item is None:
            raise StopAsyncIteration
        if isinstance(item, BaseException):
            raise item
        return item

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def cancel(self) -> None:
        """Cancel the request, from any thread; its remaining events follow, the last with the
        finish reason "cancelled". A request that has not begun ends at its first event.
        """
        self._cancel()

    def expire(self) -> None:
        """End the request now, with the finish reason "time_limit"; its remaining events follow."""
        self._interrupt.expire()

    async def aclose(self) -> None:
        """Cancel the request and wait for its end; its remaining events are dropped."""
        self._cancel()
        if self._arrived is None:
            self._ended = True
        await self._wait()
        self._left.clear()

    def __del__(self) -> None:
        self._cancel()

    def _cancel(self) -> None:
        if not self._ended:
            self._interrupt.cancel()

    async def _next(self) -> _Item:
        if self._ended or self._arrived is None:
            return None
        item = await self._arrived.get()
        self._ended = item is None
        return item

    async def _wait(self) -> None:
        """Wait until the request has ended, and keep the events that arrive until then."""
        while (item := await self._next()) is not None:
            self._left.append(item)


def _start(events: Iterator[Event]) -> asyncio.Queue[_Item]:
    """Run a request in a thread and return the queue in which its events arrive.

    A second thread passes the events on, a little later. The first one would wake the loop's
    thread, and that would hold Python's global lock when the next evaluation should begin.
    """
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[_Item] = asyncio.Queue()
    handed_over: queue.SimpleQueue[_Item] = queue.SimpleQueue()

    def work() -> None:
        try:
            for event in events:
                handed_over.put(event)
        except BaseException as error:
            handed_over.put(error)
        finally:
            handed_over.put(None)

    def arrive(items: list[_Item]) -> None:
        for item in items:
            arrived.put_nowait(item)

    def pass_on() -> None:
        ended = False
        while not ended:
            items = [handed_over.get()]
            time.sleep(_LATER_S)
            items += [handed_over.get() for _ in range(handed_over.qsize())]
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(arrive, items)
            ended = items[-1] is None

    threading.Thread(target=work, name="edgespec-stream", daemon=True).start()
    threading.Thread(target=pass_on, name="edgespec-events", daemon=True).start()
    return arrived
