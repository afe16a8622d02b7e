"""A target with several slots, whose threads follow what other programs leave of the cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...backends.base import BatchedModel, BatchItem
from ...costs.threads import ThreadGovernor
from ...types import Outputs


class GovernedModel:
    """A `BatchedModel` that asks a governor for the threads of every evaluation."""

    def __init__(
        self,
        model: BatchedModel,
        governor: ThreadGovernor,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model, self._governor, self._clock = model, governor, clock
        self.vocab_size, self.n_ctx, self.n_slots = model.vocab_size, model.n_ctx, model.n_slots
        self.max_rows, self.max_draft_rows = model.max_rows, model.max_draft_rows
        self.max_batch, self.shares_prefixes = model.max_batch, model.shares_prefixes
        self.max_leaves = model.max_leaves

    @property
    def n_parked(self) -> int:
        """Number of cells that rejected nodes take."""
        return self._model.n_parked

    def decode(self, items: Sequence[BatchItem]) -> list[Outputs]:
        """Append tokens to their slots; as the model's own `decode`."""
        n = sum(len(item.tokens) for item in items)
        self._governor.before(n)
        began = self._clock()
        outputs = self._model.decode(items)
        self._governor.observe(n, 0, self._clock() - began)
        return outputs

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Make these nodes of the slot's last tree its tail; the others are gone."""
        self._model.keep(slot, path)

    def truncate(self, slot: int, n_past: int) -> None:
        """Forget everything of a slot from `n_past` on."""
        self._model.truncate(slot, n_past)

    def copy(self, source: int, target: int, n_past: int) -> None:
        """Let an empty slot begin with the first tokens of another."""
        self._model.copy(source, target, n_past)

    def close(self) -> None:
        """Free the caches."""
        self._model.close()
