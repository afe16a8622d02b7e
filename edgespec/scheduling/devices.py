"""The slots of devices that verify, next to those of answers, as a batched model of their own."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.base import BatchedModel, BatchItem
from ..errors import ContextFull
from ..types import Outputs
from .company import Company, Member
from .turns import Evaluation, Turn


class DeviceSlots(BatchedModel):
    """The last slots of a company's target. They are evaluated together with its other slots, and
    have a part of its cache that they share.

    first: the number of the first of these slots.
    """

    def __init__(self, company: Company, first: int) -> None:
        self._model, self._first = company.model, first
        self._member = Member(company, awaited=False)
        self.models = company.model.models[first:]
        self.max_rows, self.max_batch = self._model.max_rows, self._model.max_batch
        self.shares_prefixes = self._model.shares_prefixes
        self._n_cells = 0  # tokens that all slots hold together, 0 if each has a cache of its own
        self._copied: dict[
            int, tuple[int, int]
        ] = {}  # slot: (where its first tokens are, how many)

    @property
    def n_parked(self) -> int:
        """The number of cells that rejected nodes of all slots still occupy."""
        return self._model.n_parked

    def add(self, n_slots: int, n_ctx: int = 0, *, together: bool = False) -> None:
        """Add slots for devices."""
        self._member.exclusively(lambda: self._model.add(n_slots, n_ctx, together=together))
        self.models = self._model.models[self._first :]
        self._n_cells = self.n_ctx if together and self.shares_prefixes else 0
        self.max_batch = min(self._model.max_batch, self.n_ctx)

    @property
    def n_free(self) -> int:
        """The number of tokens for which the devices' part of the cache has room."""
        return self._n_cells - self._n_held if self._n_cells else super().n_free

    def decode(self, items: Sequence[BatchItem]) -> list[Outputs]:
        """Append tokens, together with those of other slots; return copies of the outputs."""
        n_more = sum(len(item.tokens) for item in items)
        if self._n_cells and n_more > self.n_free:
            raise ContextFull(f"no room for {n_more} tokens more in the cache of all devices")
        turn = _DeviceTurn(self._model, self._first, items)
        self._member.step(turn)
        return turn.outputs

    def copy(self, source: int, target: int, n_past: int) -> None:
        """Fill an empty slot with the first tokens of another one."""
        first = self._first
        self.unshare(target, 0)
        self._member.exclusively(lambda: self._model.copy(source + first, target + first, n_past))
        self._copied[target] = (source, n_past)

    def truncate(self, slot: int, n_past: int) -> None:
        """Forget everything in a slot from position `n_past` on."""
        self.unshare(slot, n_past)
        super().truncate(slot, n_past)

    def unshare(self, slot: int, n_past: int) -> None:
        """Take note that a slot shares no more than its first `n_past` tokens: the cells of longer
        copies, from it or to it, count for both slots.
        """
        for target, (source, n) in list(self._copied.items()):
            if slot in (target, source) and n_past < n:
                del self._copied[target]

    @property
    def _n_held(self) -> int:
        """The number of cells that the slots hold; those that several share count once."""
        n_shared = sum(n for _, n in self._copied.values())
        return sum(model.n_past for model in self.models) - n_shared


class _DeviceTurn(Turn):
    """The tokens that several devices want to have evaluated."""

    def __init__(self, model: BatchedModel, first: int, items: Sequence[BatchItem]) -> None:
        super().__init__()
        self._model = model
        self._items = [
            BatchItem(item.slot + first, item.tokens, item.n_logits, item.parents) for item in items
        ]
        self.outputs: list[Outputs] = []

    @property
    def n_rows(self) -> int:
        """The number of logits rows."""
        return sum(item.n_logits for item in self._items)

    @property
    def n_least(self) -> int:
        """The number of tokens."""
        return sum(len(item.tokens) for item in self._items)

    def alone(self) -> None:
        """Evaluate everything."""
        self.outputs = list(self._model.decode(self._items))

    def prepare(self, n_tokens: int, n_rows: int) -> Sequence[BatchItem]:
        """Return all items, if they fit."""
        return self._items if self.n_least <= n_tokens and self.n_rows <= n_rows else ()

    def take(self, outputs: Sequence[Outputs], evaluation: Evaluation) -> None:
        """Copy the outputs, which the devices' thread reads later."""
        self.outputs = [Outputs(one.logits.copy(), one.hidden) for one in outputs]
