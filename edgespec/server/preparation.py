"""Prepares requests for the engine: tokenizes their texts and compiles the forms of answers.

Texts are tokenized one request at a time, in a separate queue: this is usually quick and need not
wait for running answers. Forms are compiled one at a time for each client, and a few at a time in
all, so that the forms of one client do not delay other clients.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from ..chat.encoder import ConversationEncoder
from ..chat.messages import Message
from ..chat.options import AnswerOptions
from ..chat.pictures import Album, Content, as_result, content_of, has_pictures
from ..chat.reader import Reader
from ..chat.request import GenerationRequest
from ..config import SamplingParams
from ..constraints.compiler import compiled_at_once
from ..decoding.infill import Infill, infill_ids
from ..decoding.prompts import check_size, collect, prediction_ids
from ..engine import Engine
from ..errors import ConfigError, ContextFull
from ..sampling.sampler import check_bias
from .apis.fields import TOO_DEEP, is_shallow
from .base import ParsedRequest, PreparedRequest, arguments_of
from .clients import client_of
from .errors import TOO_LONG, ApiError, bad_value, shutting_down
from .filling import Filling
from .media import Media
from .request_queue import RequestQueue
from .settings import ServerSettings
from .work import Stopped, in_turn, while_connected

T = TypeVar("T")
_LARGE = 1 << 16  # bytes; parsing a body of this size takes a millisecond or more


class _Tokenized(NamedTuple):
    """A request as token ids. rendered: the text of a conversation. options: the request's options
    for tools and reasoning, None if they change nothing. begun: the beginning of the answer, which
    ends the conversation.
    """

    prompts: list[list[int]]
    rendered: str = ""
    options: AnswerOptions | None = None
    prediction: list[int] = []  # noqa: RUF012
    begun: str = ""


class Rendered(NamedTuple):
    """A conversation as text. pieces: its token ids. begun: the end of the text that the answer
    continues, "" if the answer is a new message.
    """

    text: str
    pieces: Iterator[list[int]]
    begun: str = ""


class Preparation:
    """Prepares requests with the model's tokenizer and template, within the server's limits."""

    def __init__(self, engine: Engine, settings: ServerSettings, filling: Filling) -> None:
        self._engine = engine
        self._filling = filling
        self._settings = settings
        self._tokenizer = engine.tokenizer
        self._encoders = {
            special: ConversationEncoder(engine.tokenizer, parse_special=special)
            for special in (False, True)
        }
        self._queue = RequestQueue(settings.max_queue)  # requests to tokenize
        self._forms: dict[str, RequestQueue] = {}  # forms to compile, by client
        self._media = Media(settings)
        self._at_once = asyncio.Semaphore(compiled_at_once())
        self._closed = False

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait to be tokenized."""
        return self._queue.n_waiting

    @property
    def n_tokenizing(self) -> int:
        """Number of requests that are being tokenized: 0 or 1."""
        return self._queue.n_running

    @property
    def n_running(self) -> int:
        """Number of texts that are being tokenized and of forms that are being compiled."""
        return self._queue.n_running + sum(queue.n_running for queue in self._forms.values())

    def close(self) -> None:
        """Stop preparing requests; those that are waiting get a 503."""
        self._closed = True
        for queue in (self._queue, *self._forms.values()):
            queue.close()

    def check_model(self, name: str | None) -> None:
        """Raise ApiError (404) if requests for a model of this name are not answered."""
        if name is not None and not self._settings.serves(name):
            raise ApiError(
                404,
                f"the model {name[:80]!r} is not served here; this server has "
                f"{', '.join(map(repr, self._settings.names))}",
                param="model",
                code="model_not_found",
            )

    async def prepared(self, request: Request, asked: ParsedRequest) -> PreparedRequest:
        """Return a request as the engine takes it. Raises ApiError with status 429 if too many
        requests wait, 503 if the server is shutting down.
        """
        self._check_bias(asked.request.params)
        asked = await self._with_media(request, asked)
        owner = client_of(request.scope).owner
        tokenized = await self.in_turn(
            request, lambda stopped: self._tokenized(asked, owner, stopped)
        )
        if tokenized.options is None and not asked.form:
            return PreparedRequest(tokenized.prompts, prediction=tokenized.prediction)
        params = asked.request.params

        def work(stopped: Stopped) -> PreparedRequest:
            try:
                return self._compiled(params, asked.request.n, tokenized, owner, stopped)
            except ConfigError as error:
                raise bad_value(self._place_of(asked, owner), str(error)) from None

        return await self._compiled_in_turn(request, work)

    async def count(self, request: Request, asked: ParsedRequest) -> int:
        """Return the number of tokens of a conversation, up to where the answer would begin."""
        asked = await self._with_media(request, asked)
        owner = client_of(request.scope).owner

        def count(stopped: Stopped) -> int:
            told, album = self._shown(asked, owner)
            rendered = self.rendered(told, self._options(told), album=album)
            return len(collect(rendered.pieces, self._settings.max_body_bytes, stopped))

        return await self.in_turn(request, count)

    async def in_turn(self, request: Request, work: Callable[[Stopped], T]) -> T:
        """Run `work` in a thread when the request's turn to be tokenized has come, and return its
        result. `work` is stopped if the client leaves. Raises ApiError as `prepared` does.
        """
        turn = client_of(request.scope).turn
        return await while_connected(request.receive, in_turn(self._queue, turn, work))

    def rendered(
        self,
        asked: GenerationRequest,
        options: AnswerOptions | None,
        *,
        opening: bool = True,
        album: Album | None = None,
    ) -> Rendered:
        """Return a conversation as text, and its token ids piece by piece.

        opening: True to end with the opening of the assistant's turn, or with its last message if
        that is continued. album: receives the pictures; None if there can be none. Raises ApiError
        if there is no message, if the arguments of a call are nested too deeply for templates, or
        if the last message cannot be continued as asked.
        """
        if not asked.messages:
            raise bad_value("messages", "there is no message in it; send at least one")
        _check_calls(asked.messages)
        encoder = self._encoders[asked.parse_special]
        if album:
            encoder = encoder.with_album(album)
        text = self._begun(encoder, asked, options) if opening else None
        if text is not None:
            return Rendered(text, encoder.pieces(text), asked.messages[-1]["content"])
        text = encoder.render(asked.messages, add_generation_prompt=opening, options=options)
        return Rendered(text, encoder.pieces(text))

    @staticmethod
    def _begun(
        encoder: ConversationEncoder, asked: GenerationRequest, options: AnswerOptions | None
    ) -> str | None:
        """Return a conversation as text whose end the answer continues, None if the answer is a
        message of its own. Raises ApiError if continuing was asked for and is not possible.
        """
        if asked.continues is False:
            return None
        why, text = asked.why_whole, None
        if not why:
            text = encoder.render_begun(asked.messages, options=options)
            why = "the model's chat template changes the end of an answer"
        if text is None and asked.continues:
            raise bad_value(
                "messages", f"the last message cannot be continued: {why}; let the user speak last"
            )
        return text

    def checked(self, options: AnswerOptions) -> AnswerOptions:
        """Return the options. Raises ApiError if the model cannot follow them."""
        try:
            self._engine.answer_format.check(options)
        except ConfigError as error:
            raise bad_value("tools", str(error), "unsupported_parameter") from None
        return options

    async def _with_media(self, request: Request, asked: ParsedRequest) -> ParsedRequest:
        """Return a request with the bytes of pictures in place of their addresses. Raises ApiError
        if one cannot be read. They are read before the request waits for its turn.
        """
        messages = asked.request.messages
        if not self._engine.eyes or not self._media.is_named(messages):
            return asked
        reading = self._media.read_all(messages, asked.message_places)
        read = await while_connected(request.receive, reading)
        return replace(asked, request=replace(asked.request, messages=read))

    def _shown(self, asked: ParsedRequest, owner: str) -> tuple[GenerationRequest, Album | None]:
        """Return a request with its pictures decoded, and an album for them; None if it has none.
        Raises ApiError if a picture cannot be shown.
        """
        messages = self.decoded(asked.request.messages, asked.message_places)
        if not any(has_pictures(message.get("content")) for message in messages):
            return replace(asked.request, messages=messages), None
        album = Album(functools.partial(self._engine.read, owner=owner))
        return replace(asked.request, messages=messages), album

    def decoded(self, messages: Sequence[Message], places: Sequence[str]) -> list[Message]:
        """Return messages with their pictures decoded. places: for each message, its place in the
        request. Raises ApiError if a picture of a user cannot be shown; in results of tools, a
        sentence takes the place of such pictures.
        """
        return [
            {**message, "content": self._content(message, place)}
            if isinstance(message.get("content"), list)
            else message
            for message, place in zip(messages, places, strict=True)
        ]

    def _content(self, message: Message, place: str) -> Content:
        if message["role"] == "tool":
            return as_result(message["content"], bool(self._engine.eyes))
        try:
            self._engine.check_sees()
            return content_of(message["content"])
        except ConfigError as error:
            raise bad_value(place, f"{place}: {error}") from None

    def _tokenized(self, asked: ParsedRequest, owner: str, stopped: Stopped) -> _Tokenized:
        request, album = self._shown(asked, owner)
        if request.prompts:
            self._check_number(len(request.prompts))
            params = request.params
            return _Tokenized([self._prompt(each, params, stopped) for each in request.prompts])
        options = self._options(request)
        rendered = self.rendered(request, options, album=album)
        tokens = self._fitting(rendered.text, rendered.pieces, "messages", stopped)
        prediction = prediction_ids(self._tokenizer, request.prediction, self._engine.n_ctx)
        return _Tokenized([tokens], rendered.text, options, prediction, rendered.begun)

    def _options(self, request: GenerationRequest) -> AnswerOptions | None:
        """Return a chat's options for tools and reasoning, None if they change nothing."""
        options, form = self.checked(request.options), self._engine.answer_format
        return None if options == AnswerOptions() and form.reasoning is None else options

    def _compiled(
        self, params: SamplingParams, n: int, found: _Tokenized, owner: str, stopped: Stopped
    ) -> PreparedRequest:
        engine, options = self._engine, found.options
        readers: list[Reader] = []
        while options and len(readers) < n:
            reader = engine.reader(params, options, found.rendered, owner)
            if reader is None:
                break
            reader.feed(found.begun)
            readers.append(reader)
        if stopped():
            raise shutting_down()
        constraint = engine.constraint(params, options, found.rendered, owner)
        return PreparedRequest(found.prompts, constraint, readers, found.prediction)

    def _place_of(self, asked: ParsedRequest, owner: str) -> str:
        """Return the field of the request that holds the form or tool that cannot be compiled."""
        for tool in asked.request.options.tools:
            try:
                options = AnswerOptions((tool,), tool.name)
                self._engine.constraint(SamplingParams(), options, owner=owner)
            except ConfigError:
                return asked.tools[tool.name]
        return asked.form or "tools"

    async def _compiled_in_turn(self, request: Request, work: Callable[[Stopped], T]) -> T:
        if self._closed:
            raise shutting_down()
        turn = client_of(request.scope).turn
        queue = self._forms.setdefault(turn, RequestQueue(self._settings.max_queue))
        try:
            working = in_turn(queue, turn, work, self._at_once)
            return await while_connected(request.receive, working)
        finally:
            if not queue.n_running and not queue.n_waiting:
                self._forms.pop(turn, None)

    def _check_bias(self, params: SamplingParams) -> None:
        """Raise ApiError if a request biases a token that the model does not have."""
        try:
            if self._engine.target is not None:
                check_bias(params, self._engine.target.vocab_size)
        except ConfigError as error:
            raise bad_value("logit_bias", str(error)) from None

    def _check_number(self, n: int) -> None:
        """Raise ApiError if a request has more prompts than this server takes."""
        most = self._settings.max_prompts
        if n > most:
            raise bad_value("prompt", f"{n} prompts in one request; this server takes {most}")

    def _prompt(
        self, prompt: str | list[int] | Infill, params: SamplingParams, stopped: Stopped
    ) -> list[int]:
        if isinstance(prompt, Infill):
            return self._filled(prompt, params, stopped)
        if not prompt or not isinstance(prompt, str):
            ids = self._engine.encode(prompt)
            return self._fitting("", iter([ids]), "prompt", stopped)
        return self._fitting(prompt, self._tokenizer.encode_pieces(prompt), "prompt", stopped)

    def _filled(self, hole: Infill, params: SamplingParams, stopped: Stopped) -> list[int]:
        """Return the prompt for a text with a hole, which leaves room for the answer if text may be
        left out.
        """
        markers, most = self._filling.required("suffix"), self._most
        if hole.cuts:
            most -= min(params.max_tokens or most, most // 4)
        else:
            check_size(self._tokenizer, hole.prefix + hole.suffix, most, "shorten it")
        ids = infill_ids(self._tokenizer, markers, hole, most)
        return self._fitting("", iter([ids]), "prompt", stopped)

    @property
    def _most(self) -> int:
        """The largest number of tokens in a prompt."""
        limits = self._engine.n_ctx, self._settings.max_prompt_tokens
        return min(filter(None, limits))

    def _fitting(
        self, text: str, pieces: Iterator[list[int]], param: str, stopped: Stopped
    ) -> list[int]:
        """Return the token ids of `text`, which `pieces` yields.

        Raises ApiError if there are too many; if the number of bytes shows this, the text is not
        tokenized.
        """
        most = self._most
        try:
            check_size(self._tokenizer, text, most, "shorten it")
        except ContextFull as error:
            raise bad_value(param, str(error), TOO_LONG) from None
        prompt = collect(pieces, most, stopped)
        if len(prompt) > most:
            more = "it has more than these; " if next(pieces, None) is not None else ""
            raise bad_value(
                param,
                f"prompt is too long: {len(prompt)} tokens > {most} maximum ({more}the model's "
                f"context is {self._engine.n_ctx}): shorten it",
                TOO_LONG,
            )
        return prompt


def _check_calls(messages: Sequence[Message]) -> None:
    for message in messages:
        for call in message.get("tool_calls", ()):
            if not is_shallow(arguments_of(call["function"]["arguments"])):
                raise bad_value("messages", f"arguments of a call {TOO_DEEP}")


async def of_body(request: Request, work: Callable[[bytes], T]) -> T:
    """Return the result of `work` for the body of a request; with a large body `work` runs in a
    thread. Raises ApiError (415) if the body is not declared as JSON.

    This stops web pages of other origins: their browser asks the server before it sends JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"the body must be application/json, got {kind or 'no type'!r:.80}")
    content = await request.body()
    return await run_in_threadpool(work, content) if len(content) > _LARGE else work(content)
