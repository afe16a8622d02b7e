"""Values of the verification service: its limits, its counts, and one device's session."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ... import protocol
from ...cache.token_cache import TokenCache
from ...sampling.base import Constraint
from ...sampling.verification import Verification

Send = Callable[[bytes], None]
"""Sends one encoded frame to a device. It is called from several threads and must not block."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that one server sets for devices. Times are in seconds.

    max_sessions: most sessions that are connected or may still be resumed.
    max_prompt_tokens: longest prompt; 0 allows the whole context.
    max_ahead: most tokens that the target emits by itself before a device has to ask again.
    frames_per_s: most frames of one session per second, as a mean over ten seconds.
    idle_s: time after which the cache of a silent session is dropped.
    resume_s: time after which a session whose connection was lost is forgotten.
    """

    max_sessions: int = 256
    max_prompt_tokens: int = 0
    max_ahead: int = 32
    frames_per_s: float = 200.0
    idle_s: float = 600.0
    resume_s: float = 300.0


@dataclass(slots=True)
class Counts:
    """Totals since the start. Each field is a Prometheus counter of the same name."""

    sessions_opened: int = 0
    sessions_resumed: int = 0
    verifications: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    emitted_tokens: int = 0
    prompt_tokens: int = 0
    shared_tokens: int = 0
    loaded_tokens: int = 0
    evaluations: int = 0
    evaluated_sequences: int = 0
    evictions: int = 0
    refused: int = 0


@dataclass(slots=True, eq=False)
class DeviceSession:
    """One device's session: its connection, its context, and the work that it waits for.

    The first group of fields is guarded by the registry's lock, except that an answer sets
    `last_used` without it. The second group belongs to the evaluating thread. Times are those of
    the registry's clock, in seconds.

    token: the id by which the device resumes the session; empty once the session is forgotten.
    send: sends frames over the current connection; None if there is no connection.
    inbox: frames that are not handled yet, each as (arrival time, frame).
    allowance: how many frames may come now without breaking the limit.

    reading: True while the prompt is read into the cache.
    pending: the verification that waits for the target.
    waiting_since: when the frame to be answered arrived, or when the last answer was sent.
    answered_round: the last round that was answered; `answer` is that answer.
    granted_round: the round up to which the target goes on by itself.
    slot, cache: the slot that it has, and what is in that slot; None for none.
    constraint: the constraint on the output, None if there is none.
    """

    token: bytes
    owner: str
    send: Send | None = None
    inbox: deque[tuple[float, bytes | str]] = field(default_factory=deque)
    last_used: float = 0.0
    last_frame: float = 0.0
    allowance: float = 0.0

    context: protocol.Context = field(default_factory=protocol.Context)
    n_prompt: int = 0
    begun: protocol.Begin | None = None
    constraint: Constraint | None = None
    verification: Verification | None = None
    reading: bool = False
    pending: protocol.Verify | None = None
    waiting_since: float = 0.0
    answered_round: int = -1
    granted_round: int = -1
    answer: bytes = b""
    slot: int | None = None
    cache: TokenCache | None = None

    @property
    def n_cached(self) -> int:
        """The number of the context's tokens that are in the cache."""
        return len(self.cache.tokens) if self.cache else 0

    @property
    def busy(self) -> bool:
        """True while the session waits for the target."""
        return self.reading or self.pending is not None

    @property
    def has_ended(self) -> bool:
        """True if the session's answer is complete under its constraint."""
        return self.verification is not None and self.verification.has_ended

    def stop(self) -> None:
        """Drop the work that the session waits for; let the target emit nothing more by itself."""
        self.reading, self.pending, self.granted_round = False, None, self.answered_round

    def go_on(self, n_ctx: int) -> None:
        """Ask for the next token on the device's behalf, if the device allowed this and the context
        of `n_ctx` tokens has room. The device decides where an answer ends, except that an answer
        which is complete under a constraint is not continued.
        """
        length, next_round = len(self.context), self.answered_round + 1
        self.reading, self.pending = False, None
        if next_round <= self.granted_round and length <= n_ctx and not self.has_ended:
            self.pending = protocol.Verify(next_round, length, 0, 0, ())
        else:
            self.granted_round = self.answered_round
