"""The endpoints for clients without a tokenizer: token ids, their text, and the vocabulary."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .. import protocol
from ..chat.options import AnswerOptions
from ..chat.pictures import names_pictures
from ..chat.request import GenerationRequest
from ..decoding.prompts import collect
from ..engine import Engine
from .apis.chat_completions import given_tools
from .apis.chat_completions.structs import messages_of
from .apis.fields import read
from .apis.tokens import DetokenizeRequest, TokenizeConversation, TokenizeRequest, TokenizeText
from .apis.tools import Tools, variables_of
from .errors import bad_value
from .preparation import Preparation, of_body
from .settings import ServerSettings
from .work import Stopped

_NO_IDS = "pictures have no token ids; /v1/messages/count_tokens counts their tokens"


class Tokenization:
    """The endpoints with which clients use the model's tokenizer and chat template."""

    def __init__(self, engine: Engine, settings: ServerSettings, preparation: Preparation) -> None:
        self._engine = engine
        self._settings = settings
        self._preparation = preparation
        self._vocabulary: tuple[str, bytes] | None = None  # ETag and body

    def routes(self) -> list[Route]:
        """Return the routes; `/tokenize` and `/detokenize` are like vLLM's."""
        return [
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/v1/vocabulary", self.vocabulary, methods=["GET"]),
        ]

    async def tokenize(self, request: Request) -> Response:
        """Answer `/tokenize` with the token ids of a text or of a conversation."""
        given = await of_body(request, lambda b: read(b, TokenizeText, TokenizeConversation))
        self._preparation.check_model(given.model)
        tokens = await self._preparation.in_turn(
            request, lambda stopped: self._tokens(given, stopped)
        )
        limit = self._engine.n_ctx
        return JSONResponse({"count": len(tokens), "max_model_len": limit, "tokens": tokens})

    async def detokenize(self, request: Request) -> Response:
        """Answer `/detokenize` with the text of token ids."""
        given = await of_body(request, lambda b: read(b, DetokenizeRequest))
        self._preparation.check_model(given.model)
        text = await of_body(request, lambda _: self._text(given.tokens))
        return JSONResponse({"prompt": text})

    async def vocabulary(self, request: Request) -> Response:
        """Answer `/v1/vocabulary` with the bytes that each token adds, in the protocol's format.

        The vocabulary does not change while the server runs; a client that has it gets a 304.
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
        return b"".join(map(self._engine.tokenizer.piece, known)).decode("utf-8", "replace")

    def _tokens(self, given: TokenizeRequest, stopped: Stopped) -> list[int]:
        if isinstance(given, TokenizeConversation):
            tools = Tools(given_tools(given.tools)).options().tools
            variables = variables_of(given.chat_template_kwargs)
            options = self._preparation.checked(AnswerOptions(tools, template_kwargs=variables))
            messages = messages_of(given.messages)
            if self._engine.eyes and any(names_pictures(each["content"]) for each in messages):
                raise bad_value("messages", _NO_IDS)
            places = [f"messages[{i}]" for i in range(len(messages))]
            messages = self._preparation.decoded(messages, places)
            asked = GenerationRequest(
                messages=messages, parse_special=bool(given.parse_special),
                continues=given.continue_final_message,
            )  # fmt: skip
            opening = given.add_generation_prompt is not False or bool(asked.continues)
            pieces = self._preparation.rendered(asked, options, opening=opening).pieces
        else:
            assert isinstance(given, TokenizeText)
            pieces = self._engine.tokenizer.encode_pieces(
                given.prompt,
                add_special=given.add_special_tokens is not False,
                parse_special=given.parse_special is not False,
            )
        return collect(pieces, self._settings.max_body_bytes, stopped)

    def _encoded_vocabulary(self) -> tuple[str, bytes]:
        tokenizer = self._engine.tokenizer
        digest = protocol.vocabulary_hash(tokenizer, tokenizer.vocab_size)
        return f'"{digest.hex()}"', protocol.vocabulary(tokenizer, digest)
