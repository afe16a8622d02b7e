"""HTTP connections that end if a request does not arrive in time."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from . import logs


class TimedHTTP(H11Protocol):
    """uvicorn's HTTP protocol, with a limit on the time in which a whole request has to arrive.

    The time is counted from the connection, and again from the end of every response. uvicorn
    itself waits forever, even for a client that sends a byte now and then (Slowloris). The limit
    also holds for the handshake of a WebSocket. After the handshake, a different protocol class
    takes over the connection, and the limit no longer applies. arrival_s: the limit in seconds.
    """

    def __init__(self, *args: Any, arrival_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._arrival_s = arrival_s
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer."""
        super().connection_made(transport)
        self._watch()

    def handle_events(self) -> None:
        """Handle the data that has arrived, then start or stop the timer."""
        super().handle_events()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        ours = self.transport.get_protocol() is self
        arriving = ours and self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if not arriving or self.transport.is_closing():
            self._stop()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self._arrival_s, self._expire)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        """Close the connection. If a part of a request has arrived, answer it with a 408 first."""
        in_body = self.conn.their_state is h11.SEND_BODY
        if in_body:
            self.scope["state"]["edgespec.late"] = True  # for the log
        elif self.conn.trailing_data[0]:
            fields = {"status": 408, "client": self.client and self.client[0]}
            logs.logger.info("a request did not arrive in time", extra={"fields": fields})
        else:
            return self.transport.close()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = [("Connection", "close"), ("Content-Length", "0")]
            response = h11.Response(status_code=408, headers=headers, reason=b"Request Timeout")
            for event in (response, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
