"""Models that keep one sequence each, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigError
from ..types import Outputs
from .base import BatchItem, Model


class SeparateModels:
    """Models of the same weights as `BatchedModel`: evaluated one after another, nothing shared."""

    shares_prefixes = False

    def __init__(self, models: Sequence[Model]) -> None:
        first = models[0]
        if not first.capabilities.truncate:
            raise ConfigError(
                "the memory of this model cannot be cut, so it cannot verify for others; take one "
                "without a recurrent state"
            )
        self._models = list(models)
        self.vocab_size, self.n_ctx, self.n_slots = first.vocab_size, first.n_ctx, len(models)
        self.max_draft_rows = self.max_rows = first.capabilities.max_rows
        self.max_batch = first.capabilities.max_batch

    def decode(self, items: Sequence[BatchItem]) -> list[Outputs]:
        """Each part by its own model."""
        return [
            Outputs(
                self._models[item.slot].decode(item.tokens, n_logits=item.n_logits).logits.copy()
            )
            for item in items
        ]

    def truncate(self, sequence: int, n_past: int) -> None:
        """Forget everything of a sequence from `n_past` on."""
        self._models[sequence].truncate(n_past)

    def copy(self, source: int, target: int, n_past: int) -> None:
        """Never asked for, as nothing is shared."""
        raise NotImplementedError

    def close(self) -> None:
        """Free the models."""
        for model in self._models:
            model.close()
