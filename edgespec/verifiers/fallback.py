"""A remote target, and a local one that takes over when the remote one is gone or slower."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from ..errors import EdgeSpecError, VerifierError, VerifierUnavailable
from ..sampling.base import Request
from ..sampling.trees import first_nodes
from ..types import Draft, Requires, Verdict
from .base import AsyncVerifier, Verifier

logger = logging.getLogger("edgespec.fallback")

_FASTER = 1.1  # factor by which the local target must be faster to be used
_TRY_EVERY = 8  # requests after which a slower server is used once more, to be measured again
_PATIENCE_S = 0.5  # seconds that a request waits for a server that was gone
_PAUSE_S = 15.0  # seconds until a server that was gone is tried again


class _Attempt:
    """An attempt to connect, in a thread of its own."""

    def __init__(self, connect: Callable[[], Verifier]) -> None:
        self._connect = connect
        self._found: Verifier | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="edgespec-connect", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found = self._connect()
        except BaseException as error:
            self._error = error

    def done(self, timeout_s: float | None) -> bool:
        """Wait for its end, at most timeout_s seconds (None: for ever); return True if it ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def result(self) -> Verifier:
        """Return the connected verifier. Raises the error of the attempt if it failed."""
        if self._error:
            raise self._error
        assert self._found is not None
        return self._found


class Fallback:
    """Verifies with a remote target, and with a local one while the remote one is away.

    If both are the same model, the local target is also used when it has turned out to be faster.
    The conversation goes on with either of them; notices say which one answers and why.

    connect: makes the remote verifier, which need not be an AsyncVerifier. After a failure it is
    called again some time later, between requests. same: returns True if a remote verifier has the
    same model as the local one. local_s: the seconds of a plain step of the local target, None if
    not known.
    """

    def __init__(
        self,
        connect: Callable[[], Verifier],
        local: Verifier,
        *,
        same: Callable[[Verifier], bool] = lambda remote: False,
        local_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._local = local
        self._same = same
        self._clock = clock
        self._remote: Verifier | None = None
        self._using: Verifier = local
        self._gone_at: float | None = None
        self._attempt: _Attempt | None = None
        self._seconds = {True: local_s} if local_s else {}  # per token; True: of the local target
        self._emitted: list[int] = []
        self._last = 0.0
        self._n_requests = 0
        self.notices: list[str] = []
        self._reach()

    @property
    def n_ctx(self) -> int:
        """Context size of the active verifier.

        Prompts that are too long for the remote verifier go to the local one.
        """
        return self._using.n_ctx

    @property
    def max_draft(self) -> int:
        """Most tokens of a draft that both take: the active verifier may change in a request."""
        remote = self._remote.max_draft if self._remote else self._local.max_draft
        return min(remote, self._local.max_draft)

    @property
    def max_leaves(self) -> int:
        """Most leaves of a tree that the remote verifier or, while it is away, the local one takes.

        If the active verifier takes fewer, it verifies the first paths of a tree.
        """
        return (self._remote or self._local).max_leaves

    @property
    def remote(self) -> Verifier | None:
        """The remote verifier, None while it is away."""
        return self._remote

    def round_trip_s(self) -> float:
        """Return the seconds of the remote round trip; 0 if it is away or does not measure them."""
        return self._remote.round_trip_s() if isinstance(self._remote, AsyncVerifier) else 0.0

    def finish(self) -> None:
        """Tell the remote verifier that the answer has ended, if it gives this answer."""
        if isinstance(self._using, AsyncVerifier):
            self._using.finish()

    @property
    def is_local(self) -> bool:
        """True while the local target answers."""
        return self._using is self._local

    def require(self, requires: Requires) -> None:
        """Do nothing: hidden states are not sent over the network."""

    def n_reusable(self, owner: str, prompt: Sequence[int]) -> int:
        """Return what the verifier that answered last would reuse."""
        return self._using.n_reusable(owner, prompt)

    def begin(self, request: Request) -> Iterator[int]:
        """Choose a verifier for this request and start it there."""
        self._request, self._emitted = request, []
        self._n_requests += 1
        remote = self._reach()
        if remote is None:
            return self._take_local(request)
        if len(request.prompt) > remote.n_ctx:
            return self._take_local(request)
        if self._is_slower(remote):
            if not self.is_local:
                self.notices.append("the local target is faster than the server; it answers")
            return self._take_local(request)
        self._using = remote
        return self._begin_remote(remote, request)

    def _begin_remote(self, remote: Verifier, request: Request) -> Iterator[int]:
        try:
            yield from remote.begin(request)
        except VerifierUnavailable as error:
            self._lose(error)
            yield from self._take_local(request)

    def verify(self, draft: Draft) -> Verdict:
        """Let the active verifier check a draft."""
        self.submit(draft)
        return self.result()

    def submit(self, draft: Draft) -> None:
        """Send a draft; with the local target, `result` does all the work."""
        self._draft = draft
        if isinstance(self._using, AsyncVerifier):
            try:
                self._using.submit(draft)
            except VerifierUnavailable as error:
                self._lose(error)
                self._begin_again()

    def ready(self) -> bool:
        """Return True if `result` would not wait for the network."""
        return not isinstance(self._using, AsyncVerifier) or self._using.ready()

    def result(self) -> Verdict:
        """Return the verdict; if the remote target is lost, the local one gives it."""
        using = self._using
        if using is not self._local:
            try:
                if isinstance(using, AsyncVerifier):
                    return using.result()
                return using.verify(_fitting(self._draft, using))
            except VerifierUnavailable as error:
                self._lose(error)
                self._begin_again()
        return self._local.verify(_fitting(self._draft, self._local)._replace(probs=None))

    def accept(self, tokens: Sequence[int]) -> None:
        """Pass on the emitted tokens, and record how long they took."""
        self._using.accept(tokens)
        now = self._clock()
        if self._emitted and tokens and self._last:  # the first step waits for the prompt
            seconds = (now - self._last) / len(tokens)
            known = self._seconds.get(self.is_local, seconds)
            self._seconds[self.is_local] = known + 0.1 * (seconds - known)
        self._emitted.extend(tokens)
        self._last = now

    def close(self) -> None:
        """Close both verifiers, and one that is being connected."""
        if self._attempt and self._attempt.done(_PATIENCE_S):
            with contextlib.suppress(EdgeSpecError):
                self._attempt.result().close()
        if self._remote:
            self._remote.close()
        self._local.close()

    def _reach(self) -> Verifier | None:
        """Return the remote verifier if it is there or comes back, else None.

        A network that drops all packets delays an answer by at most _PATIENCE_S: the attempt to
        connect goes on while the local target answers.
        """
        if self._remote or (self._gone_at is not None and self._clock() < self._gone_at + _PAUSE_S):
            return self._remote
        if self._attempt is None:
            self._attempt = _Attempt(self._connect)
        if not self._attempt.done(None if self._gone_at is None else _PATIENCE_S):
            return None
        attempt, self._attempt = self._attempt, None
        try:
            self._remote = attempt.result()
            if self._gone_at is not None:
                self.notices.append("the verification server is back")
            self._gone_at = None
        except VerifierUnavailable as error:
            self._lose(error)
        return self._remote

    def _lose(self, error: VerifierError) -> None:
        logger.info("%s", error)
        if self._gone_at is None:
            self.notices.append(f"{error}; the local target answers")
        self._gone_at = self._clock()
        if self._remote:
            self._remote.close()
        self._remote, self._using = None, self._local

    def _take_local(self, request: Request) -> Iterator[int]:
        self._using = self._local
        return self._local.begin(request)

    def _begin_again(self) -> None:
        """Go on with the same answer on the local target, which reads the tokens emitted so far."""
        for _ in self._local.begin(self._request):
            pass
        self._local.accept(self._emitted)
        self._last = 0.0  # the time of the change counts for neither target

    def _is_slower(self, remote: Verifier) -> bool:
        """Return True if the local target is the same model and has turned out to be faster."""
        if not self._same(remote) or self._n_requests % _TRY_EVERY == 0:
            return False
        here, there = self._seconds.get(True), self._seconds.get(False)
        return here is not None and there is not None and there > _FASTER * here


def _fitting(draft: Draft, verifier: Verifier) -> Draft:
    """Return the first nodes of a draft, as many as a verifier takes."""
    return first_nodes(draft, verifier.max_draft, verifier.max_leaves)
