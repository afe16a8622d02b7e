"""Medusa heads: a residual block for each token ahead."""

from __future__ import annotations

from typing import Any

from . import register
from .heads import HeadKind


@register("medusa", "a block for each token ahead, without a cache")
class Medusa(HeadKind):
    """Makes heads that guess all tokens of a draft at once (arXiv 2401.10774)."""

    name, title = "medusa", "Medusa heads"

    @property
    def n_read(self) -> float:
        """The number of weights that are read for one guess: one call gives all of them."""
        return self.n_weights / self.shape.sizes.n_ahead

    def config(self) -> dict[str, Any]:
        """Return the config.json of a checkpoint, with Medusa's fields."""
        return super().config() | {
            "architectures": ["MedusaModel"], "model_type": "medusa",
            "medusa_num_heads": self.shape.sizes.n_ahead, "medusa_num_layers": 1,
        }  # fmt: skip
