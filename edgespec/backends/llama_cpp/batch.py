"""The input and output of a native evaluation, as views of native memory."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...types import Outputs
from .library import lib

MOST_SEQUENCES = 256  # the most that llama.cpp keeps in one cache
_MOST_POSITIONS = 4  # per state without a token; some models need one per axis of an image


class Part(NamedTuple):
    """Consecutive tokens in a batch, each with its position and all of its sequences. Logits are
    wanted for the last `n_logits` of them.
    """

    tokens: Sequence[int]
    positions: Sequence[int]
    sequences: Sequence[range]
    n_logits: int


class Batch:
    """A native batch of at most `size` tokens, filled through NumPy views.

    `fill` takes tokens of the sequence with the id `sequence`. `fill_parts` takes tokens of any
    sequences: its native batch uses the same memory, but has tables of its own for the sequences of
    each token.
    """

    def __init__(self, size: int, sequence: int = 0) -> None:
        self._batch = lib.llama_batch_init(size, 0, 1)
        self._free = weakref.finalize(self, lib.llama_batch_free, self._batch)
        self._token = np.ctypeslib.as_array(self._batch.token, (size,))
        self._pos = np.ctypeslib.as_array(self._batch.pos, (size,))
        self._logits = np.ctypeslib.as_array(self._batch.logits, (size,))
        self._tokens = self._token.data.cast("B").cast("i")
        self._positions = self._pos.data.cast("B").cast("i")
        self._flags = self._logits.data.cast("B").cast("b")
        self._counting = np.arange(size, dtype=np.int32)
        np.ctypeslib.as_array(self._batch.n_seq_id, (size,))[:] = 1
        for i in range(size):
            self._batch.seq_id[i][0] = sequence
        self._parts = type(self._batch).from_buffer_copy(self._batch)
        self._counts = np.ones(size, np.int32)  # how many sequences each token has
        self._firsts = np.zeros(size, np.uintp)  # the address of the first one in `_ids`
        self._ids = np.arange(MOST_SEQUENCES, dtype=np.int32)
        self._first_id: int = self._ids.ctypes.data
        for name, table in (("n_seq_id", self._counts), ("seq_id", self._firsts)):
            pointer = type(getattr(self._parts, name))
            setattr(self._parts, name, ctypes.cast(table.ctypes.data, pointer))

    def fill(self, tokens: Sequence[int], n_past: int, n_logits: int) -> Any:
        """Return the native batch with `tokens` from position `n_past` on; logits are wanted for
        the last `n_logits`.
        """
        n = self._batch.n_tokens = len(tokens)
        if n <= 8:  # as in every step: plain stores are cheaper than array arithmetic
            for i, token in enumerate(tokens):
                self._tokens[i], self._positions[i] = token, n_past + i
                self._flags[i] = i >= n - n_logits
            return self._batch
        self._token[:n] = tokens
        self._pos[:n] = self._counting[:n] + n_past
        self._logits[:n] = 0
        self._logits[n - n_logits : n] = 1
        return self._batch

    def fill_parts(self, parts: Sequence[Part]) -> Any:
        """Return a native batch with tokens of any sequences."""
        start, ids = 0, self._first_id
        for tokens, positions, sequences, n_logits in parts:
            end = start + len(tokens)
            self._token[start:end], self._pos[start:end] = tokens, positions
            self._logits[start:end] = 0
            self._logits[end - n_logits : end] = 1
            self._counts[start:end] = list(map(len, sequences))
            self._firsts[start:end] = [ids + 4 * span.start for span in sequences]
            start = end
        self._parts.n_tokens = start
        return self._parts


class StateBatch(Batch):
    """A batch whose tokens are evaluated together with hidden states.

    states: the hidden states of its tokens, float32 [size, width]; write them before the batch is
    filled.
    """

    def __init__(self, size: int, width: int) -> None:
        super().__init__(size)
        self.states = np.zeros((size, width), np.float32)
        kind = type(self._batch)
        self._both, self._alone = (kind.from_buffer_copy(self._batch) for _ in range(2))
        for batch in (self._both, self._alone, self._parts):  # copies: never freed natively
            batch.embd = ctypes.cast(self.states.ctypes.data, type(batch.embd))
        self._alone.token = type(self._alone.token)()
        self._rows_of_positions = np.zeros(_MOST_POSITIONS * size, np.int32)
        address = self._rows_of_positions.ctypes.data
        self._alone.pos = ctypes.cast(address, type(self._alone.pos))

    def fill(self, tokens: Sequence[int], n_past: int, n_logits: int) -> Any:
        """Return the native batch, as `Batch.fill` does."""
        self._both.n_tokens = super().fill(tokens, n_past, n_logits).n_tokens
        return self._both

    def fill_states(self, n: int, n_past: int, n_outputs: int) -> Any:
        """Return a native batch of `n` states without tokens; outputs are wanted for the last
        `n_outputs`.
        """
        self._alone.n_tokens = super().fill([0] * n, n_past, n_outputs).n_tokens
        self._rows_of_positions[: _MOST_POSITIONS * n] = np.tile(self._pos[:n], _MOST_POSITIONS)
        return self._alone


class RowViews:
    """Views of a context's output buffer, [at most `most`, vocab_size]; made once and used at every
    step.
    """

    def __init__(self, context: Any, vocab_size: int, most: int) -> None:
        self._context, self._shape = context, (most, vocab_size)
        self._none = Outputs(np.empty((0, vocab_size), np.float32))
        self._address = 0
        self._views: list[Outputs] = []  # of 0, 1, 2, … rows

    def first(self, n: int) -> Outputs:
        """Return the first `n` rows of the last evaluation, valid until the next one. New views are
        made only if the engine has moved its buffer.
        """
        if not n:
            lib.llama_synchronize(self._context)  # a GPU may still be at work
            return self._none
        address = lib.llama_get_logits(self._context)
        if address != self._address:
            most, vocab_size = self._shape
            buffer = (ctypes.c_float * (most * vocab_size)).from_address(address)
            rows = np.ctypeslib.as_array(buffer).reshape(most, vocab_size)
            self._views = [Outputs(rows[:i]) for i in range(most + 1)]
            self._address = address
        return self._views[n]
