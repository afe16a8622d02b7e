"""The contract of acceptance rules: what drafts a rule wants, and how it accepts their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...config import SamplingParams
from ...types import Distribution
from .. import acceptance, trees
from ..base import Randomness


class AcceptanceRule:
    """A rule for requests at a temperature above 0. At 0, drafts are matched with the argmax.

    Drafts without probabilities are matched with the target's own draw under every rule.
    """

    def couples(self, params: SamplingParams) -> bool:
        """Return True if drafts for this request are drawn with the same noise as the target's
        tokens.
        """
        return False

    def draws(self, alone: bool) -> bool:
        """Return True if a draft model should draw its tokens and give their distributions, False
        if it should propose its likeliest tokens. alone: True if it drafts at most one token after
        each text.
        """
        return False

    def chain(
        self,
        draft: Sequence[int],
        draft_probs: Sequence[Distribution],
        target: Callable[[int], Distribution],
        randomness: Randomness,
    ) -> tuple[int, int]:
        """Return the number of accepted tokens of a drawn chain, and the token after them.

        draft_probs[i]: the distribution that token i was drawn from. target: as in
        sampling.acceptance.
        """
        return acceptance.block(draft, draft_probs, target, randomness)

    def tree(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        draft_probs: Sequence[Distribution],
        target: Callable[[trees.Path], Distribution],
        randomness: Randomness,
    ) -> tuple[trees.Path, int]:
        """Return the accepted nodes of a tree of drawn tokens, and the token after them.

        target: as in sampling.trees.
        """
        return trees.traversal(tokens, parents, draft_probs, target, randomness)
