"""MLP speculators: a small recurrent network."""

from __future__ import annotations

from typing import Any

from . import register
from .heads import HeadKind


@register("mlp", "a small network that also reads what it drafts, without a cache")
class Mlp(HeadKind):
    """Makes a speculator in the form of IBM's accelerators (arXiv 2404.19124)."""

    name, title = "mlp", "MLP speculator"

    def config(self) -> dict[str, Any]:
        """Return the config.json of a checkpoint, with the fields of IBM's accelerators."""
        d = self.shape.sizes.hidden_size
        return super().config() | {
            "architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator",
            "emb_dim": d, "inner_dim": d, "n_predict": self.shape.sizes.n_ahead,
            "tie_weights": True, "scale_input": True,
        }  # fmt: skip
