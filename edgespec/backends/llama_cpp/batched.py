"""A model with several slots over the weights of one GGUF, evaluated together."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import CannotTruncate, ContextFull, DecodeError, ModelError
from ...types import Outputs
from ..base import BatchedModel, BatchItem
from ..chunks import check_slots
from .batch import MOST_SEQUENCES, Batch, Part, RowViews
from .branches import N_SEQUENCES, Branches
from .context import (
    LEAST_N_CTX,
    can_branch,
    check_fits,
    context_params,
    init_context,
    limited_threads,
)
from .devices import chosen
from .library import lib

if TYPE_CHECKING:
    from .model import LlamaCppModel

_MANY_ROWS = 64  # logits rows per call of several slots


class LlamaCppBatchedModel(BatchedModel):
    """One cache with several slots under the `BatchedModel` contract.

    A prefix that slots have in common is stored once, and a long slot may use cells that other
    slots do not need. Cells of rejected nodes are freed when the cache is full. The rows of a slot
    may differ by rounding from its rows when it is evaluated alone.
    """

    shares_prefixes = True

    def __init__(self, model: LlamaCppModel, n_slots: int, n_ctx: int) -> None:
        if not model.capabilities.truncate:
            raise ModelError(
                f"{model.path.name}: the memory of this model cannot be cut, so it cannot serve "
                "several sequences; take one without a recurrent state"
            )
        native = model.native.model
        self.vocab_size, self.n_slots = model.vocab_size, n_slots
        self.max_draft_rows = model.capabilities.max_rows
        self.max_rows = max(_MANY_ROWS, n_slots)
        self._name, self._lock = model.path.name, model.lock
        each = _sequences_each(n_slots) if can_branch(native, model.config) else 1
        params = context_params(native, model.config)
        n_ctx = max(n_ctx, LEAST_N_CTX)
        if not chosen(model.config):
            check_fits(model.path, native, model.config, n_ctx)
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = model.capabilities.max_batch
        params.n_seq_max, params.kv_unified = each * n_slots, True
        params.n_outputs_max = max(self.max_rows, params.n_seq_max)
        self._context, _ = init_context(model.path, native, params)
        self._close = weakref.finalize(self, lib.llama_free, self._context)
        self.n_ctx: int = lib.llama_n_ctx_seq(self._context)
        self.max_batch: int = lib.llama_n_batch(self._context)  # fewer if the cache is shorter
        self._memory = lib.llama_get_memory(self._context)
        self._batch = Batch(self.max_batch)
        self._rows = RowViews(self._context, self.vocab_size, self.max_rows)
        self._window: int = lib.llama_model_n_swa(native)
        self._slots = [
            Branches(self._context, range(first, first + each), self._window)
            for first in range(0, each * n_slots, each)
        ]
        self.max_leaves = self._slots[0].max_leaves
        self._n_past = [0] * n_slots  # including the nodes of a tree that waits for `keep`
        self._n_nodes = [0] * n_slots  # the nodes of such a tree
        self.thread_limit = 0
        self._model = model  # keeps its weights alive as long as this cache

    @property
    def n_parked(self) -> int:
        """The number of cells that rejected nodes of all slots still occupy."""
        return sum(branches.n_parked for branches in self._slots)

    def decode(self, items: Sequence[BatchItem]) -> list[Outputs]:
        """Append tokens to their slots; return views valid until the next call."""
        check_slots(items, self._n_past, self.n_ctx)
        for item in items:
            if self._slots[item.slot].is_full(self.n_ctx):
                self._pack(item.slot)
        code = self._evaluate(items)
        if code == 1 and self.n_parked:
            for slot, branches in enumerate(self._slots):
                if branches.n_parked:
                    self._pack(slot)
            code = self._evaluate(items)
        if code:
            self._raise(code, sum(len(item.tokens) for item in items), len(items))
        for item in items:
            self._n_past[item.slot] += len(item.tokens)
            self._n_nodes[item.slot] = len(item.parents)
        counts = [item.n_logits for item in items]
        rows = self._rows.first(sum(counts)).logits
        return [Outputs(part) for part in np.split(rows, np.cumsum(counts)[:-1])]

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Keep these nodes of the slot's last tree as the end of the slot; drop the others."""
        self._slots[slot].keep(path)
        self._n_past[slot] += len(path) - self._n_nodes[slot]
        self._n_nodes[slot] = 0

    def truncate(self, slot: int, n_past: int) -> None:
        """Forget everything in a slot from `n_past` on. Raises CannotTruncate; the slot is then
        empty.
        """
        if n_past >= self._n_past[slot]:
            return
        self._n_nodes[slot] = 0
        if self._cut(slot, n_past) and self._sees_all(slot, n_past):
            self._n_past[slot] = n_past
            return
        self._cut(slot, 0)
        self._n_past[slot] = 0
        raise CannotTruncate(f"slot {slot} cannot be cut at {n_past} tokens; it is empty now")

    def copy(self, source: int, target: int, n_past: int) -> None:
        """Let the empty slot `target` begin with the first `n_past` tokens of the slot `source`.
        Raises CannotTruncate.
        """
        branches = self._slots[source]
        if branches.n_parked and branches.n_whole < n_past:
            self._pack(source)  # after copying, packing would rewrite shared tokens and free less
        if not self._sees_all(source, n_past):
            raise CannotTruncate(
                f"slot {source} has lost what the first {n_past} tokens begin with"
            )
        other = self._slots[target].text
        lib.llama_memory_seq_cp(self._memory, branches.text, other, 0, n_past)
        self._n_past[target] = n_past

    def limit_threads(self, n_threads: int) -> None:
        """Use at most `n_threads` threads from the next evaluation on; 0 removes the limit."""
        self.thread_limit = n_threads
        model = self._model
        limited = limited_threads(n_threads, model.n_threads, model.n_threads_batch)
        lib.llama_set_n_threads(self._context, *limited)

    def close(self) -> None:
        """Free the cache."""
        self._close()

    def _evaluate(self, items: Sequence[BatchItem]) -> int:
        """Evaluate the items and return llama_decode's code; if it is not 0, nothing was
        appended.
        """
        code: int = -1
        try:
            batch = self._batch.fill_parts([self._part(item) for item in items])
            with self._lock:
                code = lib.llama_decode(self._context, batch)
        finally:
            if code:  # the engine itself cleans at most one sequence of each token
                for item in items:
                    self._cut(item.slot, self._n_past[item.slot])
        return code

    def _part(self, item: BatchItem) -> Part:
        branches, n_past, n = self._slots[item.slot], self._n_past[item.slot], len(item.tokens)
        if item.parents:
            n_before = n - len(item.parents) - 1
            sequences, positions = branches.enter(item.parents, n_past, n_before)
            return Part(item.tokens, positions, sequences, item.n_logits)
        text = range(branches.text, branches.text + 1)
        return Part(item.tokens, range(n_past, n_past + n), [text] * n, item.n_logits)

    def _cut(self, slot: int, n_past: int) -> bool:
        """Remove everything from `n_past` on from all sequences of a slot. Return False if the
        engine cannot do that.
        """
        branches = self._slots[slot]
        branches.truncate(n_past)
        removed: bool = lib.llama_memory_seq_rm(self._memory, branches.text, n_past, -1)
        return removed

    def _pack(self, slot: int) -> None:
        try:
            self._slots[slot].pack(self._n_past[slot])
        except BaseException:
            self._n_past[slot] = 0
            raise

    def _sees_all(self, slot: int, n_past: int) -> bool:
        """Return True if the slot still has all cells that a token at `n_past` sees. The engine may
        have given cells to other slots after they left the slot's sliding window.
        """
        if not self._window or not n_past:
            return True
        text = self._slots[slot].text
        first: int = lib.llama_memory_seq_pos_min(self._memory, text)
        return 0 <= first <= max(0, n_past - self._window + 1)

    def _raise(self, code: int, n_tokens: int, n_slots: int) -> None:
        if code == 1:
            raise ContextFull(f"no room in the cache for {n_tokens} tokens more of {n_slots} slots")
        raise DecodeError(f"{self._name}: llama_decode failed with code {code}")


def _sequences_each(n_slots: int) -> int:
    """Return the number of sequences for each slot: one per leaf, and two more. If there are too
    few sequences for two leaves, each slot gets only one.
    """
    each = min(MOST_SEQUENCES // n_slots, N_SEQUENCES)
    return each if each > 3 else 1
