"""Coupled sampling: draft model and target draw with the same noise."""

from __future__ import annotations

from ...config import SamplingParams
from . import register
from .base import AcceptanceRule


@register("coupled", "what the target draws with the same noise")
class Coupled(AcceptanceRule):
    """Makes the text depend only on the seed and the target."""

    def couples(self, params: SamplingParams) -> bool:
        """Return True."""
        return True
