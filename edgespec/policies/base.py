"""The contract of policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..sampling.base import Request
from ..types import Budget, DraftEstimate, Plan, StepStats

Ask = Callable[[], DraftEstimate]
"""Asks a source for its estimate, which takes time: a policy asks only those that it weighs."""


class Policy(Protocol):
    """Decides every step what to draft, from estimates made before anything is drawn.

    reason: why nothing was drafted in the last plain step, in a few words.
    """

    reason: str

    def begin(self, request: Request) -> None:
        """Begin a request."""

    def choose(self, sources: Sequence[Ask], budget: Budget) -> Plan:
        """Return which source is to draft, and how deep, at most `budget.limit`.

        Depth 0, plain decoding, is a plan.
        """

    def observe(self, step: StepStats) -> None:
        """Take note of what a step cost and gave."""

    def plain_s(self, n_past: int) -> float | None:
        """Return the seconds of a plain step as measured, None if that is not known."""
