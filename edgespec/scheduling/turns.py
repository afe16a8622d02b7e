"""Turns: each holds what one user of a batched target wants to have evaluated next."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import NamedTuple

from ..backends.base import BatchItem
from ..policies.base import Limits
from ..policies.growth import Growth
from ..types import Abort, Budget, Outputs


class Evaluation(NamedTuple):
    """The figures of an evaluation of several turns. Times are in seconds.

    draft_s: the time in which all drafts were made. verify_s: the time of the target's evaluation.
    plain_s: the time that it would have taken without drafts, 0 if that is not known. n_rows: the
    logits rows that it computed. n_drafted: those of drafts of this process.
    """

    draft_s: float
    verify_s: float
    plain_s: float
    n_rows: int
    n_drafted: int


class Turn:
    """Tokens that a user of the target wants to have evaluated. Its thread waits until that is
    done.

    abort: as soon as it returns a reason, the user no longer waits. reads: the turn reads a prompt,
    so it may be cut into pieces and must not delay the others by much. is_held: the company is
    making its draft or taking its outputs, so its user cannot leave it now. is_late: it did not fit
    into an earlier evaluation.
    """

    reads = False
    is_held = False
    is_late = False

    def __init__(self, abort: Abort | None = None) -> None:
        self.abort = abort
        self.error: BaseException | None = None

    def alone(self) -> None:
        """Do everything in the user's own thread: no other turn waits."""
        raise NotImplementedError

    @functools.cached_property
    def is_done(self) -> threading.Event:
        """Set when the turn is done; a turn that is carried out alone never needs it."""
        return threading.Event()

    @property
    def n_rows(self) -> int:
        """The number of logits rows without drafts of this process."""
        return 0 if self.reads else 1

    @property
    def n_least(self) -> int:
        """The fewest tokens that have to be evaluated for this turn; if it reads, how many it
        wants.
        """
        raise NotImplementedError

    def prepare(self, n_tokens: int, n_rows: int) -> Sequence[BatchItem]:
        """Return what to evaluate, at most so many tokens and rows; nothing if that is too few."""
        raise NotImplementedError

    def take(self, outputs: Sequence[Outputs], evaluation: Evaluation) -> None:
        """Take the outputs of the items, which are views that are valid during this call."""
        raise NotImplementedError

    def drop(self, outputs: Sequence[Outputs]) -> None:
        """Take note that the items were evaluated, but that nobody waits for the outputs."""

    def fail(self) -> None:
        """Take note that the evaluation has failed."""


class Step(Turn):
    """The next step of an answer, with a draft; a `Stream` for `policies.together`.

    budget: the limits of the step. growth: what has made its draft, None if it has none.
    """

    budget: Budget
    growth: Growth | None = None

    @property
    def loss_budget(self) -> float:
        """Tokens that the answer may still lose to drafts, its own and those of others."""
        raise NotImplementedError

    def limits(self, budget: Budget) -> Limits:
        """Return the limits of the draft."""
        raise NotImplementedError

    def start(self, limits: Limits) -> Growth:
        """Return the growth of the draft within these limits."""
        raise NotImplementedError
