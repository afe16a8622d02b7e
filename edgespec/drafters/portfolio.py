"""Several drafters as one: all are asked, the best offer drafts."""

from __future__ import annotations

from collections.abc import Sequence

from ..interfaces import Drafter, Request
from ..types import Draft, Offer, Rows


class Portfolio:
    """Takes the offer with the most expected accepted tokens, the earlier drafter on a tie.

    Offers are made before anything is drawn, so the choice keeps every rule exact.
    """

    name = "portfolio"

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = list(drafters)
        self._best = 0

    def begin(self, request: Request) -> None:
        """Tell all."""
        for drafter in self._drafters:
            drafter.begin(request)

    def offer(self, context: Sequence[int], limit: int) -> Offer:
        """The best offer of all."""
        offers = [drafter.offer(context, limit) for drafter in self._drafters]
        self._best = max(range(len(offers)), key=lambda i: offers[i].expected(limit))
        return offers[self._best]

    def propose(self, context: Sequence[int], limit: int) -> Draft:
        """The draft of whoever made the last offer that was best."""
        return self._drafters[self._best].propose(context, limit)

    def accept(self, tokens: Sequence[int], rows: Rows | None) -> None:
        """Tell all."""
        for drafter in self._drafters:
            drafter.accept(tokens, rows)

    def close(self) -> None:
        """Free all."""
        for drafter in self._drafters:
            drafter.close()
