"""The verification protocol over WebSockets: one connection serves one session."""

from __future__ import annotations

import asyncio
import contextlib
from weakref import WeakValueDictionary

from starlette.concurrency import run_in_threadpool
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from ... import protocol
from ..clients import client_of
from ..errors import ApiError
from .sessions import Sessions
from .types import DeviceSession

PATH = "/v1/verify"
_MAX_UNSENT = 256  # frames that wait for a device to read them
_SEND_TIMEOUT_S = 30.0
_OPEN_TIMEOUT_S = 10.0

# close codes of RFC 6455
_DONE = 1000  # from a device: it will not come back
_NO_CODE = 1005
_LOST = 1006
_TRY_LATER = 1013


def route(sessions: Sessions) -> WebSocketRoute:
    """Return the route that devices connect to. Only the owner of a session can resume it."""
    turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def verify(socket: WebSocket) -> None:
        offered = socket.scope.get("subprotocols", ())
        if protocol.SUBPROTOCOL not in offered:
            raise ApiError(
                400,
                f"devices speak the subprotocol {protocol.SUBPROTOCOL}, "
                f"got {', '.join(offered) or 'none'!s:.80}",
            )
        await socket.accept(protocol.SUBPROTOCOL)
        client = client_of(socket.scope)
        turn = turns.setdefault(client.turn, asyncio.Lock())
        connection = _Connection(socket, sessions, client.owner, turn)
        with contextlib.suppress(WebSocketDisconnect, OSError):
            await connection.run()

    return WebSocketRoute(PATH, verify)


class _Connection:
    """One device's connection. Frames are read and written at the same time.

    turn: a lock that is held while a constraint of this client is compiled, so that many
    constraints of one client do not delay those of others.
    """

    def __init__(
        self, socket: WebSocket, sessions: Sessions, owner: str, turn: asyncio.Lock
    ) -> None:
        self._socket = socket
        self._sessions = sessions
        self._owner = owner
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self._unsent: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_UNSENT)
        self._stalled = False

    async def run(self) -> None:
        """Serve the connection until either side ends it."""
        writing = asyncio.create_task(self._write())
        session = None
        code = _LOST
        try:
            first = await asyncio.wait_for(self._read(), _OPEN_TIMEOUT_S)
            session = await run_in_threadpool(self._sessions.open, first, self.send, self._owner)
            if session:
                code = await self._listen(session, writing)
        except WebSocketDisconnect as gone:
            code = gone.code
        except asyncio.TimeoutError:
            pass  # no OPEN came
        finally:
            if session:
                self._sessions.leave(session, self.send, forget=code == _DONE)
            self._put(None)
            with contextlib.suppress(Exception):
                await writing
            with contextlib.suppress(RuntimeError):  # it is closed already
                await self._socket.close(_TRY_LATER if self._stalled else _DONE)

    def send(self, data: bytes) -> None:
        """Queue a frame to be sent. May be called from any thread, and does not block."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._put, data)

    async def _listen(self, session: DeviceSession, writing: asyncio.Task[None]) -> int:
        """Hand frames to the session until the connection ends; return its close code."""
        reading = asyncio.create_task(self._read())
        try:
            while True:
                await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
                if writing.done():
                    return _LOST
                data = reading.result()
                reading = asyncio.create_task(self._read())
                if options := protocol.options_of(data):
                    await self._compile(options, reading)
                if not self._sessions.receive(session, self.send, data):
                    return _LOST
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, WebSocketDisconnect):
                await reading

    async def _compile(self, options: protocol.Options, reading: asyncio.Task[bytes | str]) -> None:
        """Compile a constraint in this client's turn. Raises WebSocketDisconnect if `reading`
        raises it before the compilation ends.
        """

        async def compile() -> None:
            async with self._turn:
                await asyncio.wrap_future(self._sessions.compile(options, self._owner))

        compiling = asyncio.create_task(compile())
        try:
            await asyncio.wait({compiling, reading}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            await compiling
        finally:
            compiling.cancel()

    async def _read(self) -> bytes | str:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code") or _NO_CODE)
        data = message.get("bytes")
        return data if data is not None else message.get("text") or ""

    def _put(self, data: bytes | None) -> None:
        try:
            self._unsent.put_nowait(data)
        except asyncio.QueueFull:  # the device does not read; it can ask again for what it missed
            self._stalled = True

    async def _write(self) -> None:
        """Write frames until the device stops reading, an ERROR was sent, or None is queued."""
        while not self._stalled:
            data = await self._unsent.get()
            if data is None:
                return
            await asyncio.wait_for(self._socket.send_bytes(data), _SEND_TIMEOUT_S)
            if data[0] == protocol.ERROR:
                return
