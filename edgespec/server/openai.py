"""The endpoints of OpenAI's API over one engine: models, chat completions, completions."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from ..chat.reader import Reader
from ..engine import Engine
from ..types import Completion, Event
from . import engine_options, parameters
from .answers import Answer, AnswerResponseBuilder
from .clients import client_of
from .errors import bad_value, shutting_down
from .forms import Forms
from .metrics import Metrics
from .parameters import ChatRequest, Generation
from .request_queue import RequestQueue
from .responses import ChatResponseBuilder, Offsets, ResponseBuilder, TextResponseBuilder
from .settings import ServerSettings
from .streams import EventStream, Form, PlainForm
from .tokenization import Tokenization, of_body
from .work import while_connected

T = TypeVar("T")
Item = tuple[int, Event]
"""An event, and the index of the choice that it belongs to."""


class OpenAIEndpoints:
    """Models, chat completions and completions."""

    def __init__(
        self,
        engine: Engine,
        settings: ServerSettings,
        tokenization: Tokenization,
        forms: Forms,
        queue: RequestQueue,
        metrics: Metrics,
    ) -> None:
        from .. import __version__

        self._engine = engine
        self._settings = settings
        self._tokenization = tokenization
        self._forms = forms
        self._queue = queue
        self._metrics = metrics
        self._fingerprint = f"edgespec-{__version__}"
        self._created = int(time.time())

    def routes(self) -> list[Route]:
        """Return the routes, all under `/v1`."""
        return [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
        ]

    async def models(self, request: Request) -> Response:
        """Answer `/v1/models`: a list of the one model that is served."""
        return JSONResponse({"object": "list", "data": [self._model_card()]})

    async def model(self, request: Request) -> Response:
        """Answer `/v1/models/{model}`: the model of this name."""
        self._tokenization.check_model(request.path_params["model"])
        return JSONResponse(self._model_card())

    async def chat(self, request: Request) -> Response:
        """Answer `/v1/chat/completions`: continue a conversation."""
        given = await of_body(request, lambda b: parameters.read(b, parameters.ChatRequest))
        return await self.continue_chat(request, given, lambda n_prompt_tokens: PlainForm())

    async def continue_chat(
        self, request: Request, given: ChatRequest, form: Callable[[int], Form]
    ) -> Response:
        """Answer a chat-completions request; form: makes the form of the response, from the number
        of tokens of the prompt.
        """
        self._tokenization.check_model(given.model)
        fields, param = engine_options.sampling(given, self._settings.sampling)
        asked = await self._tokenization.conversation(request, given)
        followed = await self._forms.of_chat(request, fields, param, given, asked)
        builder = self._chat_builder(given, fields, followed.reader)
        prompt = asked.tokens
        fields |= {"constraint": followed.constraint, "prediction": asked.prediction}
        return await self._answer(request, given, builder, [prompt], fields, form(len(prompt)))

    async def count_tokens(self, request: Request, given: ChatRequest) -> int:
        """Return the number of tokens of a chat-completions request's prompt."""
        self._tokenization.check_model(given.model)
        return await self._tokenization.count(request, given)

    async def completions(self, request: Request) -> Response:
        """Answer `/v1/completions`: continue texts."""
        given = await of_body(request, lambda b: parameters.read(b, parameters.CompletionRequest))
        self._tokenization.check_model(given.model)
        fields, param = engine_options.sampling(given, self._settings.sampling)
        followed = await self._forms.of_text(request, fields, param)
        prompts = await self._tokenization.prompts(request, given.prompt)
        builder = TextResponseBuilder(**self._told(given, fields))
        fields["constraint"] = followed.constraint
        return await self._answer(request, given, builder, prompts, fields, PlainForm())

    def _chat_builder(
        self, given: Generation, fields: dict[str, Any], reader: Reader | None
    ) -> ResponseBuilder:
        told = self._told(given, fields)
        if reader is None:
            return ChatResponseBuilder(**told)
        return AnswerResponseBuilder(**told, answer=Answer(reader))

    def _told(self, given: Generation, fields: dict[str, Any]) -> dict[str, Any]:
        """Return what every builder of responses is told."""
        return {
            "model": self._settings.model,
            "tokenizer": self._engine.tokenizer,
            "fingerprint": self._fingerprint,
            "logprobs": "logprobs" in fields,
            "ids_for_tokens": bool(given.return_tokens_as_token_ids),
        }

    def _model_card(self) -> dict[str, Any]:
        return {
            "id": self._settings.model,
            "object": "model",
            "created": self._created,
            "owned_by": "edgespec",
            "max_model_len": self._engine.n_ctx,
            "speculation": self._engine.describe()["speculation"],
            "sampling": self._engine.sampling.describe(self._settings.sampling),
        }

    # --- the answer ----------------------------------------------------------------------------

    async def _answer(
        self,
        request: Request,
        given: Generation,
        builder: ResponseBuilder,
        prompts: Sequence[list[int]],
        fields: dict[str, Any],
        form: Form,
    ) -> Response:
        log = request.scope["edgespec.log"]
        log |= {"stream": bool(given.stream), "prompts": len(prompts)}
        items = self._events(prompts, fields, request.scope)
        if not given.stream:
            if given.stream_options is not None:
                raise bad_value("stream_options", "stream_options needs stream: true beside it")
            completions = await while_connected(request.receive, _completions(builder, items))
            return JSONResponse(form.whole(builder.whole(completions)))
        with_usage = bool(given.stream_options and given.stream_options.include_usage)
        first = await while_connected(request.receive, anext(items))
        return EventStream(form, _chunks(builder, first, items, with_usage), items, log)

    async def _events(
        self, prompts: Sequence[list[int]], fields: dict[str, Any], scope: Scope
    ) -> AsyncGenerator[Item, None]:
        """Yield the engine's events.

        The engine runs in a task of its own, so that a client that reads slowly holds it no longer
        than generating takes.
        """
        arrived: asyncio.Queue[Item | BaseException | None] = asyncio.Queue()

        async def work() -> None:
            try:
                async for item in self._generate(prompts, fields, scope):
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
        self, prompts: Sequence[list[int]], fields: dict[str, Any], scope: Scope
    ) -> AsyncIterator[Item]:
        """Wait for the engine, answer every prompt, and count tokens and times."""
        arrived_s, log = time.monotonic(), scope["edgespec.log"]
        client = client_of(scope)
        async with self._queue.acquire(client.turn):
            before = time.monotonic()
            self._metrics.queue_time.observe(before - arrived_s)
            log |= {"queue_ms": round(1e3 * (before - arrived_s), 1), "completion_tokens": 0}
            for index, prompt in enumerate(prompts):
                stream = self._engine.astream(prompt, owner=client.owner, **fields)
                async with contextlib.aclosing(stream) as events:
                    async for event in events:
                        if event.type == "token":
                            before = self._count_token(log, arrived_s, before)
                        if event.completion:
                            self._count_answer(event.completion, log)
                        yield index, event

    def _count_token(self, log: dict[str, Any], arrived_s: float, before: float) -> float:
        """Count a token that came just now, and return the time; before: when the last one came."""
        now, metrics = time.monotonic(), self._metrics
        if log["completion_tokens"]:
            metrics.inter_token.observe(now - before)
        else:
            metrics.first_token.observe(now - arrived_s)
        metrics.generated_tokens.inc()
        log["completion_tokens"] += 1
        return now

    def _count_answer(self, completion: Completion, log: dict[str, Any]) -> None:
        """Count a complete answer; raise ApiError if the server cancelled it to shut down."""
        stats = completion.stats
        self._metrics.finished(stats)
        for name in ("prompt", "cached", "draft", "accepted_draft"):
            key = f"{name}_tokens"
            log[key] = log.get(key, 0) + getattr(stats, f"num_{key}")
        log["finish_reason"] = completion.finish_reason
        if completion.finish_reason == "cancelled":  # only a server that shuts down cancels
            raise shutting_down()


async def _completions(builder: ResponseBuilder, items: AsyncIterator[Item]) -> list[Completion]:
    found = []
    async for _, event in items:
        builder.take(event)
        if event.completion:
            found.append(event.completion)
    return found


async def _chunks(
    builder: ResponseBuilder, first: Item, rest: AsyncIterator[Item], with_usage: bool
) -> AsyncIterator[dict[str, Any]]:
    """Yield the chunks of a streamed response."""
    no_usage = {"usage": None} if with_usage else {}
    stats, offsets, began = [], Offsets(builder.tokenizer), -1
    async for index, event in _chain(first, rest):
        if index != began:
            began, offsets = index, Offsets(builder.tokenizer)
            if opening := builder.first_chunk(index):
                yield opening | no_usage
        for piece in builder.event_chunks(index, event, offsets):
            yield piece | no_usage
        if event.completion:
            stats.append(event.completion.stats)
            yield builder.last_chunk(index, event.completion) | no_usage
    if with_usage:
        yield builder.envelope([], chunk=True) | {"usage": builder.usage(stats)}


async def _chain(first: Item, rest: AsyncIterator[Item]) -> AsyncIterator[Item]:
    yield first
    async for item in rest:
        yield item
