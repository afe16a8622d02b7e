"""A session with a verification server: connecting, resuming, sending and receiving frames."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from ... import protocol
from ...advice import install
from ...backends.base import Tokenizer
from ...config import RemoteConfig
from ...errors import Aborted, EngineMissing, VerifierFault, VerifierRefused, VerifierUnavailable
from ...types import Abort

try:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.client import ClientConnection, connect
except ImportError as error:
    raise EngineMissing(
        f"a verification server needs the package websockets, which cannot be imported here "
        f"({error}); install it with {install('remote')}"
    ) from error

from . import failures

logger = logging.getLogger("edgespec.remote")

T = TypeVar("T")
_POLL_S = 0.05
_LONGEST_PAUSE_S = 1.0  # longest pause between two attempts to connect
_LOST = (ConnectionClosed, OSError)


class Connection:
    """One session with a server, over as many WebSockets as it takes.

    on_new_session: called when the server starts an empty session, at the first connection and
    whenever an old session could not be resumed. opened: the server's last OPENED frame, in which
    it describes itself. abort: called while waiting; set by the caller. bytes_sent, bytes_received:
    the bytes of all frames, including their headers.

    Raises VerifierUnavailable, VerifierRefused, VerifierFault, ConfigError.
    """

    def __init__(
        self,
        remote: RemoteConfig,
        tokenizer: Tokenizer,
        on_new_session: Callable[[], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        address = remote.url.rstrip("/").partition("://")[2]
        self.host = address.partition("/")[0].rpartition("@")[2]
        self.abort: Abort | None = None
        self.bytes_sent = self.bytes_received = 0
        self.opened: protocol.Opened
        self._url = remote.url.rstrip("/") + ("" if "/" in address else "/v1/verify")
        self._remote = remote
        self._tokenizer = tokenizer
        self._hash = protocol.vocabulary_hash(tokenizer, tokenizer.vocab_size)
        self._on_new_session = on_new_session
        self._clock = clock
        self._socket: ClientConnection | None = None
        self._closing = contextlib.ExitStack()
        self._token, self._model = protocol.NO_TOKEN, remote.model
        self._lost_at: float | None = None
        self._arrived: deque[bytes | str] = deque()
        self._connect()

    @property
    def n_vocab(self) -> int:
        """Number of token ids that both the device and the server have."""
        return min(self._tokenizer.vocab_size, self.opened.vocab_size)

    def ping_s(self) -> float:
        """Send a ping and return the seconds until its answer, at most the timeout."""
        begun = self._clock()
        if self._socket:
            with contextlib.suppress(*_LOST):
                self._socket.ping().wait(self._remote.timeout_s)
        return self._clock() - begun

    def again(self, action: Callable[[], T], resume: Callable[[], object]) -> T:
        """Do `action` and return its result; after a lost connection, connect again, call `resume`
        and repeat it.

        The server may be away for as long as the timeout. This time counts until `answered` is
        called, because a server that connects but never answers is away, too. Raises Aborted, and
        VerifierUnavailable after the timeout, or if the server is connected but cannot do this now.
        """
        lost = False
        while True:
            try:
                if lost and self._socket is None:
                    self._reconnect()
                    resume()
                return action()
            except VerifierUnavailable as error:
                lost = True
                self._lost_at = self._lost_at or self._clock()
                gave_up = self._clock() - self._lost_at > self._remote.timeout_s
                if self._socket is not None or gave_up:
                    self._lost_at = None
                    raise
                logger.info("%s; connecting again", error)
                self.sleep(_POLL_S)

    def answered(self) -> None:
        """Note that the server has answered a request, so it is not away."""
        self._lost_at = None

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds. Raises Aborted."""
        end = self._clock() + seconds
        while (left := end - self._clock()) > 0:
            self._check_abort()
            time.sleep(min(left, _POLL_S))

    def send(self, frame: protocol.Frame) -> None:
        """Send a frame. Raises VerifierUnavailable if there is no connection."""
        data = protocol.encode(frame)
        try:
            self._connected().send(data)
        except _LOST as error:
            self.drop()
            raise failures.lost(error, self.host) from error
        self.bytes_sent += len(data) + _header_size(len(data)) + 4

    def receive(self, *, abortable: bool = True) -> protocol.Frame:
        """Wait for the next frame and return it.

        Raises Aborted, VerifierUnavailable after the timeout, VerifierFault for an invalid frame,
        and the error that `failures.told` returns for an ERROR frame.
        """
        end = self._clock() + self._remote.timeout_s
        while True:
            socket = self._connected()
            if abortable:
                self._check_abort()
            if self._arrived or self._take(socket, _POLL_S):
                break
            if self._clock() > end:
                self.drop()
                raise VerifierUnavailable(
                    f"{self.host} has not answered for {self._remote.timeout_s:g} s"
                )
        try:
            frame = protocol.decode(self._arrived.popleft())
        except VerifierFault:
            self.drop()
            raise
        if isinstance(frame, protocol.Error):
            self.drop()
            raise failures.told(frame, self.host)
        return frame

    def ready(self, is_past: Callable[[protocol.Frame], bool]) -> bool:
        """Return True if `receive` would not wait.

        Deletes arrived frames for which `is_past` returns True.
        """
        while self._socket and not self._arrived:
            try:
                if not self._take(self._socket, 0):
                    return False
            except VerifierUnavailable:
                break
            with contextlib.suppress(VerifierFault):
                if is_past(protocol.decode(self._arrived[-1])):
                    self._arrived.pop()
        return True

    def drop(self) -> None:
        """Cut the connection, so that the next one resumes the session."""
        socket, self._socket = self._socket, None
        self._arrived.clear()
        if socket:
            socket.close_socket()
            self._closing.close()

    def close(self) -> None:
        """Close the connection properly, so that the server forgets the session."""
        self._socket = None
        self._closing.close()

    def _connected(self) -> ClientConnection:
        if self._socket is None:
            raise VerifierUnavailable(f"there is no connection to {self.host}")
        return self._socket

    def _take(self, socket: ClientConnection, timeout_s: float) -> bool:
        """Receive the next message into `_arrived`; return False if none came in time."""
        try:
            data = socket.recv(timeout=timeout_s)
        except TimeoutError:
            return False
        except _LOST as error:
            self.drop()
            raise failures.lost(error, self.host) from error
        self.bytes_received += len(data) + _header_size(len(data))
        self._arrived.append(data)
        return True

    def _check_abort(self) -> None:
        if self.abort and self.abort():
            raise Aborted("stopped while waiting for the server")

    def _reconnect(self) -> None:
        """Connect again; raise VerifierUnavailable after the time that a server may be away."""
        end = (self._lost_at or self._clock()) + self._remote.timeout_s
        pause = _POLL_S
        while True:
            try:
                self._connect()
                return
            except VerifierUnavailable:
                self.drop()
                if self._clock() + pause > end:
                    raise
            self.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _connect(self) -> None:
        """Open a WebSocket, then open a session or resume the previous one."""
        key = self._remote.api_key
        try:
            self._socket = self._closing.enter_context(
                connect(
                    self._url,
                    additional_headers={"Authorization": f"Bearer {key}"} if key else None,
                    subprotocols=[protocol.SUBPROTOCOL],  # type: ignore[list-item]
                    compression=None,
                    open_timeout=self._remote.timeout_s,
                    close_timeout=1,
                    max_size=1 << 22,
                    max_queue=128,
                )
            )
        except failures.CONNECTING as error:
            raise failures.not_connected(error, self._remote, self.host) from error
        if self._socket.subprotocol != protocol.SUBPROTOCOL:
            self.drop()
            raise VerifierRefused(f"{self.host} does not speak {protocol.SUBPROTOCOL}")
        self._open()

    def _open(self) -> None:
        n_vocab = self._tokenizer.vocab_size
        self.send(protocol.Open(protocol.VERSION, self._token, n_vocab, self._hash, self._model))
        frame = self.receive(abortable=False)
        if not isinstance(frame, protocol.Opened):
            self.drop()
        if isinstance(frame, protocol.Busy):
            raise VerifierUnavailable(f"{self.host}: {frame.message}", frame.retry_ms / 1e3)
        opened = protocol.expect(protocol.Opened, frame)
        if opened.vocab_size < n_vocab and opened.vocab_hash != protocol.vocabulary_hash(
            self._tokenizer, opened.vocab_size
        ):
            self.drop()
            raise VerifierRefused(
                f"the vocabulary of {opened.model or self.host} is not the device's; take a "
                "tokenizer of the target's own family, or name a model of it with -md or -m"
            )
        if opened.token != self._token:
            self._on_new_session()
        self._token, self._model, self.opened = opened.token, opened.model, opened


def _header_size(n: int) -> int:
    """Return the bytes of a WebSocket frame's header, without its mask (RFC 6455, 5.2)."""
    return 2 if n < 126 else 4 if n < 1 << 16 else 10
