"""The endpoints `/v1/responses` and `/v1/messages`: converters to chat completions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...errors import EdgeSpecError
from .. import parameters
from ..errors import ApiError, as_api_error
from ..openai import OpenAIEndpoints
from ..parameters import ChatRequest
from ..settings import ServerSettings
from ..streams import Form
from ..tokenization import of_body
from . import messages_request, responses_request
from .conversion import Conversion
from .messages_request import CountRequest, MessagesRequest
from .messages_writer import MessagesWriter
from .responses_request import ResponsesRequest
from .responses_writer import ResponsesWriter
from .writer import Converted


class ConvertedEndpoints:
    """OpenAI's Responses API and Anthropic's Messages API over chat completions."""

    def __init__(self, openai: OpenAIEndpoints, settings: ServerSettings) -> None:
        self._openai = openai
        self._model = settings.model

    def routes(self) -> list[Route]:
        """Return the routes, all under `/v1`."""
        return [
            Route("/v1/responses", self.responses, methods=["POST"]),
            Route("/v1/messages", self.messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", self.count_tokens, methods=["POST"]),
        ]

    async def responses(self, request: Request) -> Response:
        """Answer `/v1/responses`: continue a conversation, as OpenAI's newer API has it."""

        def read(body: bytes) -> tuple[dict[str, Any], ResponsesRequest, Conversion]:
            values = responses_request.prepared(parameters.parse(body))
            given = parameters.check(values, ResponsesRequest)
            return values, given, responses_request.conversion(given)

        values, given, conversion = await of_body(request, read)

        def form(n_prompt_tokens: int) -> Form:
            return Converted(ResponsesWriter(given, values, self._model))

        return await self._continue(request, conversion, form)

    async def messages(self, request: Request) -> Response:
        """Answer `/v1/messages`: continue a conversation, as Anthropic's API has it."""
        conversion = await of_body(
            request, lambda b: messages_request.conversion(parameters.read(b, MessagesRequest))
        )

        def form(n_prompt_tokens: int) -> Form:
            return Converted(MessagesWriter(self._model, n_prompt_tokens))

        return await self._continue(request, conversion, form)

    async def count_tokens(self, request: Request) -> Response:
        """Answer `/v1/messages/count_tokens`: the number of tokens of a conversation."""
        conversion = await of_body(
            request, lambda b: messages_request.conversion(parameters.read(b, CountRequest))
        )
        with _renamed(request, conversion):
            asked = await of_body(request, lambda _: _checked(conversion))
            n_tokens = await self._openai.count_tokens(request, asked)
        return JSONResponse({"input_tokens": n_tokens})

    async def _continue(
        self, request: Request, conversion: Conversion, form: Callable[[int], Form]
    ) -> Response:
        with _renamed(request, conversion):
            asked = await of_body(request, lambda _: _checked(conversion))
            return await self._openai.continue_chat(request, asked, form)


def _checked(conversion: Conversion) -> ChatRequest:
    return parameters.check(conversion.fields, ChatRequest)


@contextlib.contextmanager
def _renamed(request: Request, conversion: Conversion) -> Iterator[None]:
    """Raise errors about the chat-completions request as errors about the one that was sent."""
    try:
        yield
    except (ApiError, EdgeSpecError) as error:
        request_id = request.scope["edgespec.log"]["request_id"]
        raise conversion.renamed(as_api_error(error, request_id)) from error
