"""Several texts in one context over the weights of a GGUF, evaluated together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import CannotTruncate, ConfigError, ContextFull, DecodeError
from ...types import Outputs
from ..base import BatchedModel, BatchItem
from ..chunks import check_slots
from .batch import MOST_SEQUENCES, Batch, Part, RowViews
from .branches import N_SEQUENCES
from .context import LEAST_N_CTX, MANY_ROWS, can_branch
from .library import lib

if TYPE_CHECKING:
    from .model import LlamaCppModel

_SPARE = 256  # cells for the rejected nodes of each slot


class LlamaCppBatchedModel(BatchedModel):
    """One cache with several slots under the `BatchedModel` contract.

    A prefix that slots have in common is stored once, and a long slot may use cells that other
    slots do not need. Cells of rejected nodes are freed when the cache is full. The rows of a slot
    may differ by rounding from its rows when it is evaluated alone.
    """

    shares_prefixes = True

    def __init__(self, model: LlamaCppModel) -> None:
        self._first = model
        self.models: list[LlamaCppModel] = model.texts
        self._prepare()

    def _prepare(self) -> None:
        """Make the batch and the views of logits for the model's present context."""
        first = self._first
        self._context = first.native.context
        self.max_batch: int = lib.llama_n_batch(self._context)
        self.max_rows = max(MANY_ROWS, self.n_slots)
        self._batch = Batch(self.max_batch)
        self._rows = RowViews(self._context, first.vocab_size, self.max_rows)

    @property
    def thread_limit(self) -> int | None:  # type: ignore[override]
        """The most threads that may be used at present, 0 without a limit."""
        return self._first.thread_limit

    @property
    def n_parked(self) -> int:
        """The number of cells that rejected nodes of all slots still occupy."""
        return sum(model.branches.n_parked for model in self.models)

    def add(self, n_slots: int, n_ctx: int = 0, *, together: bool = False) -> None:
        """Add slots, in a larger cache that the present texts are moved to."""
        first, n_used = self._first, self.models[-1].ids.stop
        n_ctx = max(n_ctx or first.usual_n_ctx(1 if together else n_slots), LEAST_N_CTX)
        each = _sequences_each(MOST_SEQUENCES - n_used, n_slots)
        if not can_branch(first.native.model, first.config):
            each = 1
        if each < 1:
            raise ConfigError(
                f"{n_slots} slots more than {self.n_slots}: llama.cpp keeps {MOST_SEQUENCES} "
                "sequences, and each slot needs one for each leaf of a tree; take fewer"
            )
        n_cells = n_ctx if together else n_slots * n_ctx
        ids = [range(n_used + i * each, n_used + (i + 1) * each) for i in range(n_slots)]
        first.widen(ids, n_ctx, n_cells + _SPARE * n_slots)
        self._prepare()

    def decode(self, items: Sequence[BatchItem]) -> list[Outputs]:
        """Append tokens to their slots; return views valid until the next call."""
        check_slots(items, self.models)
        if self._context != self._first.native.context:  # hidden states needed another one
            self._prepare()
        for item in items:
            self.models[item.slot].make_room(len(item.tokens))
        code = self._evaluate(items)
        if code == 1 and self.n_parked:
            for model in self.models:
                model.make_room(model.n_ctx)
            code = self._evaluate(items)
        if code:
            self._raise(code, items)
        for item in items:
            self.models[item.slot].appended(len(item.tokens), len(item.parents))
        return self._outputs(items)

    def copy(self, source: int, target: int, n_past: int) -> None:
        """Let the empty slot `target` begin with the first `n_past` tokens of the slot `source`.
        Raises CannotTruncate.
        """
        with self._first.lock:
            self._copy(self.models[source], self.models[target], n_past)

    @staticmethod
    def _copy(model: LlamaCppModel, other: LlamaCppModel, n_past: int) -> None:
        if model.branches.n_parked and model.branches.n_whole < model.position(n_past):
            model.make_room(model.n_ctx)  # after copying, packing would free less
        if not model.sees(n_past):
            raise CannotTruncate(f"a slot has lost what its first {n_past} tokens begin with")
        memory, end = lib.llama_get_memory(model.native.context), model.position(n_past)
        lib.llama_memory_seq_cp(memory, model.branches.text, other.branches.text, 0, end)
        other.appended(n_past, 0)
        other.shown = [each for each in model.shown if each.end <= n_past]

    def limit_threads(self, n_threads: int) -> None:
        """Use at most `n_threads` threads from the next evaluation on; 0 removes the limit."""
        self._first.limit_threads(n_threads)

    def close(self) -> None:
        """Free the slots that were added, unless the first one's model was closed before."""
        if self.n_slots > 1 and self._first.is_open:
            self._first.narrow()
            self._prepare()

    def _evaluate(self, items: Sequence[BatchItem]) -> int:
        """Evaluate the items and return llama_decode's code; if it is not 0, nothing was
        appended.
        """
        code: int = -1
        try:
            parts, whole = [self._part(item) for item in items], self._first.gives_all_rows
            if whole:
                parts = [part._replace(n_logits=len(part.tokens)) for part in parts]
            batch = self._batch.fill_parts(parts)
            code = self._first.evaluate_native(batch, sum(len(part.tokens) for part in parts))
        finally:
            if code:  # the engine itself cleans at most one sequence of each token
                for item in items:
                    self.models[item.slot].drop_unfinished()
        return code

    def _part(self, item: BatchItem) -> Part:
        model, n = self.models[item.slot], len(item.tokens)
        branches, n_past = model.branches, model.position(model.n_past)
        if item.parents:
            n_before = n - len(item.parents) - 1
            sequences, positions = branches.enter(item.parents, n_past, n_before)
            return Part(item.tokens, positions, sequences, item.n_logits)
        text = range(branches.text, branches.text + 1)
        return Part(item.tokens, range(n_past, n_past + n), [text] * n, item.n_logits)

    def _outputs(self, items: Sequence[BatchItem]) -> list[Outputs]:
        """Return the rows that each item wants, and the hidden states of its tokens."""
        sizes, counts = [len(item.tokens) for item in items], [item.n_logits for item in items]
        whole, states = self._first.gives_all_rows, self._first.joint_states
        given = sizes if whole else counts
        rows = self._rows.first(sum(given)).logits
        parts = np.split(rows, np.cumsum(given)[:-1])
        rows_of = [
            part[len(part) - n :] if whole else part for part, n in zip(parts, counts, strict=True)
        ]
        if states is None:
            return [Outputs(part) for part in rows_of]
        hidden = np.split(states, np.cumsum(sizes)[:-1])
        return [Outputs(part, its) for part, its in zip(rows_of, hidden, strict=True)]

    def _raise(self, code: int, items: Sequence[BatchItem]) -> None:
        n_tokens = sum(len(item.tokens) for item in items)
        if code == 1:
            raise ContextFull(
                f"no room in the cache for {n_tokens} tokens more of {len(items)} slots"
            )
        raise DecodeError(f"{self._first.path.name}: llama_decode failed with code {code}")


def _sequences_each(n_free: int, n_slots: int) -> int:
    """Return the number of sequences for each slot: one per leaf, and two more. If there are too
    few sequences for two leaves, each slot gets only one; 0 if there is not even one.
    """
    each = min(n_free // n_slots, N_SEQUENCES)
    return each if each > 3 else min(each, 1)
