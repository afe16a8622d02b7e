"""Turns requests into token ids, and the endpoints for clients without a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .. import protocol
from ..decoding import templates
from ..decoding.chat import encode
from ..decoding.engine import Engine
from .errors import ApiError, bad_value
from .parameters import (
    DetokenizeRequest,
    Message,
    TextPart,
    TokenizeConversation,
    TokenizeRequest,
    TokenizeText,
    read,
)
from .settings import ServerSettings, names


class Tokenization:
    """The model's tokenizer and chat template, within the server's limits."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._tokenizer = engine.tokenizer
        self._template = engine.tokenizer.chat_template or templates.CHATML
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
        given = read(await body(request), TokenizeText, TokenizeConversation)
        self.check_model(given.model)
        tokens = await run_in_threadpool(self._tokens, given)
        limit = self._engine.n_ctx
        return JSONResponse({"count": len(tokens), "max_model_len": limit, "tokens": tokens})

    async def detokenize(self, request: Request) -> Response:
        """Answer `/detokenize`: the text of token ids."""
        given = read(await body(request), DetokenizeRequest)
        self.check_model(given.model)
        tokens = self._engine.encode(given.tokens) if given.tokens else []
        text = b"".join(map(self._tokenizer.piece, tokens)).decode("utf-8", "replace")
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

    def conversation(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of a conversation, up to where the assistant's answer begins."""
        return self._fitting(self._rendered(messages, opening=True), "messages")

    def prompts(self, prompt: Any) -> list[list[int]]:
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
        return [self._fitting(self._engine.encode(each), "prompt") for each in prompts]

    def _tokens(self, given: TokenizeRequest) -> list[int]:
        if isinstance(given, TokenizeConversation):
            return self._rendered(given.messages, opening=given.add_generation_prompt is not False)
        assert isinstance(given, TokenizeText)
        special = given.add_special_tokens is not False
        return self._tokenizer.encode(given.prompt, add_special=special)

    def _rendered(self, messages: Sequence[Message], *, opening: bool) -> list[int]:
        plain = [{"role": _role(m.role), "content": _text(m.content)} for m in messages]
        text = templates.render(
            self._template, plain, self._tokenizer.special(), add_generation_prompt=opening
        )
        return encode(self._tokenizer, text)

    def _fitting(self, prompt: list[int], param: str) -> list[int]:
        most = self._engine.n_ctx
        if self._settings.max_prompt_tokens:
            most = min(most, self._settings.max_prompt_tokens)
        if len(prompt) > most:
            raise bad_value(
                param,
                f"the prompt has {len(prompt)} tokens; this server takes {most} "
                f"(the model's context is {self._engine.n_ctx}): shorten it",
                "context_length_exceeded",
            )
        return prompt

    def _encoded_vocabulary(self) -> tuple[str, bytes]:
        digest = protocol.vocabulary_hash(self._tokenizer, self._tokenizer.vocab_size)
        return f'"{digest.hex()}"', protocol.vocabulary(self._tokenizer, digest)


async def body(request: Request) -> bytes:
    """Return the body of a request; raise ApiError (415) if it is not declared as JSON.

    Browsers let a web page of another origin send JSON only after asking the server.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, f"the body must be application/json, got {kind or 'no type'!r:.80}")
    return await request.body()


def _role(role: str) -> str:
    return "system" if role == "developer" else role


def _text(content: str | list[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
