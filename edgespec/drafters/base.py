"""The contract of drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from ..sampling.base import Request
from ..types import NO_THRESHOLDS, Draft, Offer, Rows, Thresholds


class Drafter(Protocol):
    """Something cheap that guesses what the target will say."""

    name: str

    def begin(self, request: Request) -> None:
        """A new request; whatever state an earlier one left must not matter."""

    def offer(self, context: Sequence[int], limit: int) -> Offer:
        """What it expects of at most `limit` tokens after `context` (prompt and output).

        Must not draw: a choice between sources may not look at drawn tokens.
        """

    def propose(
        self, context: Sequence[int], limit: int, thresholds: Thresholds = NO_THRESHOLDS
    ) -> Draft:
        """Draft at most `limit` tokens after `context`, fewer where a survival is below its
        floor.
        """

    def accept(self, tokens: Sequence[int], rows: Rows | None) -> None:
        """What was emitted, and the verified rows for those who learn from them."""

    def close(self) -> None:
        """Free everything."""


@runtime_checkable
class DraftsAhead(Drafter, Protocol):
    """A drafter that uses the time in which a draft is under way."""

    def draft_ahead(
        self, context: Sequence[int], draft: Draft, limit: int, until: Callable[[], bool]
    ) -> None:
        """Draft on behind `context` and the whole of `draft`, at most `limit` tokens after the
        one that the target adds, for as long as `until` says False.
        """
