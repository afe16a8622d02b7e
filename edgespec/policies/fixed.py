"""The policy that drafts to the same depth at every step."""

from __future__ import annotations

from collections.abc import Sequence

from ..sampling.base import Request
from ..types import PLAIN, Budget, Plan, StepStats
from .base import Ask


class FixedDepth:
    """Drafts `depth` tokens from the source with the largest expected number of accepted ones.

    It drafts fewer if the source has fewer or the budget ends, and decodes plainly if fewer than
    `at_least` would be drafted. Depth 0 is plain decoding.
    """

    reason = "nothing to draft"

    def __init__(self, depth: int, at_least: int = 1) -> None:
        self.depth = depth
        self.at_least = max(1, at_least)

    def begin(self, request: Request) -> None:
        """Begin a request; nothing is remembered of earlier ones."""

    def choose(self, sources: Sequence[Ask], budget: Budget) -> Plan:
        """Return the source with the largest expected number of accepted tokens."""
        limit = min(self.depth, budget.limit)
        if not sources or limit <= 0:
            return PLAIN
        if len(sources) == self.at_least == 1:
            return Plan(0, limit)  # it drafts what it has
        estimates = [ask() for ask in sources]
        best = max(range(len(estimates)), key=lambda i: estimates[i].expected(limit))
        depth = min(limit, len(estimates[best].acceptance_probs))
        return Plan(best, depth) if depth >= self.at_least else PLAIN

    def observe(self, step: StepStats) -> None:
        """Learn nothing."""

    def plain_s(self, n_past: int) -> float | None:
        """Return None: nothing is measured."""
        return None
