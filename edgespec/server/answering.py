"""The path from a request to its answer, which all APIs share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from ..engine import Engine
from ..errors import EdgeSpecError, TemplateError
from .apis import API, APIS
from .base import Answer, ParsedRequest, PreparedRequest, ServedModel
from .clients import client_of
from .errors import ApiError, as_api_error
from .event_stream import EventStream, Item, in_order, looks, take
from .generation import Generation
from .limits import Limits
from .metrics import Metrics
from .preparation import Preparation, of_body
from .request_queue import RequestQueue
from .work import while_connected

_END = object()


class Answering:
    """Reads and prepares requests, lets the engine answer them, and writes the answers."""

    def __init__(
        self,
        engine: Engine,
        serving: ServedModel,
        preparation: Preparation,
        queue: RequestQueue,
        metrics: Metrics,
        limits: Limits,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._serving = serving
        self._preparation = preparation
        self._queue = queue
        self._metrics = metrics

    def routes(self) -> list[Route]:
        """Return a route for each API, all under `/v1`."""
        return [Route(api.path, self._endpoint(api), methods=["POST"]) for api in APIS]

    def _endpoint(self, api: API) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            self._limits.admit(client_of(request.scope))
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
        await while_connected(request.receive, anext(items))  # until it has a place in the queue
        return EventStream(writer, items, log)

    async def _events(
        self, asked: ParsedRequest, prepared: PreparedRequest, scope: Scope
    ) -> AsyncGenerator[Item, None]:
        """Yield the engine's events. For a stream, yield None as soon as the request has a place in
        the queue, and then at every time to look whether the client has heard nothing for long.

        The engine runs in a separate task, so that a client that reads slowly occupies the engine
        only as long as generating takes.
        """
        arrived: asyncio.Queue[Any] = asyncio.Queue()  # items, an exception or _END

        def look() -> None:
            arrived.put_nowait(None)

        async def work() -> None:
            try:
                await generation.run(look if asked.stream else None)
                arrived.put_nowait(_END)
            except BaseException as error:
                arrived.put_nowait(error)

        generation = Generation(
            self._engine, self._queue, self._metrics, self._limits, asked, prepared, scope,
            arrived.put_nowait,
        )  # fmt: skip
        tasks = {asyncio.create_task(work())}
        if asked.stream:
            tasks.add(asyncio.create_task(looks(look)))
        try:
            while (item := await arrived.get()) is not _END:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


@contextlib.contextmanager
def _errors_about(asked: ParsedRequest, request: Request) -> Iterator[None]:
    """Add the name of the field that holds the conversation to errors about the conversation."""
    try:
        yield
    except (ApiError, EdgeSpecError) as error:
        told = as_api_error(error, request.scope["edgespec.log"]["request_id"])
        if told.param == "messages":
            told.param = asked.messages
        if isinstance(error, TemplateError) and error.index is not None:
            place = f"messages[{error.index}]"
            told.param = asked.places[error.index] if asked.places else place
            told.message = told.message.replace(place, told.param, 1)
        raise told from error


async def _answers(items: AsyncIterator[Item]) -> list[Answer]:
    """Return all answers once they have ended."""
    answers: dict[int, Answer] = {}
    async for item in items:
        if item is not None:
            take(item, answers)
    return in_order(answers)
