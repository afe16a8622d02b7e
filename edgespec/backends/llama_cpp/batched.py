"""Several slots over the weights of one GGUF, evaluated together."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import CannotTruncate, ContextFull, DecodeError, ModelError, OutOfMemory
from ...types import Outputs, Rows
from ..base import BatchItem
from ..chunks import check_slots
from .batch import Batch, RowViews
from .context import context_params, limited_threads
from .library import lib

if TYPE_CHECKING:
    from .model import LlamaCppModel

_MANY_ROWS = 64  # logits rows a call of several slots


class LlamaCppBatchedModel:
    """One cache with several slots under the `BatchedModel` contract.

    A common prefix is kept once, and a long slot may have the tokens that others do not use. If
    the model's rows are only equal in small evaluations (batch_invariant), each slot has its own
    part of the cache and is evaluated by itself, so that its rows do not depend on the others.
    """

    def __init__(self, model: LlamaCppModel, n_slots: int, n_ctx: int) -> None:
        if not model.capabilities.truncate:
            raise ModelError(
                f"{model.path.name}: the memory of this model cannot be cut, so it cannot serve "
                "several sequences; take one without a recurrent state"
            )
        self.vocab_size, self.n_slots = model.vocab_size, n_slots
        self.max_batch = model.capabilities.max_batch
        self.max_draft_rows = model.capabilities.max_rows
        self.max_rows = max(_MANY_ROWS, n_slots)
        self.shares_prefixes = not model.rows_apart
        self._name, self._lock = model.path.name, model.lock
        params = context_params(model.native.model, model.config)
        params.n_ctx = n_ctx if self.shares_prefixes else n_ctx * n_slots
        params.n_batch = params.n_ubatch = self.max_batch
        params.n_seq_max, params.kv_unified = n_slots, self.shares_prefixes
        params.n_outputs_max = self.max_rows
        self._context = lib.llama_init_from_model(model.native.model, params)
        if not self._context:
            raise OutOfMemory(
                f"{self._name}: no cache of {params.n_ctx} tokens for {n_slots} sequences "
                "could be made; take fewer of either"
            )
        self._close = weakref.finalize(self, lib.llama_free, self._context)
        self.n_ctx: int = lib.llama_n_ctx_seq(self._context)
        self._memory = lib.llama_get_memory(self._context)
        self._batch = Batch(self.max_batch)
        self._rows = RowViews(self._context, self.vocab_size, self.max_rows)
        self._n_past = [0] * n_slots
        self.thread_limit = 0
        self._model = model  # its weights stay as long as this cache

    def decode(self, items: Sequence[BatchItem]) -> list[Outputs]:
        """Append tokens to their slots; views valid until the next call."""
        check_slots(items, self._n_past, self.n_ctx)
        rows = self._together(items) if self.shares_prefixes else map(self._alone, items)
        return [Outputs(logits) for logits in rows]

    def truncate(self, slot: int, n_past: int) -> None:
        """Forget everything of a slot from `n_past` on."""
        if n_past < self._n_past[slot]:
            if not lib.llama_memory_seq_rm(self._memory, slot, n_past, -1):
                raise CannotTruncate(f"slot {slot} cannot be cut at {n_past} tokens")
            self._n_past[slot] = n_past

    def copy(self, source: int, target: int, n_past: int) -> None:
        """Let an empty slot begin with the first tokens of another."""
        lib.llama_memory_seq_cp(self._memory, source, target, 0, n_past)
        self._n_past[target] = n_past

    def limit_threads(self, n_threads: int) -> None:
        """Use at most so many threads from the next evaluation on, 0 for as many as are set."""
        self.thread_limit = n_threads
        model = self._model
        limited = limited_threads(n_threads, model.n_threads, model.n_threads_batch)
        lib.llama_set_n_threads(self._context, *limited)

    def close(self) -> None:
        """Free the cache."""
        self._close()

    def _alone(self, item: BatchItem) -> Rows:
        """Evaluate a draft in a call of its own, and what is before it in another one."""
        tokens, n = item.tokens, len(item.tokens) - item.n_logits
        if n and item.n_logits:
            self._together([BatchItem(item.slot, tokens[:n])])
            tokens = tokens[n:]
        rows: Rows = self._together([BatchItem(item.slot, tokens, item.n_logits)])[0].copy()
        return rows

    def _together(self, items: Sequence[BatchItem]) -> list[Rows]:
        batch = self._batch.fill_items(items, self._n_past)
        with self._lock:
            code = lib.llama_decode(self._context, batch)
        if code == 1:
            raise ContextFull(
                f"no room in the cache for {batch.n_tokens} tokens more of {len(items)} slots"
            )
        if code:
            raise DecodeError(f"{self._name}: llama_decode failed with code {code}")
        for item in items:
            self._n_past[item.slot] += len(item.tokens)
        counts = [item.n_logits for item in items]
        return np.split(self._rows.first(sum(counts)).logits, np.cumsum(counts)[:-1])
