"""The default rule: block verification of chains, traversal verification of trees."""

from __future__ import annotations

from ...config import SamplingParams
from . import register
from .base import AcceptanceRule


@register("block", "as long a beginning of the draft as its joint probability allows")
class Block(AcceptanceRule):
    """Accepts drawn tokens by their joint probability. For requests with a seed it acts as the rule
    "coupled", so that the same seed gives the same text however much is drafted.
    """

    def couples(self, params: SamplingParams) -> bool:
        """Return whether the request gives a seed."""
        return params.seed is not None

    def draws(self, alone: bool) -> bool:
        """Return True if at most one token is drafted after each text. If several are drafted, they
        are the likeliest tokens, because the target draws one of these more often than it accepts a
        drawn token.
        """
        return alone
