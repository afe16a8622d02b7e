"""Runs slow work in a thread, in the client's turn, and only while the client is connected."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from .errors import shutting_down
from .request_queue import RequestQueue

T = TypeVar("T")
Stopped = Callable[[], bool]
"""Returns True once the client has left or the server is shutting down."""


async def in_turn(
    queue: RequestQueue,
    turn: str,
    work: Callable[[Stopped], T],
    at_once: asyncio.Semaphore | None = None,
) -> T:
    """Run `work` in a thread when its turn has come, and return its result.

    at_once: limits how many threads several queues use together. A cancelled task keeps its turn
    until its thread has noticed that it should stop. Raises ApiError with status 429 if too many
    requests wait, 503 if the server is shutting down.
    """
    left = threading.Event()

    def stopped() -> bool:
        return left.is_set() or queue.closed

    async with queue.acquire(turn), at_once or contextlib.nullcontext():
        working = asyncio.ensure_future(run_in_threadpool(work, stopped))
        try:
            result = await asyncio.shield(working)
        except asyncio.CancelledError:
            left.set()
            await asyncio.wait({working})
            working.exception()
            raise
    if stopped():
        raise shutting_down()
    return result


async def while_connected(receive: Receive, work: Awaitable[T]) -> T:
    """Return the result of `work`, or cancel it and raise ClientDisconnect if the client leaves."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
