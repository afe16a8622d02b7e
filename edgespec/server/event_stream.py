"""Answers as server-sent events. A stream begins at once, and is never silent for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..types import Event
from .base import Answer, Writer
from .errors import as_api_error
from .work import while_connected

Item = tuple[int, Event] | None
"""The index of an answer, and one of its events; or None if nothing has happened."""

MOST_SILENT_S = 10.0
"""Seconds after which a stream without content shows a sign of life. nginx gives up after 60 s."""

_LOOK_S = 1.0  # seconds between looks whether the stream was silent for long


async def looks(look: Callable[[], None]) -> None:
    """Call `look` from time to time, until the task is cancelled."""
    while True:
        await asyncio.sleep(_LOOK_S)
        look()


def take(item: tuple[int, Event], answers: dict[int, Answer]) -> bool:
    """Add an event to its answer. Return True if the answer begins with it."""
    index, event = item
    begins = index not in answers
    if begins:
        answers[index] = Answer()
    answers[index].take(event)
    return begins


def in_order(answers: dict[int, Answer]) -> list[Answer]:
    """Return answers by their numbers; several may have been generated at once."""
    return [answers[index] for index in sorted(answers)]


class EventStream(Response):
    """Sends answers in pieces, as server-sent events.

    items: the events, with None at least every second; closed as soon as the client has gone.
    """

    media_type = "text/event-stream"

    def __init__(
        self, writer: Writer, items: AsyncGenerator[Item, None], log: dict[str, object]
    ) -> None:
        self.status_code = 200
        self.background = None
        self._writer = writer
        self._items = items
        self._log = log
        self._sent_s = time.monotonic()  # when the last piece was sent
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client has gone."""
        try:
            await while_connected(receive, self._send_all(send))
        finally:
            await self._items.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for text in self._texts():
            body = text.encode("ascii")
            await send({"type": "http.response.body", "body": body, "more_body": True})
            self._sent_s = time.monotonic()
            await asyncio.sleep(0)  # let other tasks run: `send` and queued chunks do not
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _texts(self) -> AsyncIterator[str]:
        answers: dict[int, Answer] = {}
        try:
            for text in self._writer.opening():
                yield text
            async for item in self._items:
                for text in self._pieces(item, answers):
                    yield text
            for text in self._writer.close(in_order(answers)):
                yield text
        except Exception as error:
            self._log["error"] = type(error).__name__
            request_id = str(self._log["request_id"])
            for text in self._writer.fail(as_api_error(error, request_id), request_id):
                yield text

    def _pieces(self, item: Item, answers: dict[int, Answer]) -> Iterable[str]:
        """Yield the texts to send for an event, or a sign of life if it is time for one."""
        writer = self._writer
        if item is None:
            if time.monotonic() - self._sent_s > MOST_SILENT_S - _LOOK_S:
                yield writer.alive()
            return
        index, event = item
        if take(item, answers):
            yield from writer.begin(index)
        yield from writer.part(index, event)
        if event.completion:
            yield from writer.end(index, answers[index])
