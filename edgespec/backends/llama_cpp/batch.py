"""Input and output of a native evaluation, as views of native memory."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...types import Outputs
from ..base import BatchItem
from .library import lib


class Batch:
    """A native batch of at most `size` tokens, filled through NumPy views.

    n_sequences: most sequences that a token of a tree belongs to.
    """

    def __init__(self, size: int, n_sequences: int = 1) -> None:
        self._batch = lib.llama_batch_init(size, 0, n_sequences)
        self._free = weakref.finalize(self, lib.llama_batch_free, self._batch)
        self._token = np.ctypeslib.as_array(self._batch.token, (size,))
        self._pos = np.ctypeslib.as_array(self._batch.pos, (size,))
        self._logits = np.ctypeslib.as_array(self._batch.logits, (size,))
        self._tokens = self._token.data.cast("B").cast("i")
        self._positions = self._pos.data.cast("B").cast("i")
        self._flags = self._logits.data.cast("B").cast("b")
        self._counting = np.arange(size, dtype=np.int32)
        self._counts = np.ctypeslib.as_array(self._batch.n_seq_id, (size,))
        self._counts[:] = 1
        for i in range(size):
            self._batch.seq_id[i][0] = 0

    def fill(self, tokens: Sequence[int], n_past: int, n_logits: int) -> Any:
        """Return the native batch with `tokens` of sequence 0 from position `n_past` on; logits
        are wanted of the last `n_logits`.
        """
        n = self._batch.n_tokens = len(tokens)
        if n <= 8:  # every step: a few plain stores are cheaper than array arithmetic
            for i, token in enumerate(tokens):
                self._tokens[i], self._positions[i] = token, n_past + i
                self._flags[i] = i >= n - n_logits
            return self._batch
        self._token[:n] = tokens
        self._pos[:n] = self._counting[:n] + n_past
        self._logits[:n] = 0
        self._logits[n - n_logits : n] = 1
        return self._batch

    def fill_tree(
        self, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[range]
    ) -> Any:
        """Return the native batch with the tokens of a tree, each in all of its sequences; logits
        are wanted of all. `clear_tree` must follow the evaluation.
        """
        n = self._batch.n_tokens = len(tokens)
        self._token[:n], self._pos[:n], self._logits[:n] = tokens, positions, 1
        self._counts[:n] = [len(ids) for ids in sequences]
        ids_of = self._batch.seq_id
        for i, ids in enumerate(sequences):
            for j, sequence in enumerate(ids):
                ids_of[i][j] = sequence
        return self._batch

    def clear_tree(self) -> None:
        """Let each token belong to sequence 0 again."""
        n = self._batch.n_tokens
        self._counts[:n] = 1
        for i in range(n):
            self._batch.seq_id[i][0] = 0

    def fill_items(self, items: Sequence[BatchItem], n_past: Sequence[int]) -> Any:
        """Return the native batch with the tokens of several slots, each from where its slot ends:
        `n_past` by slot.
        """
        start = 0
        for item in items:
            n = len(item.tokens)
            end, counting = start + n, self._counting[:n]
            self._token[start:end] = item.tokens
            self._pos[start:end] = counting + n_past[item.slot]
            self._logits[start:end] = counting >= n - item.n_logits
            for i in range(start, end):
                self._batch.seq_id[i][0] = item.slot
            start = end
        self._batch.n_tokens = start
        return self._batch


class RowViews:
    """A context's output buffer, [at most `most`, vocab_size]; made once, read at every step."""

    def __init__(self, context: Any, vocab_size: int, most: int) -> None:
        self._context, self._shape = context, (most, vocab_size)
        self._none = Outputs(np.empty((0, vocab_size), np.float32))
        self._address = 0
        self._views: list[Outputs] = []  # of 0, 1, 2, … rows

    def first(self, n: int) -> Outputs:
        """Return the first `n` rows of the last evaluation, valid until the next one. New views are
        made only where the engine has moved its buffer.
        """
        if not n:
            return self._none
        address = lib.llama_get_logits(self._context)
        if address != self._address:
            most, vocab_size = self._shape
            buffer = (ctypes.c_float * (most * vocab_size)).from_address(address)
            rows = np.ctypeslib.as_array(buffer).reshape(most, vocab_size)
            self._views = [Outputs(rows[:i]) for i in range(most + 1)]
            self._address = address
        return self._views[n]
