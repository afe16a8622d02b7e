"""Speculative sampling: a token after the other, up to the first rejection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...types import Distribution
from .. import acceptance, trees
from ..base import Randomness
from . import register
from .base import AcceptanceRule


@register("rejection", "a token after the other, up to the first rejection")
class Rejection(AcceptanceRule):
    """Accepts each drawn token by itself (Leviathan et al. 2023, arXiv 2211.17192)."""

    def draws(self, alone: bool) -> bool:
        """Return True."""
        return True

    def chain(
        self,
        tokens: Sequence[int],
        draft_probs: Sequence[Distribution],
        target: Callable[[int], Distribution],
        randomness: Randomness,
    ) -> tuple[int, int]:
        """Return how many drawn tokens are accepted, and the token after them."""
        return acceptance.rejection(tokens, draft_probs, target, randomness)

    def tree(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        draft_probs: Sequence[Distribution],
        target: Callable[[trees.Path], Distribution],
        randomness: Randomness,
    ) -> tuple[trees.Path, int]:
        """Return the accepted nodes of a tree, and the token after them."""
        return trees.rejection(tokens, parents, draft_probs, target, randomness)
