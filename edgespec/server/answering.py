"""The path from a request to its answer, which all APIs share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..chat.reading import Reading
from ..engine import Engine
from ..errors import EdgeSpecError
from ..types import Completion, Event
from .apis import API, APIS
from .base import Answer, ParsedRequest, PreparedRequest, ServedModel, Writer
from .clients import client_of
from .errors import ApiError, as_api_error, shutting_down
from .metrics import Metrics
from .preparation import Preparation, of_body
from .request_queue import RequestQueue
from .work import while_connected

Item = tuple[int, Event]
"""The index of an answer, and one of its events."""


class Answering:
    """Reads and prepares requests, lets the engine answer one at a time, and writes the answers."""

    def __init__(
        self,
        engine: Engine,
        serving: ServedModel,
        preparation: Preparation,
        queue: RequestQueue,
        metrics: Metrics,
    ) -> None:
        self._engine = engine
        self._serving = serving
        self._preparation = preparation
        self._queue = queue
        self._metrics = metrics

    def routes(self) -> list[Route]:
        """Return a route for each API, all under `/v1`."""
        return [Route(api.path, self._endpoint(api), methods=["POST"]) for api in APIS]

    def _endpoint(self, api: API) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            asked = await of_body(request, lambda body: api.parse(body, self._serving))
            self._preparation.check_model(asked.model)
            with _errors_about(asked, request):
                if api.counts:
                    count = await self._preparation.count(request, asked)
                    return JSONResponse({"input_tokens": count})
                prepared = await self._preparation.prepared(request, asked)
                return await self._answer(request, asked, prepared)

        return endpoint

    async def _answer(
        self, request: Request, asked: ParsedRequest, prepared: PreparedRequest
    ) -> Response:
        log = request.scope["edgespec.log"]
        log |= {"stream": asked.stream, "prompts": len(prepared.prompts)}
        items, writer = self._events(asked, prepared, request.scope), asked.writer(prepared)
        if not asked.stream:
            answers = await while_connected(request.receive, _answers(items))
            return JSONResponse(writer.whole(answers))
        first = await while_connected(request.receive, anext(items))
        return EventStream(writer, first, items, log)

    async def _events(
        self, asked: ParsedRequest, prepared: PreparedRequest, scope: Scope
    ) -> AsyncGenerator[Item, None]:
        """Yield the engine's events.

        The engine runs in a separate task, so that a client that reads slowly occupies the engine
        only as long as generating takes.
        """
        arrived: asyncio.Queue[Item | BaseException | None] = asyncio.Queue()

        async def work() -> None:
            try:
                async for item in self._generate(asked, prepared, scope):
                    arrived.put_nowait(item)
                arrived.put_nowait(None)
            except BaseException as error:
                arrived.put_nowait(error)

        task = asyncio.create_task(work())
        try:
            while (item := await arrived.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _generate(
        self, asked: ParsedRequest, prepared: PreparedRequest, scope: Scope
    ) -> AsyncIterator[Item]:
        """Wait for the engine, answer every prompt, and record tokens and times."""
        arrived_s, log = time.monotonic(), scope["edgespec.log"]
        client = client_of(scope)
        async with self._queue.acquire(client.turn):
            before = time.monotonic()
            self._metrics.queue_time.observe(before - arrived_s)
            log |= {"queue_ms": round(1e3 * (before - arrived_s), 1), "completion_tokens": 0}
            for index, prompt in enumerate(prepared.prompts):
                reading = Reading(prepared.reader, asked.request.params)
                stream = self._engine.arun(
                    prompt,
                    asked.request.params,
                    owner=client.owner,
                    constraint=prepared.constraint,
                    prediction=prepared.prediction,
                )
                async with contextlib.aclosing(stream) as events:
                    async for event in events:
                        if event.type == "token":
                            before = self._count_token(log, arrived_s, before)
                        if event.completion:
                            self._count_answer(event.completion, log)
                        yield index, reading.take(event)

    def _count_token(self, log: dict[str, object], arrived_s: float, before: float) -> float:
        """Count a token that came now, and return the time. before: the previous token's time."""
        now, metrics = time.monotonic(), self._metrics
        if log["completion_tokens"]:
            metrics.inter_token.observe(now - before)
        else:
            metrics.first_token.observe(now - arrived_s)
        metrics.generated_tokens.inc()
        log["completion_tokens"] += 1  # type: ignore[operator]
        return now

    def _count_answer(self, completion: Completion, log: dict[str, int | str]) -> None:
        """Count a complete answer; raise ApiError if the server cancelled it to shut down."""
        stats = completion.stats
        self._metrics.finished(stats)
        for name in ("prompt", "cached", "draft", "accepted_draft"):
            key = f"{name}_tokens"
            log[key] = log.get(key, 0) + getattr(stats, f"num_{key}")
        log["finish_reason"] = completion.finish_reason
        if completion.finish_reason == "cancelled":  # only a server that shuts down cancels
            raise shutting_down()


class EventStream(Response):
    """Sends answers in pieces, as server-sent events.

    first: the first item, which has been taken from `items`. items: the further items, closed as
    soon as the client has gone.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        writer: Writer,
        first: Item,
        items: AsyncGenerator[Item, None],
        log: dict[str, object],
    ) -> None:
        self.status_code = 200
        self.background = None
        self._writer = writer
        self._first = first
        self._items = items
        self._log = log
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
            await asyncio.sleep(0)  # let other tasks run: `send` and queued chunks do not
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _texts(self) -> AsyncIterator[str]:
        answers: list[Answer] = []
        try:
            for text in self._pieces(self._first, answers):
                yield text
            async for item in self._items:
                for text in self._pieces(item, answers):
                    yield text
            for text in self._writer.close(answers):
                yield text
        except Exception as error:
            self._log["error"] = type(error).__name__
            request_id = str(self._log["request_id"])
            for text in self._writer.fail(as_api_error(error, request_id), request_id):
                yield text

    def _pieces(self, item: Item, answers: list[Answer]) -> Iterable[str]:
        """Yield the texts to send for an event."""
        (index, event), writer = item, self._writer
        if index == len(answers):
            answers.append(Answer())
            yield from writer.begin(index)
        answers[index].take(event)
        yield from writer.part(index, event)
        if event.completion:
            yield from writer.end(index, answers[index])


@contextlib.contextmanager
def _errors_about(asked: ParsedRequest, request: Request) -> Iterator[None]:
    """Add the name of the field that holds the conversation to errors about the conversation."""
    try:
        yield
    except (ApiError, EdgeSpecError) as error:
        told = as_api_error(error, request.scope["edgespec.log"]["request_id"])
        if told.param == "messages":
            told.param = asked.messages
        raise told from error


async def _answers(items: AsyncIterator[Item]) -> list[Answer]:
    """Return all answers once they have ended."""
    answers: list[Answer] = []
    async for index, event in items:
        if index == len(answers):
            answers.append(Answer())
        answers[index].take(event)
    return answers
