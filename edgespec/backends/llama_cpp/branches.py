"""Trees in llama.cpp's cache: a sequence of its own for every leaf, over the cells of one context.

A token sees the cells of its own sequences that lie at earlier positions. So every node carries
the ids of all leaves below it, and no mask is needed. Sequence 0 is the text; its tokens belong
to the others as well (with a unified cache that takes no memory).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ...errors import DecodeError
from ...sampling.trees import depths_of
from .library import lib

MAX_LEAVES = 15
N_SEQUENCES = MAX_LEAVES + 1  # and one for what was rejected
_PARKED = MAX_LEAVES
_MOST_PARKED = 128  # cells: attention passes over them at every step, packing takes some ms


class Branches:
    """The sequences of one context.

    Rejected nodes that lie before accepted ones are not freed but moved to a sequence that nobody
    asks for: later tokens would fill their cells, attention would add up in another order than in
    plain decoding, and the logits would differ by rounding. `n_parked` counts them. reach: where
    the longest sequence but the text's ends at most; 0 if there has been no tree.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._memory = lib.llama_get_memory(context)
        self._synced = [0] * MAX_LEAVES  # so many tokens of the text each sequence holds
        self.n_parked = self.reach = 0
        self._n_past = 0  # where the last tree begins: the position of its root
        self._spans: list[range] = []  # of its root and nodes: the leaves below each
        self._grown: list[tuple[int, int]] = []  # of the nodes of a grown tree: sequence, position

    def enter(self, parents: Sequence[int], n_past: int) -> tuple[list[range], list[int]]:
        """Return the sequences and the positions of the root, at `n_past`, and of all nodes.

        parents: in depth-first order. Raises ValueError for more than MAX_LEAVES leaves.
        """
        spans = leaf_spans(parents)
        n_leaves = len(spans[0])
        if n_leaves > MAX_LEAVES:
            raise ValueError(f"a tree of {n_leaves} leaves; at most {MAX_LEAVES} are possible")
        for sequence in range(1, n_leaves):
            self._sync(sequence, n_past)
        self._n_past, self._spans = n_past, spans
        self.reach = n_past + 1 + len(parents)
        return spans, [n_past, *(n_past + depth for depth in depths_of(parents))]

    def _sync(self, sequence: int, n_past: int) -> None:
        """Let a sequence hold the text up to `n_past`."""
        known = self._synced[sequence]
        if known < n_past:
            lib.llama_memory_seq_cp(self._memory, 0, sequence, known, n_past)
            self._synced[sequence] = n_past

    def grow(self, parents: Sequence[int], n_past: int) -> tuple[list[range], list[int]]:
        """Return the sequences and the positions of further nodes, as `enter` does.

        n_past: where a tree begins, behind its root. A node continues the sequence of its parent;
        behind one that is continued already it takes a new one, with the cells of its path.
        """
        line = [(0, n_past - 1), *self._grown]  # the root comes first
        ends = dict(line)
        for parent in parents:
            sequence, position = line[parent + 1]
            if ends[sequence] > position:
                sequence = len(ends)
            ends[sequence] = position + 1
            line.append((sequence, position + 1))
        if len(ends) > MAX_LEAVES:
            raise ValueError(f"a tree of {len(ends)} leaves; at most {MAX_LEAVES} are possible")
        known = {0, *dict(self._grown)}
        new = line[len(self._grown) + 1 :]
        for parent, (sequence, position) in zip(parents, new, strict=True):
            if sequence not in known:
                known.add(sequence)
                self._sync(sequence, n_past)
                source, _ = line[parent + 1]
                lib.llama_memory_seq_cp(self._memory, source, sequence, n_past, position)
        self._n_past, self._grown = n_past, line[1:]
        self.reach = n_past + len(self._grown)
        return [range(s, s + 1) for s, _ in new], [position for _, position in new]

    def _keep_grown(self, path: Sequence[int]) -> None:
        """Make a path of a grown tree the end of the text. Nothing is parked: what a draft model's
        rows differ by in rounding changes no text.
        """
        start, memory = self._n_past, self._memory
        mine, end = self._grown[path[-1]][0] if path else 0, start + len(path)
        if mine:
            lib.llama_memory_seq_rm(memory, 0, start, -1)
            lib.llama_memory_seq_cp(memory, mine, 0, start, end)
        for sequence in {0, *dict(self._grown)}:
            kept = end if sequence in (0, mine) else start
            lib.llama_memory_seq_rm(memory, sequence, kept, -1)
            self._synced[sequence] = kept
        self._grown, self.reach = [], end

    def keep(self, path: Sequence[int]) -> None:
        """Make root and path the end of the text; all other nodes leave it."""
        if self._grown:
            self._keep_grown(path)
            return
        remove, copy, memory = lib.llama_memory_seq_rm, lib.llama_memory_seq_cp, self._memory
        start, end = self._n_past, self._n_past + 1 + len(path)
        last = path[-1] if path else -1
        mine = self._spans[last + 1]
        for sequence in self._spans[0]:
            if sequence in mine:
                remove(memory, sequence, end, -1)
                self._synced[sequence] = end
                continue
            if sequence < mine.start:
                common = sum(sequence in self._spans[node + 1] for node in (-1, *path))
                copy(memory, sequence, _PARKED, start + common, -1)
            remove(memory, sequence, start, -1)
            self._synced[sequence] = start
        if mine.start:
            copy(memory, mine.start, 0, start, end)
        self.n_parked += last + 1 - len(path)
        self._spans, self.reach = [], end

    def truncate(self, n_past: int) -> None:
        """Let no sequence but the text's hold anything from `n_past` on."""
        for sequence in range(1, MAX_LEAVES):
            if self._spans or self._grown or self._synced[sequence] > n_past:
                lib.llama_memory_seq_rm(self._memory, sequence, n_past, -1)
                self._synced[sequence] = min(self._synced[sequence], n_past)
        self._spans, self._grown, self.reach = [], [], n_past
        if self.n_parked and not n_past:
            lib.llama_memory_seq_rm(self._memory, _PARKED, -1, -1)
            self.n_parked = 0

    def is_full(self, n_free: int) -> bool:
        """Return True if parked cells should be freed: they slow attention, or are in the way."""
        return self.n_parked > min(_MOST_PARKED, n_free)

    def pack(self) -> None:
        """Free what is parked: the text is written anew into an empty cache, to the last bit.

        Raises DecodeError if the engine gives no copy of its cache, or does not take it back.
        """
        size = lib.llama_state_seq_get_size_ext(self._context, 0, 0)
        state = (ctypes.c_uint8 * size)()
        got = lib.llama_state_seq_get_data_ext(self._context, state, size, 0, 0)
        lib.llama_memory_clear(self._memory, False)
        self._synced, self.n_parked, self.reach = [0] * MAX_LEAVES, 0, 0
        if got != size or not lib.llama_state_seq_set_data_ext(self._context, state, size, 0, 0):
            raise DecodeError("the engine's cache could not be packed; begin the request anew")


def leaf_spans(parents: Sequence[int]) -> list[range]:
    """Return for the root and each node the numbers of the leaves below it, or its own number.

    parents: in depth-first order, the children of a node ascending.
    """
    starts, n_leaves = [0], 0  # the root comes first
    for node, parent in enumerate(parents):
        if parent != node - 1:
            n_leaves += 1  # the node before has no children
        starts.append(n_leaves)
    stops = [0] * len(starts)
    for node in range(len(parents), 0, -1):
        stops[node] = stops[node] or starts[node] + 1
        above = parents[node - 1] + 1
        stops[above] = stops[above] or stops[node]
    stops[0] = stops[0] or 1
    return list(map(range, starts, stops))
