"""The contract of policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..types import Budget, Offer, Plan, StepStats


class Policy(Protocol):
    """Decides every step what to draft, from offers made before anything is drawn.

    reason: why nothing was drafted in the last plain step, in a few words.
    """

    reason: str

    def choose(self, offers: Sequence[Offer], budget: Budget) -> Plan:
        """Which offer, and how deep, at most `budget.limit`. Depth 0 is a plan.

        A drafter is asked for its offer when that is looked at, so look at each but once.
        """

    def observe(self, stats: StepStats) -> None:
        """What the step cost and gave."""

    def plain_s(self, n_past: int) -> float | None:
        """Seconds of a plain step as measured, None where that is not known."""
