"""Forms in which responses are written, and the stream of server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .errors import ApiError, as_api_error
from .work import while_connected


class Form(Protocol):
    """Writes a response, of which there are the dicts that a ResponseBuilder makes."""

    def whole(self, response: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a whole response as it is sent."""
        ...

    def stream(self, chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
        """Yield the server-sent events of a stream."""
        ...

    def failure(self, error: ApiError, request_id: str) -> str:
        """Return the server-sent events that end a stream that broke off."""
        ...


class PlainForm:
    """The form of OpenAI's completions: a chunk an event, and [DONE] at the end."""

    def whole(self, response: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a response as it is."""
        return response

    async def stream(self, chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
        """Yield an event for each chunk."""
        async for chunk in chunks:
            yield f"data: {json.dumps(chunk, allow_nan=False, separators=(',', ':'))}\n\n"
        yield "data: [DONE]\n\n"

    def failure(self, error: ApiError, request_id: str) -> str:
        """Return an event with the error."""
        return f"data: {json.dumps(error.body())}\n\n"


class EventStream(Response):
    """Sends a stream of server-sent events in a form.

    chunks: what the stream says. source: where the chunks come from; it is closed as soon as the
    client has gone.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        form: Form,
        chunks: AsyncIterator[dict[str, Any]],
        source: AsyncGenerator[Any, None],
        log: dict[str, Any],
    ) -> None:
        self.status_code = 200
        self.background = None
        self._form = form
        self._chunks = chunks
        self._source = source
        self._log = log
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until they end or the client has gone."""
        try:
            await while_connected(receive, self._send_all(send))
        finally:
            await self._source.aclose()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for text in self._texts():
            body = text.encode("ascii")
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(0)  # neither chunks that wait already nor `send` let others in
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _texts(self) -> AsyncIterator[str]:
        try:
            async for text in self._form.stream(self._chunks):
                yield text
        except Exception as error:
            self._log["error"] = type(error).__name__
            request_id = self._log["request_id"]
            yield self._form.failure(as_api_error(error, request_id), request_id)
