"""Several models, each with one sequence, combined under the `BatchedModel` contract."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigError
from ..types import Outputs
from .base import BatchedModel, BatchItem, Model
from .chunks import check_slots


class SeparateModels(BatchedModel):
    """Models over the same weights, one for each slot. They are evaluated one after another, and
    their caches share nothing.
    """

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
        self.max_leaves = first.capabilities.max_leaves

    def decode(self, items: Sequence[BatchItem]) -> list[Outputs]:
        """Append tokens to their slots, each with its own model; the returned rows are copies."""
        check_slots(items, [model.n_past for model in self._models], self.n_ctx)
        return [Outputs(self._evaluate(item).logits.copy()) for item in items]

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Keep these nodes of the slot's last tree as its tail; drop the other nodes."""
        self._models[slot].keep(path)

    def truncate(self, slot: int, n_past: int) -> None:
        """Forget everything in a slot from position `n_past` on."""
        self._models[slot].truncate(n_past)

    def close(self) -> None:
        """Free the models."""
        for model in self._models:
            model.close()

    def _evaluate(self, item: BatchItem) -> Outputs:
        model = self._models[item.slot]
        if item.parents:
            return model.decode_tree(item.tokens, item.parents)
        return model.decode(item.tokens, n_logits=item.n_logits)
