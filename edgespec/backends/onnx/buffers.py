"""Arrays that a graph's inputs and outputs are bound to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...types import Rows
from ..features import States
from .cache import Cache, GrownCache
from .embedding import EMBEDS, Embedding, Tokens
from .graph import KEEP, Graph
from .taps import Taps
from .top_rows import TopRows

MAX_ROWS = 32  # logits rows per call, for a draft of 31 tokens


class Buffers:
    """Arrays for the inputs and outputs of calls. They are allocated once, and inputs are written
    before every call.

    chunk: the most tokens per call. n_ctx: the most tokens of the cache. native: the binding of the
    session. n_rows: the most logits rows that a call can return. embed: returns the embeddings of
    tokens, for a graph that reads them in place of ids.
    """

    def __init__(
        self, session: Any, graph: Graph, chunk: int, n_ctx: int, embed: Embedding | None
    ) -> None:
        length = n_ctx + 2
        self._session, self._graph, self._embed = session, graph, embed
        self._keeps = KEEP in graph.inputs
        self._reads = EMBEDS if embed else "input_ids"
        size = (embed.width,) if embed else ()
        self._tokens = np.zeros((1, chunk + 1, *size), graph.inputs[self._reads])
        self._mask = np.ones((1, length), graph.inputs.get("attention_mask", np.int64))
        self._positions = np.arange(length, dtype=graph.inputs.get("position_ids", np.int64))[None]
        self._n_kept = np.ones(graph.keep_shape, graph.inputs.get(KEEP, np.int64))
        self.n_rows = MAX_ROWS + 1 if self._keeps else chunk + 1
        self._logits = np.empty((self.n_rows, graph.vocab_size), graph.logits_dtype)
        self._taps = Taps(graph, chunk + 1)
        self._square: npt.NDArray[Any] | None = None  # bound by address: it must outlive the call
        self._depths: npt.NDArray[Any] | None = None
        defaults = {graph.mask: np.zeros((1, 1, 1, 1)), "position_ids": np.array([[-1]])}
        self._defaults = {
            name: value.astype(graph.inputs[name])
            for name, value in defaults.items()
            if name in graph.optional
        }
        self._top: TopRows | None = None
        self._n_top = 0
        self.renew()

    def renew(self) -> None:
        """Make the next call bind everything anew, which a change of the cache requires."""
        self.native: Any = self._session.io_binding()
        self._bound = 0, 0  # the numbers of tokens and rows that are bound

    def fetch_top(self, top: TopRows | None, n_top: int) -> None:
        """Let later calls write their logits to `top`, and fetch only the `n_top` largest of each
        row from there. If `top` is None, complete rows are fetched.
        """
        if top is not self._top:
            self._bound = 0, 0
        self._top, self._n_top = top, n_top

    def tap(self, layers: Sequence[int]) -> None:
        """Make later calls return the hidden states of these layers. The graph has to have outputs
        for them.
        """
        self._taps.want(layers)
        self.renew()

    def bind(self, tokens: Tokens, width: int, n_past: int, n_wanted: int, cache: Cache) -> int:
        """Bind inputs and outputs for a call of `width` tokens: `tokens`, and then the last of them
        repeated. Return the number of logits rows that the call will return.
        """
        n, total, graph = len(tokens), n_past + width, self._graph
        self._tokens[0, :n] = self._embed(tokens) if self._embed else tokens
        self._tokens[0, n:width] = self._tokens[0, n - 1]
        n_rows = max(1, n_wanted) if self._keeps else width
        if graph.mask and graph.mask not in graph.optional:
            self._square = self._causal(width, n_past)
            self._bind_input(graph.mask, self._square)
        if "attention_mask" in graph.inputs and graph.mask != "attention_mask":
            self._bind_input("attention_mask", self._mask[:, :total])
        if "position_ids" in graph.inputs and "position_ids" not in graph.optional:
            self._bind_input("position_ids", self._positions[:, n_past:total])
        if self._bound != (width, n_rows) or isinstance(cache, GrownCache):
            self._bind_shapes(width, n_rows, cache)
        return n_rows

    def branch(self, after: Sequence[int], n_past: int) -> None:
        """Turn the tokens that `bind` has bound into a tree: each token sees only the past and its
        own path, and its depth gives its position.

        after: for each token, the index of the token before it on its path; -1 is the last token of
        the past.
        """
        n, graph = len(after), self._graph
        sees = np.eye(n, dtype=bool)
        for i, parent in enumerate(after):
            if parent >= 0:
                sees[i] |= sees[parent]
        mask = np.zeros((1, 1, n, n_past + n), graph.inputs[graph.mask])
        mask[0, 0, :, n_past:] = np.where(sees, 0, np.finfo(mask.dtype).min)
        depths = sees.sum(axis=1) - 1
        self._square = mask
        self._depths = (n_past + depths).astype(graph.inputs["position_ids"])[None]
        self._bind_input(graph.mask, self._square)
        self._bind_input("position_ids", self._depths)
        self._bound = 0, 0  # so that the next chain binds its own mask and positions

    def rows(self, n_logits: int, end: int, n_rows: int) -> Rows:
        """Return the `n_logits` rows that end before row `end`, out of the `n_rows` rows of the
        last call.
        """
        if self._top and n_logits and n_rows <= self._top.n_rows:
            return self._top.rows(end, self._n_top)[end - n_logits :]
        rows = self._logits[end - n_logits : end]
        return rows if rows.dtype == np.float32 else rows.astype(np.float32)

    def hidden(self, start: int, end: int) -> States | None:
        """Return the hidden states of these tokens of the last call, None if no layers are
        wanted.
        """
        return self._taps.states(start, end)

    def _bind_shapes(self, width: int, n_rows: int, cache: Cache) -> None:
        """Bind the arrays that stay bound until a call has a different shape."""
        graph, binding = self._graph, self.native
        cache.bind(binding)
        self._bind_input(self._reads, self._tokens[:, :width])
        for name, default in self._defaults.items():
            self._bind_input(name, default)
        if self._keeps:
            self._n_kept[...] = n_rows
            self._bind_input(KEEP, self._n_kept)
        if self._top and n_rows <= self._top.n_rows:
            self._top.bind(binding, n_rows)
        else:
            shape, address = (1, n_rows, graph.vocab_size), self._logits.ctypes.data
            binding.bind_output("logits", "cpu", 0, graph.logits_dtype, shape, address)
        self._taps.bind(binding, width)
        self._bound = width, n_rows

    def _bind_input(self, name: str, array: npt.NDArray[Any]) -> None:
        self.native.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def _causal(self, width: int, n_past: int) -> npt.NDArray[Any]:
        """Return a mask to add to attention scores: every token sees itself and the tokens before
        it.
        """
        dtype, total = self._graph.inputs[self._graph.mask], n_past + width
        mask: npt.NDArray[Any] = np.zeros((1, 1, width, total), dtype)
        lowest = np.full((width, width), np.finfo(dtype).min, dtype)
        mask[0, 0, :, n_past:] = np.triu(lowest, 1)
        return mask
