"""Turns requests into token ids, and the endpoints for clients without a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .. import protocol
from ..chat.encoder import ConversationEncoder
from ..chat.options import AnswerOptions
from ..decoding.prompts import check_size, collect, prediction_ids
from ..engine import Engine
from .clients import client_of
from .errors import TOO_LONG, ApiError, bad_value
from .messages import for_templates, text_of
from .parameters import (
    ChatRequest,
    DetokenizeRequest,
    TokenizeConversation,
    TokenizeRequest,
    TokenizeText,
    read,
)
from .request_queue import RequestQueue
from .settings import ServerSettings, names
from .tools import answer_options, template_options
from .work import Stopped, in_turn, while_connected

T = TypeVar("T")
_LARGE = 1 << 16  # bytes of a body: reading it takes a millisecond or more


class Conversation(NamedTuple):
    """A conversation up to where the assistant's answer begins.

    options: what it says about tools and reasoning, None where that changes nothing. prediction:
    token ids that the answer may have, from which it is drafted.
    """

    tokens: list[int]
    rendered: str
    options: AnswerOptions | None
    prediction: list[int]


class Tokenization:
    """The model's tokenizer and chat template, within the server's limits.

    One request is tokenized at a time, in a queue of its own beside that for the engine: texts
    are cheap as a rule, and do not wait for answers; as many may wait as there.
    """

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._tokenizer = engine.tokenizer
        self._encoder = ConversationEncoder(engine.tokenizer)
        self._parsing_encoder = ConversationEncoder(engine.tokenizer, parse_special=True)
        self._queue = RequestQueue(settings.max_queue)
        self._vocabulary: tuple[str, bytes] | None = None  # ETag and body

    def routes(self) -> list[Route]:
        """Return the routes; `/tokenize` and `/detokenize` are like vLLM's."""
        return [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/v1/vocabulary", self.vocabulary, methods=["GET"]),
        ]

    async def tokenize(self, request: Request) -> Response:
        """Answer `/tokenize`: the token ids of a text or of a conversation."""
        given = await of_body(request, lambda b: read(b, TokenizeText, TokenizeConversation))
        self.check_model(given.model)
        tokens = await self._alone(request, lambda stopped: self._tokens(given, stopped))
        limit = self._engine.n_ctx
        return JSONResponse({"count": len(tokens), "max_model_len": limit, "tokens": tokens})

    async def detokenize(self, request: Request) -> Response:
        """Answer `/detokenize`: the text of token ids."""
        given = await of_body(request, lambda b: read(b, DetokenizeRequest))
        self.check_model(given.model)
        text = await of_body(request, lambda _: self._text(given.tokens))
        return JSONResponse({"prompt": text})

    async def vocabulary(self, request: Request) -> Response:
        """Answer `/v1/vocabulary`: what each token adds to a text, in the protocol's format.

        The vocabulary does not change while the server runs; a client that has it gets 304.
        """
        if self._vocabulary is None:
            self._vocabulary = await run_in_threadpool(self._encoded_vocabulary)
        tag, encoded = self._vocabulary
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(encoded, headers=headers, media_type="application/octet-stream")

    def _text(self, tokens: list[int]) -> str:
        known = self._engine.encode(tokens) if tokens else []
        return b"".join(map(self._tokenizer.piece, known)).decode("utf-8", "replace")

    def check_model(self, name: str | None) -> None:
        """Raise ApiError (404) if `name` is another model than the one that is served."""
        if name is not None and not names(name, self._settings.model):
            raise ApiError(
                404,
                f"the model {name[:80]!r} is not served here; this server has "
                f"{self._settings.model!r}",
                param="model",
                code="model_not_found",
            )

    def close(self) -> None:
        """Stop tokenizing; requests that wait for it get a 503."""
        self._queue.close()

    @property
    def n_waiting(self) -> int:
        """Number of requests that wait to be tokenized."""
        return self._queue.n_waiting

    @property
    def n_running(self) -> int:
        """Number of requests that are being tokenized: 0 or 1."""
        return self._queue.n_running

    async def conversation(self, request: Request, given: ChatRequest) -> Conversation:
        """Return a conversation up to where the assistant's answer begins."""
        return await self._alone(request, lambda stopped: self._conversation(given, stopped))

    async def count(self, request: Request, given: ChatRequest) -> int:
        """Return how many tokens a conversation has, up to where the assistant's answer begins."""
        return await self._alone(request, lambda stopped: self._count(given, stopped))

    async def prompts(self, request: Request, prompt: Any) -> list[list[int]]:
        """Return the token ids of each prompt of a completions request."""
        texts_or_ids = prompt if isinstance(prompt, list) else [prompt]
        kinds = {type(item) for item in texts_or_ids}
        if len(kinds) > 1:
            raise bad_value("prompt", "prompt mixes texts, token ids and lists; give one kind")
        prompts = [prompt] if kinds == {int} else texts_or_ids
        if len(prompts) > self._settings.max_prompts:
            raise bad_value(
                "prompt",
                f"{len(prompts)} prompts in one request; this server takes "
                f"{self._settings.max_prompts}",
            )
        return await self._alone(
            request, lambda stopped: [self._prompt(each, stopped) for each in prompts]
        )

    async def _alone(self, request: Request, work: Callable[[Stopped], T]) -> T:
        """Run `work` in a thread when its turn has come; it is stopped if the client leaves.

        Raises ApiError: 429 if too many requests wait, 503 if the server ends.
        """
        turn = client_of(request.scope).turn
        return await while_connected(request.receive, in_turn(self._queue, turn, work))

    def _prompt(self, prompt: str | list[int], stopped: Stopped) -> list[int]:
        if not prompt or not isinstance(prompt, str):
            ids = self._engine.encode(prompt)
            return self._fitting("", iter([ids]), "prompt", stopped)
        return self._fitting(prompt, self._tokenizer.encode_pieces(prompt), "prompt", stopped)

    def _conversation(self, given: ChatRequest, stopped: Stopped) -> Conversation:
        options = self._options(given)
        rendered, pieces = self._rendered(given, options)
        tokens = self._fitting(rendered, pieces, "messages", stopped)
        predicted = text_of(given.prediction.content) if given.prediction else ""
        prediction = prediction_ids(self._tokenizer, predicted, self._engine.n_ctx)
        return Conversation(tokens, rendered, options, prediction)

    def _count(self, given: ChatRequest, stopped: Stopped) -> int:
        _, pieces = self._rendered(given, self._options(given))
        return len(collect(pieces, self._settings.max_body_bytes, stopped))

    def _options(self, given: ChatRequest) -> AnswerOptions | None:
        """Return what a chat says about tools and reasoning, None where that changes nothing."""
        form = self._engine.answer_format
        options = answer_options(given, form)
        return None if options == AnswerOptions() and form.reasoning is None else options

    def _tokens(self, given: TokenizeRequest, stopped: Stopped) -> list[int]:
        if isinstance(given, TokenizeConversation):
            options = template_options(given, self._engine.answer_format)
            opening = given.add_generation_prompt is not False
            _, pieces = self._rendered(given, options, opening=opening)
        else:
            assert isinstance(given, TokenizeText)
            pieces = self._tokenizer.encode_pieces(
                given.prompt,
                add_special=given.add_special_tokens is not False,
                parse_special=given.parse_special is not False,
            )
        return collect(pieces, self._settings.max_body_bytes, stopped)

    def _rendered(
        self,
        given: ChatRequest | TokenizeConversation,
        options: AnswerOptions | None,
        *,
        opening: bool = True,
    ) -> tuple[str, Iterator[list[int]]]:
        """Return a conversation as text, and its token ids piece by piece."""
        encoder = self._parsing_encoder if given.parse_special else self._encoder
        messages = for_templates(given.messages)
        text = encoder.render(messages, add_generation_prompt=opening, options=options)
        return text, encoder.pieces(text)

    def _fitting(
        self, text: str, pieces: Iterator[list[int]], param: str, stopped: Stopped
    ) -> list[int]:
        """Return the ids of `pieces`, of which `text` is made, if they are not too many.

        A text that has too many by its bytes alone is not tokenized.
        """
        most = self._engine.n_ctx
        if self._settings.max_prompt_tokens:
            most = min(most, self._settings.max_prompt_tokens)
        check_size(self._tokenizer, text, most)
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

    def _encoded_vocabulary(self) -> tuple[str, bytes]:
        digest = protocol.vocabulary_hash(self._tokenizer, self._tokenizer.vocab_size)
        return f'"{digest.hex()}"', protocol.vocabulary(self._tokenizer, digest)


async def of_body(request: Request, work: Callable[[bytes], T]) -> T:
    """Return what `work` makes of the body of a request, of a large one in a thread. Raises
    ApiError (415) if it is not declared as JSON.

    Browsers let a web page of another origin send JSON only after asking the server.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"the body must be application/json, got {kind or 'no type'!r:.80}")
    content = await request.body()
    return await run_in_threadpool(work, content) if len(content) > _LARGE else work(content)
