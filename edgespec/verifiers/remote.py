"""The target on another machine, behind `edgespec serve`."""

from __future__ import annotations

import contextlib
import logging
import random
import ssl
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import protocol
from ..backends.base import Tokenizer
from ..cache.token_cache import common_prefix
from ..config import RemoteConfig
from ..errors import (
    Aborted,
    ConfigError,
    ContextFull,
    EngineMissing,
    VerifierFault,
    VerifierRefused,
    VerifierUnavailable,
)
from ..sampling.base import Request
from ..types import Draft, Verdict

try:
    from websockets.exceptions import (
        ConnectionClosed,
        InvalidHandshake,
        InvalidMessage,
        InvalidStatus,
        InvalidURI,
    )
    from websockets.sync.client import ClientConnection, connect
except ImportError as error:
    raise EngineMissing(
        f"a verification server needs the package websockets, which cannot be imported here "
        f"({error}); install it with: pip install 'edgespec[remote]'"
    ) from error

logger = logging.getLogger("edgespec.remote")

_POLL_S = 0.05
_LONG = 256  # new tokens of a prompt: fewer are read while the first draft is under way
_MANY = 3  # times that a server may ask for the context of one step
_RECENT = 32  # answers that the round trip is known from


class RemoteVerifier:
    """Sends drafts to a verification server and gets verdicts back, token ids and nothing else.

    tokenizer: of the device; the server refuses another vocabulary than its own. Within
    `remote.timeout_s` a lost connection is made again and the session resumed. costs: seconds of
    the target's evaluations by number of tokens, as the server measured them.

    Plain steps are not asked for one by one: the server emits tokens by itself and is told when
    to go on. Drawn tokens depend on seed and position alone (coupled sampling), so the text is
    that of one machine whatever the connection did.

    Raises VerifierUnavailable, VerifierRefused, VerifierFault, ConfigError.
    """

    def __init__(
        self,
        remote: RemoteConfig,
        tokenizer: Tokenizer,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        url = remote.url.rstrip("/")
        self._url = url if "/" in url.partition("://")[2] else f"{url}/v1/verify"
        self._host = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
        self._api_key = remote.api_key
        self._wanted = remote.model
        self._vocab_size = tokenizer.vocab_size
        self._hash = protocol.vocabulary_hash(tokenizer, tokenizer.vocab_size)
        self._tokenizer = tokenizer
        self._timeout_s = remote.timeout_s
        self._clock = clock
        self._connection: ClientConnection | None = None
        self._closing = contextlib.ExitStack()
        self._token = protocol.NO_TOKEN
        self._context = protocol.Context()
        self._known = 0  # tokens of the context that the server has
        self._generation = 0
        self._until = -1  # the last round that was given away
        self._next = 0  # the round whose answer is due
        self._in_flight: Draft | None = None
        self._lost_at: float | None = None
        self._n_unread = 0
        self._drafting = False  # whether the last step that was asked for had a draft
        self._arrived: deque[bytes | str] = deque()
        self._round_trips: deque[float] = deque(maxlen=_RECENT)
        self.bytes_sent = self.bytes_received = 0
        self.notices: list[str] = []
        self._connect()

    def round_trip_s(self) -> float:
        """Median of the last waits, less what the server says that it took; of a ping before the
        first of them.
        """
        if self._round_trips:
            return statistics.median(self._round_trips)
        begun = self._clock()
        if self._connection:
            with contextlib.suppress(ConnectionClosed, OSError):
                self._connection.ping().wait(self._timeout_s)
        return self._clock() - begun

    def begin(self, request: Request) -> Iterator[int]:
        """Send what the server does not have of the prompt; progress of a long one."""
        if not request.prompt:
            raise ValueError("the prompt is empty: the target needs at least one token")
        if len(request.prompt) > self.n_ctx:
            raise ContextFull(
                f"the prompt has {len(request.prompt)} tokens, the server's context {self.n_ctx}; "
                "shorten the prompt or start the server with a larger context"
            )
        self._seed = getattr(request.randomness, "seed", None)
        if self._seed is None and request.params.temperature:
            raise ConfigError("a remote target draws tokens by a seed; this randomness has none")
        self._request = request
        n = common_prefix(self._context.tokens, request.prompt)
        self._context.truncate(n)
        self._context.extend(request.prompt[n:])
        self._known = min(self._known, n)
        return self._prefill()

    def _prefill(self) -> Iterator[int]:
        n, total, needs = self._known, len(self._context), 0
        self._began = self._clock()
        self._n_unread = total - n
        self._again(self._send_begin, lambda: None)
        yield n
        while self._n_unread > _LONG:
            frame = self._again(self._receive, self._send_begin)
            if isinstance(frame, protocol.Progress) and frame.generation == self._generation:
                self._lost_at = None
                self._n_unread = total - frame.n_done
                yield min(frame.n_done, total)
            elif isinstance(frame, protocol.Need):
                needs += 1
                self._check_needs(needs)
                self._trust(frame)
                self._again(self._send_begin, lambda: None)
            elif isinstance(frame, protocol.Busy):
                return  # what is left goes with the first VERIFY

    def verify(self, draft: Draft) -> Verdict:
        """Have a draft judged. A plain step takes the next token that the server emits."""
        self.submit(draft)
        return self.result()

    def submit(self, draft: Draft) -> None:
        """Send a draft; `result` waits for its verdict."""
        n = next((i for i, t in enumerate(draft.tokens) if t >= self._n_vocab), None)
        if n is not None:  # padding of the draft model's vocabulary
            draft = draft._replace(tokens=draft.tokens[:n])
        self._in_flight, self._began = draft, self._clock()
        if draft.tokens or self._next > self._until:
            self._again(lambda: self._send_verify(draft))
        elif self._until - self._next < self._n_ahead() // 2:
            most = self._next - 1 + self._max_ahead
            self._until = min(self._next + self._n_ahead(), most)
            with contextlib.suppress(VerifierUnavailable):  # `result` finds out and asks again
                self._send(protocol.More(self._until))

    def ready(self) -> bool:
        """Whether the verdict is there, or something that has to be looked at first."""
        while self._connection and not self._arrived:
            try:
                data = self._connection.recv(timeout=0)
            except TimeoutError:
                return False
            except (ConnectionClosed, OSError):
                break
            if not self._is_past(data):
                self._arrived.append(data)
        return True

    def _is_past(self, data: bytes | str) -> bool:
        """Whether a message is an answer that nobody waits for any more."""
        with contextlib.suppress(VerifierFault):
            frame = protocol.decode(data)
            if isinstance(frame, protocol.Answer) and frame.round != self._next:
                self.bytes_received += len(data) + _framing(len(data))
                return True
        return False

    def result(self) -> Verdict:
        """The verdict of what was submitted. Raises Aborted."""
        draft = self._in_flight
        assert draft is not None
        answer = self._answer(draft)
        self._in_flight = None
        if answer.n_accepted > len(draft.tokens) or answer.token >= self._n_vocab:
            self._drop()
            raise VerifierFault(
                f"{self._host} accepted {answer.n_accepted} of {len(draft.tokens)} tokens and "
                f"added token {answer.token} of {self._n_vocab}"
            )
        seconds = self._clock() - self._began
        if draft.tokens:
            self._round_trips.append(max(0.0, seconds - 1e-6 * answer.server_us))
        tokens = (*draft.tokens[: answer.n_accepted], answer.token)
        self._known = len(self._context) + len(tokens)
        n_unread, self._n_unread = max(self._n_unread, 1), 0
        wanted = self._request.params.logprobs is not None
        if wanted and len(answer.logprobs) != len(tokens):
            raise VerifierFault(f"{self._host} left out log-probabilities that were asked for")
        return Verdict(
            tokens,
            answer.n_accepted,
            logprobs=answer.logprobs if wanted else None,
            n_evaluated=n_unread + len(draft.tokens),
            seconds=seconds,
        )

    def accept(self, tokens: Sequence[int]) -> None:
        """What was emitted."""
        self._context.extend(tokens)

    def finish(self) -> None:
        """The answer has ended: the server need not go on by itself."""
        if self._next <= self._until:
            self._next = self._until + 1
            with contextlib.suppress(VerifierUnavailable):  # then it has stopped anyway
                self._send(protocol.Cancel())

    def close(self) -> None:
        """Say goodbye: the server forgets the session."""
        self._connection = None
        self._closing.close()

    # --- one exchange ---

    def _answer(self, draft: Draft) -> protocol.Answer:
        def ask_again() -> None:
            self._send_begin()
            self._send_verify(draft)

        needs = 0
        while True:
            frame = self._again(self._receive, ask_again)
            if isinstance(frame, protocol.Answer):
                if frame.round == self._next:
                    self._next += 1
                    self._lost_at = None
                    return frame
            elif isinstance(frame, protocol.Need):
                needs += 1
                self._check_needs(needs)
                self._trust(frame)
                self._again(ask_again, ask_again)
            elif isinstance(frame, protocol.Busy):
                self._wait(frame)
                self._again(lambda: self._send_verify(draft), ask_again)
            elif not isinstance(frame, protocol.Progress):
                self._drop()
                raise VerifierFault(
                    f"{self._host} sent {type(frame).__name__.upper()} instead of a verdict"
                )

    def _check_needs(self, needs: int) -> None:
        if needs > _MANY:
            self._drop()
            raise VerifierFault(f"{self._host} asks for the same context again and again")

    def _trust(self, need: protocol.Need) -> None:
        """The server has less than was thought, or something else."""
        same = self._context.has(need.have, need.checksum)
        self._known = need.have if same and need.have < self._known else 0

    def _wait(self, busy: protocol.Busy) -> None:
        waited = self._clock() - self._began
        if waited > self._timeout_s:
            raise VerifierUnavailable(
                f"{self._host} has no room: {busy.message}; try again later", busy.retry_ms / 1e3
            )
        end = self._clock() + busy.retry_ms / 1e3 * random.uniform(1, 1.5)
        while (left := end - self._clock()) > 0:
            self._check_abort()
            time.sleep(min(left, _POLL_S))

    def _n_ahead(self) -> int:
        """Tokens that the server may emit by itself, this one aside."""
        params = self._request.params
        most = self._max_ahead
        if params.max_tokens is not None:
            emitted = len(self._context) - len(self._request.prompt)
            most = min(most, params.max_tokens - emitted - 1)
        return max(0, min(most, self.n_ctx - len(self._context)))

    def _send_begin(self) -> None:
        context, self._generation = self._context, self._generation + 1
        keep = min(self._known, len(context))
        self._n_unread = max(self._n_unread, len(context) - keep)
        self._next = self._until + 1
        self._send(
            protocol.Begin(
                self._generation,
                keep,
                context.checksum(keep),
                len(self._request.prompt),
                self._request.params,
                self._seed or 0,
                tuple(context.tokens[keep:]),
            )
        )
        self._known = len(context)

    def _send_verify(self, draft: Draft) -> None:
        length = len(self._context)
        self._next = self._until + 1
        ahead = 0 if draft.tokens and self._drafting else self._n_ahead()
        self._drafting = bool(draft.tokens)
        self._until = self._next + ahead
        checksum = self._context.checksum(length)
        self._send(protocol.Verify(self._next, length, checksum, ahead, tuple(draft.tokens)))

    # --- the connection ---

    def _connect(self) -> None:
        """Connect and open, or resume. Raises VerifierUnavailable, VerifierRefused."""
        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else None
        try:
            self._connection = self._closing.enter_context(
                connect(
                    self._url,
                    additional_headers=headers,
                    subprotocols=[protocol.SUBPROTOCOL],  # type: ignore[list-item]
                    compression=None,
                    open_timeout=self._timeout_s,
                    close_timeout=1,
                    max_size=1 << 22,
                    max_queue=128,
                )
            )
        except ssl.SSLCertVerificationError as error:  # a ValueError as well
            raise VerifierRefused(
                f"the certificate of {self._host} is not trusted: {error.verify_message}; name its "
                "file, or that of who signed it, in the environment variable SSL_CERT_FILE"
            ) from error
        except InvalidURI as error:
            raise self._no_address() from error
        except InvalidStatus as error:
            raise self._turned_away(error.response.status_code) from error
        except (OSError, TimeoutError, InvalidHandshake) as error:
            raise VerifierUnavailable(
                f"no verification server answers at {self._host}: {_reason(error)} "
                f"({self._remedy(error)})"
            ) from error
        except ValueError as error:
            raise self._no_address() from error
        if self._connection.subprotocol != protocol.SUBPROTOCOL:
            self._drop()
            raise VerifierRefused(f"{self._host} does not speak {protocol.SUBPROTOCOL}")
        self._open()

    def _no_address(self) -> Exception:
        return ConfigError(
            f"{self._url!r} is no address of a verification server; ws://host:port and "
            "wss://host:port are"
        )

    def _remedy(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLError):
            return "does it speak TLS? ws:// is without"
        if isinstance(error, InvalidMessage) and self._url.startswith("ws://"):
            return "does it want TLS? wss:// is with"
        return "does `edgespec serve` run there?"

    def _turned_away(self, status: int) -> Exception:
        if status in (401, 403) and not self._api_key:
            return VerifierRefused(
                f"{self._host} wants a key and none was given; give one as api_key, on the command "
                "line with --verifier-key-file or EDGESPEC_VERIFIER_KEY"
            )
        if status in (401, 403):
            return VerifierRefused(f"{self._host} refuses the key; give one that it knows")
        if status == 429 or status >= 500:
            return VerifierUnavailable(f"{self._host} has no room now (HTTP {status})")
        return VerifierRefused(
            f"{self._host} is no verification server: it answered with HTTP {status}"
        )

    def _open(self) -> None:
        ours = self._vocab_size
        self._send(protocol.Open(protocol.VERSION, self._token, ours, self._hash, self._wanted))
        frame = self._receive(self._timeout_s)
        if not isinstance(frame, protocol.Opened):
            self._drop()
        if isinstance(frame, protocol.Busy):
            raise VerifierUnavailable(f"{self._host}: {frame.message}", frame.retry_ms / 1e3)
        opened = protocol.expect(protocol.Opened, frame)
        theirs = opened.vocab_size
        if theirs < ours and opened.vocab_hash != protocol.vocabulary_hash(self._tokenizer, theirs):
            self._drop()
            raise VerifierRefused(
                f"the vocabulary of {opened.model or self._host} is not the device's; take a "
                "tokenizer of the target's own family"
            )
        if opened.token != self._token:
            self._known, self._until, self._next = 0, -1, 0
        self._token, self._wanted = opened.token, opened.model
        self.n_ctx, self.max_draft, self.model = opened.n_ctx, opened.max_draft, opened.model
        self.costs = {n: us * 1e-6 for n, us in opened.costs}
        self._max_ahead = opened.max_ahead
        self._n_vocab = min(ours, theirs)

    def _again(self, action: Callable[[], Any], resume: Callable[[], Any] | None = None) -> Any:
        """`action`; where the connection is lost meanwhile a new one, `resume` (if there is
        one; otherwise BEGIN), and `action` once more. A server may be away for so long, and
        one that connects but never answers is away.
        """
        lost = False
        while True:
            try:
                if lost and self._connection is None:
                    self._reconnect()
                    (resume or self._send_begin)()
                return action()
            except VerifierUnavailable as error:
                lost = True
                self._lost_at = self._lost_at or self._clock()
                gave_up = self._clock() - self._lost_at > self._timeout_s
                if self._connection is not None or gave_up:  # it is there, but has no room
                    self._lost_at = None
                    raise
                logger.info("%s; connecting again", error)
                self._sleep(_POLL_S)

    def _reconnect(self) -> None:
        """A new connection within the time that a server may be away."""
        end, pause = (self._lost_at or self._clock()) + self._timeout_s, _POLL_S
        while True:
            try:
                self._connect()
                return
            except VerifierUnavailable:
                self._drop()
                if self._clock() + pause > end:
                    raise
            self._sleep(pause)
            pause = min(2 * pause, 1.0)

    def _sleep(self, seconds: float) -> None:
        end = self._clock() + seconds
        while (left := end - self._clock()) > 0:
            self._check_abort()
            time.sleep(min(left, _POLL_S))

    def _check_abort(self) -> None:
        abort = self._request.abort
        if abort and abort():
            raise Aborted("stopped while waiting for the server")

    def _send(self, frame: protocol.Frame) -> None:
        data = protocol.encode(frame)
        if self._connection is None:
            raise VerifierUnavailable(f"there is no connection to {self._host}")
        try:
            self._connection.send(data)
        except (ConnectionClosed, OSError) as error:
            self._drop()
            raise VerifierUnavailable(
                f"the connection to {self._host} is lost: {_reason(error)}"
            ) from error
        self.bytes_sent += len(data) + _framing(len(data)) + 4

    def _receive(self, timeout_s: float | None = None) -> protocol.Frame:
        """The next frame. Raises Aborted, and what an ERROR says."""
        end = self._clock() + (timeout_s or self._timeout_s)
        while True:
            if self._connection is None:
                raise VerifierUnavailable(f"there is no connection to {self._host}")
            if timeout_s is None:
                self._stop_if_asked()
            if self._arrived:
                data = self._arrived.popleft()
                break
            try:
                data = self._connection.recv(timeout=_POLL_S)
                break
            except TimeoutError:
                if self._clock() > end:
                    self._drop()
                    raise VerifierUnavailable(
                        f"{self._host} has not answered for {self._timeout_s:g} s"
                    ) from None
            except (ConnectionClosed, OSError) as error:
                self._drop()
                raise VerifierUnavailable(
                    f"the connection to {self._host} is lost: {_reason(error)}"
                ) from error
        self.bytes_received += len(data) + _framing(len(data))
        try:
            frame = protocol.decode(data)
        except VerifierFault:
            self._drop()
            raise
        if isinstance(frame, protocol.Error):
            self._drop()
            raise self._said(frame)
        return frame

    def _stop_if_asked(self) -> None:
        try:
            self._check_abort()
        except Aborted:
            self._send(protocol.Cancel())
            self._next = self._until + 1  # whatever is answered still is not waited for
            raise

    def _said(self, error: protocol.Error) -> Exception:
        message = f"{self._host}: {error.message}"
        if error.code == protocol.CONTEXT_FULL:
            return ContextFull(message)
        if error.code in (protocol.CLOSING, protocol.INTERNAL, protocol.LIMIT):
            return VerifierUnavailable(message)
        if error.code == protocol.PROTOCOL:
            return VerifierFault(message)
        return VerifierRefused(message)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._arrived.clear()
        if connection:
            connection.close_socket()
            self._closing.close()


def _framing(n: int) -> int:
    """Bytes of a WebSocket frame's header, its mask aside (RFC 6455, 5.2)."""
    return 2 if n < 126 else 4 if n < 1 << 16 else 10


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
