"""Block verification of chains, traversal verification of trees."""

from __future__ import annotations

from ...config import SamplingParams
from . import register
from .base import AcceptanceRule


@register("block", "as long a beginning of the draft as its joint probability allows")
class Block(AcceptanceRule):
    """Accepts drawn drafts as a whole, and couples drafts for requests with a seed, so that the
    same seed gives the same text however much is drafted.
    """

    def couples(self, params: SamplingParams) -> bool:
        """Return whether the request gives a seed."""
        return params.seed is not None

    def draws(self, alone: bool) -> bool:
        """Return whether one token after each text is drafted: of several, the likeliest are
        proposed, since the target draws one of them more often than it accepts one drawn token.
        """
        return alone
