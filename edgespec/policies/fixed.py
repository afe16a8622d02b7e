"""The same depth every step."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import PLAIN, Budget, Offer, Plan, StepStats


class FixedDepth:
    """Drafts `depth` tokens from the best offer, fewer where the offer or the budget ends;
    plain where less than `at_least` would be drafted. Depth 0 is plain decoding.
    """

    reason = "nothing to draft"

    def __init__(self, depth: int, at_least: int = 1) -> None:
        self.depth = depth
        self.at_least = max(1, at_least)

    def choose(self, offers: Sequence[Offer], budget: Budget) -> Plan:
        """Which offer, and how deep."""
        limit = min(self.depth, budget.limit)
        if not offers or limit <= 0:
            return PLAIN
        if len(offers) == self.at_least == 1:
            return Plan(0, limit)  # it drafts what it has
        asked = list(offers)
        index = max(range(len(asked)), key=lambda i: asked[i].expected(limit))
        depth = min(limit, len(asked[index].survival))
        return Plan(index, depth) if depth >= self.at_least else PLAIN

    def plain_s(self, n_past: int) -> float | None:
        """Not measured."""
        return None

    def observe(self, stats: StepStats) -> None:
        """Nothing to learn."""
