"""Generates the answers of one request, in as many slots as are free for it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Callable

from starlette.types import Scope

from ..chat.reading import Reading
from ..config import SamplingParams
from ..decoding.async_stream import AsyncStream
from ..engine import Engine
from ..sampling.randomness import seed_of_choice
from ..types import Completion, Event
from .base import ParsedRequest, PreparedRequest
from .clients import client_of
from .errors import ApiError, replaced, shutting_down
from .limits import Limits
from .metrics import Metrics
from .request_queue import Place, RequestQueue


class Generation:
    """The answers of one request: `n` choices for each of its prompts, in this order.

    The first answer begins as soon as the request has a slot. Once its prompt is read, which the
    others may reuse, the others begin in further slots, as far as these are free for this client.
    What has no slot until then follows in the slots that the request has. put: takes the number of
    an answer and each of its events.
    """

    def __init__(
        self,
        engine: Engine,
        queue: RequestQueue,
        metrics: Metrics,
        limits: Limits,
        asked: ParsedRequest,
        prepared: PreparedRequest,
        scope: Scope,
        put: Callable[[tuple[int, Event]], None],
    ) -> None:
        self._engine, self._queue, self._metrics, self._limits = engine, queue, metrics, limits
        self._asked, self._prepared, self._put = asked, prepared, put
        self._client, self._log = client_of(scope), scope["edgespec.log"]
        self._arrived_s = time.monotonic()
        self._left = deque(range(asked.request.n * len(prepared.prompts)))
        self._is_read = asyncio.Event()  # the first prompt
        self._waiting: set[asyncio.Task[None]] = set()  # tasks that wait for one more slot
        self._streams: set[AsyncStream] = set()
        self._is_replaced = False

    async def run(self, admitted: Callable[[], None] | None) -> None:
        """Generate all answers; admitted, and the errors, as in `RequestQueue.acquire`."""
        first = asyncio.create_task(self._first(admitted))
        self._waiting = {
            asyncio.create_task(self._further())
            for _ in range(min(self._queue.n_slots, len(self._left)) - 1)
        }
        tasks = running = {first, *self._waiting}
        try:
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if not task.cancelled():
                        task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # several may have failed at once

    async def _first(self, admitted: Callable[[], None] | None) -> None:
        """Answer in the slot that the request waits for in the queue."""
        turn, owner = self._client.turn, self._client.owner
        on_busy = self._asked.request.on_busy
        async with self._queue.acquire(turn, admitted, owner=owner, on_busy=on_busy) as place:
            waited_s = time.monotonic() - self._arrived_s
            self._metrics.queue_time.observe(waited_s)
            self._log |= {"queue_ms": round(1e3 * waited_s, 1), "completion_tokens": 0}
            await self._answer_in(place)

    async def _further(self) -> None:
        """Answer in one more slot, whenever there is one before all answers have begun."""
        task = asyncio.current_task()
        assert task
        await self._is_read.wait()
        turn, owner = self._client.turn, self._client.owner
        while self._left:
            async with contextlib.AsyncExitStack() as stack:
                try:
                    slot = self._queue.acquire(turn, owner=owner, is_more=True)
                    place = await stack.enter_async_context(slot)
                except ApiError:  # the server ends: the rest is answered in the first slot
                    return
                self._waiting.discard(task)
                await self._answer_in(place, gives_way=True)
            self._waiting.add(task)

    async def _answer_in(self, place: Place, *, gives_way: bool = False) -> None:
        """Generate one answer after another until all have begun.

        gives_way: stop after an answer if others wait for a slot.
        """
        place.cancel = self._replace
        self._is_replaced = self._is_replaced or place.is_replaced
        while self._left and not self._is_replaced:
            await self._answer(self._left.popleft())
            if gives_way and self._queue.n_waiting and not self._is_replaced:
                return
        for task in self._waiting:
            task.cancel()
        if self._is_replaced:
            raise replaced()

    def _replace(self) -> None:
        """End all answers, because a later request takes over a slot."""
        self._is_replaced = True
        for stream in self._streams:
            stream.cancel()

    async def _answer(self, index: int) -> None:
        request, prepared = self._asked.request, self._prepared
        prompt, choice = divmod(index, request.n)
        reader = prepared.readers[choice] if prepared.readers else None
        params = _of_choice(request.params, choice)
        reading = Reading(reader, params)
        if not choice:
            self._limits.spend(self._client, len(prepared.prompts[prompt]))
        stream = self._engine.arun(
            prepared.prompts[prompt],
            params,
            owner=self._client.owner,
            constraint=prepared.constraint,
            prediction=prepared.prediction,
        )
        watch = self._asked.watch() if self._asked.watch else None
        last_s = None
        self._streams.add(stream)
        try:
            async with contextlib.aclosing(stream) as events:
                async for event in events:
                    if event.type == "token":
                        last_s = self._count_token(last_s)
                        if watch and watch(event):
                            stream.expire()
                    if event.completion:
                        self._count_answer(event.completion, is_first=not choice)
                    self._put((index, reading.take(event)))
        finally:
            self._streams.discard(stream)

    def _count_token(self, last_s: float | None) -> float:
        """Count a token that came now, and return the time. last_s: the time of the answer's token
        before it, None for its first token.
        """
        now = time.monotonic()
        if last_s is not None:
            self._metrics.inter_token.observe(now - last_s)
        elif not self._log["completion_tokens"]:
            self._metrics.first_token.observe(now - self._arrived_s)
        self._metrics.generated_tokens.inc()
        self._log["completion_tokens"] += 1
        self._limits.spend(self._client, 1)
        self._is_read.set()
        return now

    def _count_answer(self, completion: Completion, *, is_first: bool) -> None:
        """Count a complete answer; raise ApiError if it was cancelled by the server.

        is_first: the first answer to its prompt, which the log counts once.
        """
        self._is_read.set()
        stats, log = completion.stats, self._log
        self._metrics.finished(stats)
        for name in ("prompt", "cached", "draft", "accepted_draft"):
            if is_first or "draft" in name:
                key = f"{name}_tokens"
                log[key] = log.get(key, 0) + getattr(stats, f"num_{key}")
        log["finish_reason"] = completion.finish_reason
        if completion.finish_reason == "cancelled":
            raise replaced() if self._is_replaced else shutting_down()


def _of_choice(params: SamplingParams, choice: int) -> SamplingParams:
    """Return the settings of a choice: if they have a seed, each choice gets its own."""
    if params.seed is None or not choice:
        return params
    return dataclasses.replace(params, seed=seed_of_choice(params.seed, choice))
