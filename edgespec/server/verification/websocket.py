"""The verification protocol over WebSockets: one connection, one session."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from ... import protocol as wire
from .sessions import Session, Sessions

PATH = "/v1/verify"
_UNSENT = 256  # frames that wait for a device to read them
_SEND_TIMEOUT_S = 30.0
_OPEN_TIMEOUT_S = 10.0
_FORGET = 1000  # the close code of a device that will not come back
_TRY_LATER = 1013
_POLICY = 1008

Authorize = Callable[[Headers], str | None]
"""Whose key came with a connection; None where there is none that is known."""


def bearer(headers: Headers) -> str:
    """Of a key that somebody has checked already."""
    return hashlib.sha256(headers.get("authorization", "").encode()).hexdigest()


def route(sessions: Sessions, authorize: Authorize = bearer) -> WebSocketRoute:
    """Where devices connect. authorize: who owns the sessions of a connection."""

    async def verify(socket: WebSocket) -> None:
        owner = authorize(socket.headers)
        if owner is None:
            await socket.close(_POLICY)  # before `accept` that is an HTTP 403
            return
        if wire.SUBPROTOCOL not in socket.scope.get("subprotocols", ()):
            await socket.close(_POLICY)
            return
        await socket.accept(wire.SUBPROTOCOL)
        connection = _Connection(socket, sessions)
        with contextlib.suppress(WebSocketDisconnect, OSError):
            await connection.run(owner)

    return WebSocketRoute(PATH, verify)


class _Connection:
    """One device: frames in, frames out, none waiting for the other."""

    def __init__(self, socket: WebSocket, sessions: Sessions) -> None:
        self._socket = socket
        self._sessions = sessions
        self._loop = asyncio.get_running_loop()
        self._unsent: asyncio.Queue[bytes | None] = asyncio.Queue(_UNSENT)
        self._stalled = False

    async def run(self, owner: str) -> None:
        """Until either side has had enough."""
        writing = asyncio.create_task(self._write())
        session = None
        code = 1006
        try:
            first = await asyncio.wait_for(self._read(), _OPEN_TIMEOUT_S)
            session = await run_in_threadpool(self._sessions.open, first, self.send, owner)
            if session:
                code = await self._listen(session, writing)
        except WebSocketDisconnect as gone:
            code = gone.code
        except asyncio.TimeoutError:  # nobody said who they are
            pass
        finally:
            if session:
                self._sessions.leave(session, self.send, forget=code == _FORGET)
            self._put(None)
            with contextlib.suppress(Exception):
                await writing
            with contextlib.suppress(RuntimeError):  # it is closed already
                await self._socket.close(_TRY_LATER if self._stalled else 1000)

    def send(self, data: bytes) -> None:
        """From any thread, without waiting."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._put, data)

    async def _listen(self, session: Session, writing: asyncio.Task[None]) -> int:
        """Frames for the session until it ends; the close code."""
        while True:
            reading = asyncio.create_task(self._read())
            await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError, WebSocketDisconnect):
                    await reading
                return 1006
            if not self._sessions.receive(session, self.send, reading.result()):
                return 1006

    async def _read(self) -> bytes | str:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code") or 1005)
        data = message.get("bytes")
        return data if data is not None else message.get("text") or ""

    def _put(self, data: bytes | None) -> None:
        try:
            self._unsent.put_nowait(data)
        except asyncio.QueueFull:  # it does not read: what it missed, it can ask for again
            self._stalled = True

    async def _write(self) -> None:
        """Ends where the device does not read, or was told that this is the end."""
        while not self._stalled:
            data = await self._unsent.get()
            if data is None:
                return
            await asyncio.wait_for(self._socket.send_bytes(data), _SEND_TIMEOUT_S)
            if data[0] == wire.ERROR:
                return
