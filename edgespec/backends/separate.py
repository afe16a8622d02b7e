"""Several models, each with one sequence, combined under the `BatchedModel` contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import ConfigError
from ..types import Outputs
from .base import BatchedModel, BatchItem, Model
from .chunks import check_slots


class SeparateModels(BatchedModel):
    """Models over the same weights, one for each slot. They are evaluated one after another, and
    their caches share nothing.

    new: makes a further model with a context of that many tokens, 0 for the usual number among so
    many models: new(n_ctx, n_models). Without it, no slots can be added.
    """

    def __init__(
        self, models: Sequence[Model], new: Callable[[int, int], Model] | None = None
    ) -> None:
        self.models: list[Model] = list(models)
        self._new = new
        self.max_rows = self.models[0].capabilities.max_rows
        self.max_batch = self.models[0].capabilities.max_batch

    def add(self, n_slots: int, n_ctx: int = 0, *, together: bool = False) -> None:
        """Add models with a cache of `n_ctx` tokens each."""
        if self._new is None:
            raise ConfigError("these models are all that there are; make more of them first")
        added: list[Model] = []
        try:
            for _ in range(n_slots):
                added.append(self._new(n_ctx, n_slots))
        except BaseException:
            for model in added:
                model.close()
            raise
        self.models += added

    def decode(self, items: Sequence[BatchItem]) -> list[Outputs]:
        """Append tokens to their slots, each with its own model; the returned rows are copies."""
        check_slots(items, self.models)
        return [Outputs(one.logits.copy(), one.hidden) for one in map(self._evaluate, items)]

    def close(self) -> None:
        """Free the models that were added."""
        for model in self.models[1:]:
            model.close()
        del self.models[1:]

    def _evaluate(self, item: BatchItem) -> Outputs:
        model = self.models[item.slot]
        if item.parents:
            return model.decode_tree(item.tokens, item.parents)
        return model.decode(item.tokens, n_logits=item.n_logits)
