"""Two ways to keep the keys and values of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ...errors import OutOfMemory
from .graph import Graph
from .session import ort


class Cache(Protocol):
    """Keys and values of the tokens so far, bound to a graph's past and present."""

    def bind(self, binding: Any) -> None:
        """Bind past and present for the next call."""

    def keep(self, binding: Any) -> None:
        """Keep the buffers that the last call returned."""

    def truncate(self, n_past: int) -> None:
        """Forget everything from `n_past` on."""

    def rows(self, start: int, end: int) -> list[npt.NDArray[Any]]:
        """Return each buffer's rows for the tokens from `start` to `end`, [heads, n, size]: for
        each layer the keys, then the values. They are views if the buffers lie in main memory.
        """

    def append(self, rows: Sequence[npt.NDArray[Any]], n_past: int) -> None:
        """Write what `rows` returned for some tokens after the first `n_past` tokens; drop all
        later tokens.
        """

    def gather(self, n_past: int, positions: Sequence[int]) -> int:
        """Move the tokens at ascending `positions` to the places right after the first `n_past`
        tokens; drop all other later tokens. Return how many of the moved tokens are in place; the
        rest must be evaluated again.
        """


class SharedCache:
    """Buffers that serve both as past and as present. The graph appends to them in place, so going
    back only changes the number of tokens.
    """

    def __init__(self, graph: Graph, device: str, size: int) -> None:
        shape = (1, graph.heads, size, graph.head_size)
        self._names = list(zip(graph.past, graph.present, strict=True))
        self._device = device
        self._bound: Any = None
        try:
            self._values = [
                ort.OrtValue.ortvalue_from_shape_and_type(shape, graph.dtype, device, 0)
                for _ in self._names
            ]
        except Exception as error:
            raise OutOfMemory(
                f"no cache of {size} tokens could be made: {error}; take a smaller n_ctx"
            ) from error

    def bind(self, binding: Any) -> None:
        """Bind the buffers, once; they stay where they are."""
        if self._bound is binding:
            return
        for (past, present), value in zip(self._names, self._values, strict=True):
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(present, value)
        self._bound = binding

    def keep(self, binding: Any) -> None:
        """Do nothing: the graph has written in place."""

    def truncate(self, n_past: int) -> None:
        """Do nothing: the next call overwrites everything after its past."""

    def rows(self, start: int, end: int) -> list[npt.NDArray[Any]]:
        """Return each buffer's rows for the tokens from `start` to `end`."""
        return [value.numpy()[0, :, start:end] for value in self._values]

    def append(self, rows: Sequence[npt.NDArray[Any]], n_past: int) -> None:
        """Write these rows to the buffers, which must lie in main memory."""
        for value, new in zip(self._values, rows, strict=True):
            value.numpy()[0, :, n_past : n_past + new.shape[1]] = new

    def gather(self, n_past: int, positions: Sequence[int]) -> int:
        """Copy the rows of these tokens to their new places if the buffers lie in main memory. On
        other devices nothing is copied, and only the tokens that were already in place are counted.
        """
        end = n_past + len(positions)
        pairs = enumerate(positions, n_past)
        n_in_place = next((i - n_past for i, at in pairs if i != at), len(positions))
        if n_in_place == len(positions) or self._device != "cpu":
            return n_in_place
        for value in self._values:
            rows = value.numpy()  # a view
            rows[:, :, n_past:end] = rows[:, :, positions]
        return len(positions)


class GrownCache:
    """The buffers that the graph returned last; every call returns new, longer ones."""

    def __init__(self, graph: Graph, device: str) -> None:
        self._graph, self._device = graph, device
        self._values: list[Any] = []
        self.truncate(0)

    def bind(self, binding: Any) -> None:
        """Bind the past, and let the library allocate the present."""
        binding.clear_binding_outputs()
        for name, value in zip(self._graph.past, self._values, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name in self._graph.present:
            binding.bind_output(name, self._device)

    def keep(self, binding: Any) -> None:
        """Keep the returned buffers."""
        self._values = binding.get_outputs()[: len(self._values)]  # bound first

    def truncate(self, n_past: int) -> None:
        """Replace every buffer by a copy of its first `n_past` tokens."""
        graph = self._graph
        if n_past:
            self._take([np.ascontiguousarray(v.numpy()[:, :, :n_past]) for v in self._values])
        else:
            empty: npt.NDArray[Any] = np.empty((1, graph.heads, 0, graph.head_size), graph.dtype)
            self._take([empty] * len(graph.past))

    def rows(self, start: int, end: int) -> list[npt.NDArray[Any]]:
        """Return each buffer's rows for the tokens from `start` to `end`."""
        return [value.numpy()[0, :, start:end] for value in self._values]

    def append(self, rows: Sequence[npt.NDArray[Any]], n_past: int) -> None:
        """Replace every buffer by its first `n_past` tokens and these rows."""
        pairs = zip(self._values, rows, strict=True)
        self._take([np.concatenate([v.numpy()[:, :, :n_past], new[None]], 2) for v, new in pairs])

    def gather(self, n_past: int, positions: Sequence[int]) -> int:
        """Replace every buffer by a copy of its first `n_past` tokens and the tokens at
        `positions`.
        """
        kept = [*range(n_past), *positions]
        self._take([v.numpy().take(kept, axis=2) for v in self._values])
        return len(positions)

    def _take(self, arrays: list[npt.NDArray[Any]]) -> None:
        self._values = [ort.OrtValue.ortvalue_from_numpy(v, self._device, 0) for v in arrays]


def keys_and_values(cache: Cache, start: int, end: int) -> npt.NDArray[np.float32]:
    """Return a copy of the keys and values of the tokens from `start` to `end`, [n, layers,
    numbers]. A row lists the attention heads one after the other, each with its keys before its
    values.
    """
    pairs = cache.rows(start, end)
    layers = [np.concatenate(pair, axis=-1) for pair in zip(pairs[::2], pairs[1::2], strict=True)]
    both = np.stack(layers)  # [layers, heads, n, numbers of a head]
    n_layers, n_heads, n, size = both.shape
    rows = both.transpose(2, 0, 1, 3).reshape(n, n_layers, n_heads * size)
    return np.ascontiguousarray(rows, np.float32)
