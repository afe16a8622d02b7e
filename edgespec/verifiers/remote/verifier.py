"""Verification rounds with a server: drafts are sent to it, verdicts come back."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ...backends.base import Tokenizer
from ...config import RemoteConfig
from ...errors import (
    Aborted,
    ConfigError,
    ContextFull,
    DecodeError,
    VerifierFault,
    VerifierUnavailable,
)
from ...protocol import Answer, Busy, Cancel, Frame, More, Need, Progress, Verify
from ...sampling.base import Request
from ...sampling.trees import first_nodes, path_to
from ...types import NO_DRAFT, Draft, Requires, Verdict
from .connection import Connection
from .context import Rounds, SharedContext

_LONG_PROMPT = 256  # new tokens; fewer ones are read by the server while the first draft is sent
_MOST_NEEDS = 3  # times that a server may ask for the context of one step
_RECENT = 32  # latest answers from which the round trip is estimated


class RemoteVerifier:
    """Lets a verification server check drafts; texts are sent as token ids only.

    tokenizer: the device's tokenizer; the server refuses a vocabulary different from its own. A
    lost connection is opened again within `remote.timeout_s`, and the session is resumed.

    Plain steps are not asked for one by one: the server emits tokens by itself and is told when to
    go on. Drawn tokens depend on seed and position alone (coupled sampling), so the text is the
    same as on one machine, however often the connection was lost.

    Raises VerifierUnavailable, VerifierRefused, VerifierFault, ConfigError.
    """

    def __init__(
        self,
        remote: RemoteConfig,
        tokenizer: Tokenizer,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.notices: list[str] = []
        self._clock = clock
        self._timeout_s = remote.timeout_s
        self._context = SharedContext()
        self._rounds = Rounds()
        self._submitted = NO_DRAFT
        self._was_draft = False  # True if the last step that was asked for had a draft
        self._n_unread = 0
        self._round_trips: deque[float] = deque(maxlen=_RECENT)
        self._connection = Connection(remote, tokenizer, self._forget, clock)

    @property
    def n_ctx(self) -> int:
        """Number of tokens that the server's context holds."""
        return self._connection.opened.n_ctx

    @property
    def max_draft(self) -> int:
        """Most tokens of a draft."""
        return self._connection.opened.max_draft

    @property
    def max_leaves(self) -> int:
        """Most leaves of a tree; 1 if the server verifies chains only."""
        return self._connection.opened.max_leaves

    @property
    def model(self) -> str:
        """Name of the target."""
        return self._connection.opened.model

    @property
    def costs(self) -> dict[int, float]:
        """Seconds of the target's evaluations by number of tokens, as measured by the server."""
        return {n: us * 1e-6 for n, us in self._connection.opened.costs}

    @property
    def bytes_sent(self) -> int:
        """Bytes of all frames sent to the server."""
        return self._connection.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Bytes of all frames received from the server."""
        return self._connection.bytes_received

    def round_trip_s(self) -> float:
        """Return the median seconds of the last round trips, without the server's own time.

        Before the first answer to a draft it is the time of a ping.
        """
        if self._round_trips:
            return statistics.median(self._round_trips)
        return self._connection.ping_s()

    def n_reusable(self, owner: str, prompt: Sequence[int]) -> int:
        """Return 0: what the server has cached is not known here."""
        return 0

    def require(self, requires: Requires) -> None:
        """Do nothing: hidden states are not sent over the network."""

    def begin(self, request: Request) -> Iterator[int]:
        """Send the tokens of the prompt that the server lacks; if they are many, yield its
        progress.
        """
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
        self._request, self._matcher = request, request.matcher()
        self._connection.abort = request.abort
        self._context.start(request.prompt)
        return self._prefill()

    def _prefill(self) -> Iterator[int]:
        n, total, n_needs = self._context.n_known, len(self._context), 0
        self._began = self._clock()
        self._n_unread = total - n
        self._connection.again(self._send_begin, lambda: None)
        yield n
        while self._n_unread > _LONG_PROMPT:
            frame = self._connection.again(self._receive, self._send_begin)
            if isinstance(frame, Progress) and frame.generation == self._context.generation:
                self._connection.answered()
                self._n_unread = total - frame.n_done
                yield min(frame.n_done, total)
            elif isinstance(frame, Need):
                n_needs += 1
                self._correct(frame, n_needs)
                self._connection.again(self._send_begin, lambda: None)
            elif isinstance(frame, Busy):
                return  # the rest of the prompt is evaluated with the first VERIFY

    def verify(self, draft: Draft) -> Verdict:
        """Let the server check a draft; without a draft, take the next token that it emits."""
        self.submit(draft)
        return self.result()

    def submit(self, draft: Draft) -> None:
        """Send a draft; `result` waits for its verdict."""
        self._submitted, self._began = draft, self._clock()
        was_cut = len(self._context) < self._context.n_known  # not all was accepted
        if draft.tokens or was_cut or not self._rounds.is_coming:
            self._connection.again(self._send_verify, self._send_begin)
            return
        last = self._rounds.extend(self._n_ahead(), self._connection.opened.max_ahead)
        if last is not None:
            with contextlib.suppress(VerifierUnavailable):  # `result` finds out and asks again
                self._connection.send(More(last))

    def ready(self) -> bool:
        """Return True if the verdict has arrived, or another frame that has to be handled first."""
        return self._connection.ready(
            lambda frame: isinstance(frame, Answer) and frame.round != self._rounds.due
        )

    def result(self) -> Verdict:
        """Wait for the verdict on the submitted draft. Raises Aborted and VerifierError."""
        answer, draft = self._answer(), self._submitted
        n_vocab = self._connection.n_vocab
        if answer.accepted > len(draft.tokens) or answer.token >= n_vocab:
            raise self._fault(
                f"accepted {answer.accepted} of {len(draft.tokens)} tokens and added token "
                f"{answer.token} of {n_vocab}"
            )
        drafted, n_accepted = draft.tokens, answer.accepted
        if draft.parents:
            path = path_to(draft.parents, answer.accepted - 1)
            drafted, n_accepted = tuple(drafted[node] for node in path), len(path)
        tokens = (*drafted[:n_accepted], answer.token)
        wanted = self._request.params.logprobs is not None
        if wanted and len(answer.logprobs) != len(tokens):
            raise self._fault("left out log-probabilities that were asked for")
        seconds = self._clock() - self._began
        if draft.tokens:
            self._round_trips.append(max(0.0, seconds - 1e-6 * answer.server_us))
        self._context.n_known = len(self._context) + len(tokens)
        n_unread, self._n_unread = max(self._n_unread, 1), 0
        return Verdict(
            tokens,
            n_accepted,
            logprobs=answer.logprobs if wanted else None,
            n_evaluated=n_unread + len(draft.tokens),
            seconds=seconds,
        )

    def accept(self, tokens: Sequence[int]) -> None:
        """Append the emitted tokens of the last verdict to the context.

        Raises VerifierFault if they do not follow the request's constraint.
        """
        self._context.extend(tokens)
        if self._matcher:
            try:
                self._matcher.accept(tokens)
            except DecodeError as error:
                raise self._fault(f"sent what was not asked for: {error}") from error

    def finish(self) -> None:
        """Tell the server that the answer has ended, so that it stops emitting tokens by itself."""
        if self._rounds.is_coming:
            self._rounds.skip()
            with contextlib.suppress(VerifierUnavailable):  # then it has stopped anyway
                self._connection.send(Cancel())

    def close(self) -> None:
        """End the session; the server forgets it. Closing twice is harmless."""
        self._connection.close()

    def _answer(self) -> Answer:
        """Wait for the next answer; meanwhile do what the server asks for."""

        def ask_again() -> None:
            self._send_begin()
            self._send_verify()

        connection, n_needs = self._connection, 0
        while True:
            frame = connection.again(self._receive, ask_again)
            if isinstance(frame, Answer):
                if frame.round == self._rounds.due:
                    self._rounds.due += 1
                    connection.answered()
                    return frame
            elif isinstance(frame, Need):
                n_needs += 1
                self._correct(frame, n_needs)
                connection.again(ask_again, ask_again)
            elif isinstance(frame, Busy):
                self._wait(frame)
                connection.again(self._send_verify, ask_again)
            elif not isinstance(frame, Progress):
                raise self._fault(f"sent {type(frame).__name__.upper()} instead of a verdict")

    def _correct(self, need: Need, n_needs: int) -> None:
        if n_needs > _MOST_NEEDS:
            raise self._fault("asks for the same context again and again")
        self._context.correct(need)

    def _wait(self, busy: Busy) -> None:
        if self._clock() - self._began > self._timeout_s:
            raise VerifierUnavailable(
                f"{self._connection.host} has no room: {busy.message}; try again later",
                busy.retry_ms / 1e3,
            )
        self._connection.sleep(busy.retry_ms / 1e3 * random.uniform(1, 1.5))

    def _n_ahead(self) -> int:
        """Return how many tokens the server may emit by itself after the next one."""
        wanted = self._context.n_wanted(self._request, self.n_ctx)
        return max(0, min(wanted, self._connection.opened.max_ahead))

    def _send_begin(self) -> None:
        frame = self._context.begin(self._request, self._seed or 0)
        self._n_unread = max(self._n_unread, len(frame.ids))
        self._rounds.skip()
        self._connection.send(frame)
        self._context.n_known = len(self._context)

    def _send_verify(self) -> None:
        """Ask for a verdict, and for plain steps after it unless the last two steps have drafts."""
        draft = self._submitted = self._fitting(self._submitted)
        n_ahead = 0 if draft.tokens and self._was_draft else self._n_ahead()
        self._was_draft = bool(draft.tokens)
        round_ = self._rounds.ask(n_ahead)
        length, checksum = len(self._context), self._context.checksum(len(self._context))
        self._connection.send(
            Verify(round_, length, checksum, n_ahead, tuple(draft.tokens), tuple(draft.parents))
        )

    def _fitting(self, draft: Draft) -> Draft:
        """Return the first nodes of a draft, as many as the server takes."""
        opened, n_vocab = self._connection.opened, self._connection.n_vocab
        n = next((i for i, token in enumerate(draft.tokens) if token >= n_vocab), opened.max_draft)
        return first_nodes(draft, min(n, opened.max_draft), opened.max_leaves)

    def _receive(self) -> Frame:
        try:
            return self._connection.receive()
        except Aborted:
            self._connection.send(Cancel())
            self._rounds.skip()
            raise

    def _forget(self) -> None:
        """Note that the server has no tokens and no rounds of this session."""
        self._context.n_known = 0
        self._rounds = Rounds()

    def _fault(self, message: str) -> VerifierFault:
        self._connection.drop()
        return VerifierFault(f"{self._connection.host} {message}")
