"""Trees in the cache of one llama.cpp context: every leaf of a tree has a sequence of its own.

A token sees the cells of its own sequences that lie at earlier positions. So every node has the
sequence ids of all leaves below it, and no mask is needed. The sequence of the first leaf is the
text. The text's tokens also belong to the other sequences, which takes no memory with a unified
cache.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DecodeError
from ...sampling.trees import depths_of
from .library import lib

MAX_LEAVES = 15
N_SEQUENCES = MAX_LEAVES + 2  # one more for rejected nodes, one for packing
_MOST_PARKED = 128  # cells: they slow attention at every step, but packing takes some ms


class Branches:
    """The sequences into which one text may branch. Several such texts may share a context.

    ids: the ids of the sequences. The first is the text, and the last two are never leaves. With
    fewer than four ids, a text cannot branch. window: the length of the model's sliding window in
    tokens, 0 if it has none.

    Rejected nodes that lie before accepted ones are not freed but parked: they move to a sequence
    that no token sees. Otherwise later tokens would fill their cells. Attention would then add up
    in a different order than in plain decoding, and the logits would differ by rounding. n_parked:
    the number of parked nodes. n_whole: the number of the text's tokens that lie before all parked
    nodes. reach: the position that no sequence except the text's goes beyond; 0 if there has been
    no tree.
    """

    def __init__(self, context: Any, ids: range, window: int = 0) -> None:
        self._context = context
        self._memory = lib.llama_get_memory(context)
        self._ids, self._window = ids, window
        self._leaves = ids[:-2] or ids[:1]
        self._synced = dict.fromkeys(self._leaves[1:], 0)  # number of the text's tokens in each
        self.text, self.max_leaves = ids[0], len(self._leaves)
        self.n_parked = self.n_whole = self.reach = 0
        self._start = 0  # where the last tree begins: the position of its root
        self._spans: list[range] = []  # for its root and nodes, the sequences of the leaves below
        self._grown: list[tuple[int, int]] = []  # (sequence, position) of a grown tree's nodes

    def enter(
        self, parents: Sequence[int], n_past: int, n_before: int = 0
    ) -> tuple[list[range], list[int]]:
        """Return the sequences and the positions of new tokens: first `n_before` tokens of the text
        from position `n_past` on, then a tree's root, then the tree's nodes.

        parents: the parents of the nodes, in depth-first order. Raises ValueError for more than
        `max_leaves` leaves.
        """
        below = leaf_spans(parents)
        n_leaves = len(below[0])
        if n_leaves > self.max_leaves:
            raise ValueError(f"a tree of {n_leaves} leaves; at most {self.max_leaves} are possible")
        for sequence in self._leaves[1:n_leaves]:
            self._sync(sequence, n_past)
            self._synced[sequence] = n_past + n_before
        root = self._start = n_past + n_before
        self.reach = root + 1 + len(parents)
        spans = self._spans = [self._leaves[span.start : span.stop] for span in below]
        positions = [*range(n_past, root + 1), *(root + depth for depth in depths_of(parents))]
        return [spans[0]] * n_before + spans, positions

    def _sync(self, sequence: int, n_past: int) -> None:
        """Make a sequence hold the text up to `n_past`."""
        if self._window and self._begins(sequence) != self._begins(self.text):
            # cells that left the window are reused, those of the text earlier than a leaf's
            lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
            self._synced[sequence] = 0
        known = self._synced[sequence]
        if known == n_past:
            return
        try:
            lib.llama_memory_seq_cp(self._memory, self.text, sequence, known, n_past)
            self._synced[sequence] = n_past
        except BaseException:  # Ctrl-C after the native call
            self._cut(sequence, known)
            raise

    def _begins(self, sequence: int) -> int:
        """Return the first position that a sequence holds, -1 if it is empty."""
        return lib.llama_memory_seq_pos_min(self._memory, sequence)  # type: ignore[no-any-return]

    def grow(self, parents: Sequence[int], n_past: int) -> tuple[list[range], list[int]]:
        """Return the sequences and the positions of further nodes, as `enter` does.

        n_past: the position after the tree's root. A node continues the sequence of its parent. If
        another node continues that sequence already, the new node takes a new sequence, which gets
        the cells of the node's path.
        """
        line = [(self.text, n_past - 1), *self._grown]  # the root comes first
        ends = dict(line)
        for parent in parents:
            sequence, position = line[parent + 1]
            if ends[sequence] > position:
                sequence = self.text + len(ends)
            ends[sequence] = position + 1
            line.append((sequence, position + 1))
        if len(ends) > self.max_leaves:
            raise ValueError(
                f"a tree of {len(ends)} leaves; at most {self.max_leaves} are possible"
            )
        known = {self.text, *dict(self._grown)}
        new = line[len(self._grown) + 1 :]
        for parent, (sequence, position) in zip(parents, new, strict=True):
            if sequence not in known:
                known.add(sequence)
                self._sync(sequence, n_past)
                source, _ = line[parent + 1]
                lib.llama_memory_seq_cp(self._memory, source, sequence, n_past, position)
        self._start, self._grown = n_past, line[1:]
        self.reach = n_past + len(self._grown)
        return [range(s, s + 1) for s, _ in new], [position for _, position in new]

    def _keep_grown(self, path: Sequence[int]) -> None:
        """Make a path of a grown tree the end of the text. Nothing is parked: grown trees are those
        of draft models, and rounding in a draft model's rows changes no text.
        """
        start, memory, text = self._start, self._memory, self.text
        mine, end = self._grown[path[-1]][0] if path else text, start + len(path)
        if mine != text:
            lib.llama_memory_seq_rm(memory, text, start, -1)
            lib.llama_memory_seq_cp(memory, mine, text, start, end)
        for sequence in {text, *dict(self._grown)}:
            kept = end if sequence in (text, mine) else start
            lib.llama_memory_seq_rm(memory, sequence, kept, -1)
            if sequence != text:
                self._synced[sequence] = kept
        self._grown, self.reach = [], end

    def keep(self, path: Sequence[int]) -> None:
        """Make the root and the path the end of the text; remove all other nodes from the text."""
        if self._grown:
            self._keep_grown(path)
            return
        spans = [self._spans[node + 1] for node in (-1, *path)]
        start, end, mine = self._start, self._start + len(spans), spans[-1]
        if n_more := path[-1] + 1 - len(path) if path else 0:
            self.n_whole = min(self.n_whole, start + 1) if self.n_parked else start + 1
            self.n_parked += n_more  # counted first, as Ctrl-C may come between two native calls
        for common, (outer, inner) in enumerate(itertools.pairwise(spans), start + 1):
            for sequence in range(outer.start, inner.start):
                lib.llama_memory_seq_cp(self._memory, sequence, self._parked, common, -1)
                self._cut(sequence, start)
            for sequence in range(inner.stop, outer.stop):
                self._cut(sequence, start)
        for sequence in mine:
            self._cut(sequence, end)
        if self.text not in mine:
            lib.llama_memory_seq_cp(self._memory, mine.start, self.text, start, end)
        self._spans, self.reach = [], end

    def truncate(self, n_past: int) -> None:
        """Remove all tokens at positions from `n_past` on from every sequence except the text's."""
        for sequence, known in self._synced.items():
            if self._spans or self._grown or known > n_past:
                lib.llama_memory_seq_rm(self._memory, sequence, n_past, -1)
                self._synced[sequence] = min(known, n_past)
        self._spans, self._grown, self.reach = [], [], n_past
        if self.n_parked and n_past <= self.n_whole:
            lib.llama_memory_seq_rm(self._memory, self._parked, -1, -1)
            self.n_parked = 0

    def clear(self) -> None:
        """Empty all sequences."""
        for sequence in self._ids:
            lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        self._synced = dict.fromkeys(self._synced, 0)
        self._spans, self._grown = [], []
        self.n_parked = self.n_whole = self.reach = 0

    def _cut(self, sequence: int, end: int) -> None:
        """Remove what a sequence holds from `end` on."""
        lib.llama_memory_seq_rm(self._memory, sequence, end, -1)
        if sequence != self.text:
            self._synced[sequence] = end

    def is_full(self, n_free: int) -> bool:
        """Return True if parked cells should be freed now, because they slow attention or new
        tokens need their space.
        """
        return self.n_parked > min(_MOST_PARKED, n_free)

    def pack(self, n_past: int) -> None:
        """Free the parked cells: write the text's tokens from `n_whole` to `n_past` to the cache
        again, with the same bits. Other texts stay as they are.

        Raises DecodeError if the engine refuses its own copy of the cache. After any exception,
        also after Ctrl-C, the text is gone.
        """
        try:
            self._pack(n_past)
        except BaseException:
            self.clear()
            raise

    def _pack(self, n_past: int) -> None:
        memory = self._memory
        saved = [(part, self._saved(part)) for part in self._parts(self.n_whole, n_past)]
        for sequence in self._ids:
            lib.llama_memory_seq_rm(memory, sequence, self.n_whole, -1)
        self._synced = {leaf: min(n, self.n_whole) for leaf, n in self._synced.items()}
        self.n_parked, self.reach = 0, self.n_whole
        for part, state in saved:
            if not self._set(part, state):
                raise DecodeError("the engine's cache could not be packed; begin the request anew")

    @property
    def _parked(self) -> int:
        return self._ids[-2]

    def _parts(self, start: int, end: int) -> list[range]:
        """Return the positions from `start` to `end` in parts that are shorter than the sliding
        window. The engine saves only those cells of a sequence that the sequence's last token sees.
        """
        longest = self._window - 1 if self._window else max(1, end - start)
        return [range(at, min(at + longest, end)) for at in range(start, end, longest)]

    def save(self, start: int, end: int) -> memoryview:
        """Return the engine's copy of the text from position `start` to `end`. With a single
        sequence, only the complete text can be copied. Raises DecodeError.
        """
        if len(self._ids) == 1:
            return memoryview(self._copied(self.text)).cast("B")
        if self._window and self._begins(self.text) > start:
            raise DecodeError("the text's first tokens have left the cache")
        saved = [self._saved(part) for part in self._parts(start, end)]
        if len(saved) == 1:
            return memoryview(saved[0]).cast("B")
        sizes = np.array([len(state) for state in saved], np.int64)
        return memoryview(b"".join([sizes.tobytes(), *saved]))

    def load(self, state: npt.NDArray[np.uint8], start: int, end: int) -> None:
        """Append a copy that `save` made. The text must end at `start`. After an error the text is
        gone. Raises DecodeError if the engine refuses the copy.
        """
        try:
            self._load(state, start, end)
        except BaseException:
            self.clear()
            raise

    def _load(self, state: npt.NDArray[np.uint8], start: int, end: int) -> None:
        refused = DecodeError("the engine refuses a saved state of its cache")
        if len(self._ids) == 1:
            address, size = state.ctypes.data, len(state)
            if not lib.llama_state_seq_set_data_ext(self._context, address, size, self.text, 0):
                raise refused
            return
        parts = self._parts(start, end)
        sizes = state[: 8 * len(parts)].view(np.int64).tolist() if len(parts) > 1 else [len(state)]
        at = 8 * len(parts) if len(parts) > 1 else 0
        if at + sum(sizes) != len(state) or len(sizes) != len(parts):
            raise refused
        for part, size in zip(parts, sizes, strict=True):
            if not self._set(part, state[at : at + size]):
                raise refused
            at += size

    def _set(self, part: range, state: Any) -> bool:
        """Append the engine's copy of some positions to the text; return False if it is refused."""
        scratch = self._ids[-1]
        address = state.ctypes.data if isinstance(state, np.ndarray) else state
        if not lib.llama_state_seq_set_data_ext(self._context, address, len(state), scratch, 0):
            return False
        lib.llama_memory_seq_cp(self._memory, scratch, self.text, part.start, part.stop)
        lib.llama_memory_seq_rm(self._memory, scratch, -1, -1)
        return True

    def _saved(self, part: range) -> Any:
        """Return the engine's copy of some positions of the text."""
        scratch = self._ids[-1]
        lib.llama_memory_seq_cp(self._memory, self.text, scratch, part.start, part.stop)
        try:
            return self._copied(scratch)
        finally:
            lib.llama_memory_seq_rm(self._memory, scratch, -1, -1)

    def _copied(self, sequence: int) -> Any:
        """Return the engine's copy of a sequence."""
        size = lib.llama_state_seq_get_size_ext(self._context, sequence, 0)
        state = (ctypes.c_uint8 * size)()
        if lib.llama_state_seq_get_data_ext(self._context, state, size, sequence, 0) != size:
            raise DecodeError("the engine gives no copy of its cache; begin the request anew")
        return state


def leaf_spans(parents: Sequence[int]) -> list[range]:
    """Return, for the root and each node, the numbers of the leaves below it; for a leaf, its own
    leaf number.

    parents: in depth-first order, the children of a node ascending.
    """
    starts, n_leaves = [0], 0  # the root comes first
    for node, parent in enumerate(parents):
        if parent != node - 1:
            n_leaves += 1  # the previous node has no children
        starts.append(n_leaves)
    stops = [0] * len(starts)
    for node in range(len(parents), 0, -1):
        stops[node] = stops[node] or starts[node] + 1
        above = parents[node - 1] + 1
        stops[above] = stops[above] or stops[node]
    stops[0] = stops[0] or 1
    return list(map(range, starts, stops))
