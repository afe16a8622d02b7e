"""The contract of policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..sampling.base import Request
from ..types import Budget, DraftEstimate, Plan, StepStats

Ask = Callable[[], DraftEstimate]
"""Returns the estimate of a source. It takes time, so a policy calls only those that it weighs."""


class Policy(Protocol):
    """Decides at every step what to draft, from estimates made before anything is drawn.

    reason: why nothing was drafted in the last plain step, in a few words.
    """

    reason: str

    def begin(self, request: Request) -> None:
        """Begin a request; an earlier one may have ended without a last `observe`."""

    def choose(self, sources: Sequence[Ask], budget: Budget) -> Plan:
        """Return the source that is to draft, and how deep: at most `budget.limit` tokens.

        Depth 0, plain decoding, is a plan, too.
        """

    def observe(self, step: StepStats) -> None:
        """Learn from the figures of a step."""

    def plain_s(self, n_past: int) -> float | None:
        """Return the seconds of a plain step as measured, None if that is not known."""
