"""The contract of acceptance rules: how drafts are made for one, and how it judges them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...config import SamplingParams
from ...types import Distribution
from .. import acceptance, trees
from ..base import Randomness


class AcceptanceRule:
    """A rule for requests at a temperature above 0. At 0 drafts are matched with the argmax.

    Drafts without probabilities are matched with the target's own draw whatever the rule.
    """

    def couples(self, params: SamplingParams) -> bool:
        """Return whether drafts for this request are drawn with the target's own noise."""
        return False

    def draws(self, alone: bool) -> bool:
        """Return whether a model draws its tokens, with their probabilities; else it proposes its
        likeliest. alone: it drafts one token after each text at most.
        """
        return False

    def chain(
        self,
        draft: Sequence[int],
        draft_probs: Sequence[Distribution],
        target: Callable[[int], Distribution],
        randomness: Randomness,
    ) -> tuple[int, int]:
        """Return how many drawn tokens of a chain are accepted, and the token after them.

        draft_probs[i]: what token i was drawn from. target: as in sampling.acceptance.
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
        """Return the accepted nodes of a tree with drawn tokens, and the token after them. target:
        as in sampling.trees.
        """
        return trees.traversal(tokens, parents, draft_probs, target, randomness)
