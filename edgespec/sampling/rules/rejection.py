"""Speculative sampling: accept one token after the other, up to the first rejection."""

from __future__ import annotations

from .. import acceptance, trees
from . import register
from .base import AcceptanceRule


@register("rejection", "a token after the other, up to the first rejection")
class Rejection(AcceptanceRule):
    """Accepts each drawn token by itself (Leviathan et al. 2023, arXiv 2211.17192)."""

    chain = staticmethod(acceptance.rejection)
    tree = staticmethod(trees.rejection)

    def draws(self, alone: bool) -> bool:
        """Return True."""
        return True
