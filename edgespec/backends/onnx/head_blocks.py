"""DFlash's two graphs: one turns the target's states into cached keys and values, and the other
guesses a block of tokens after them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...config import EngineConfig
from .buffers import MAX_ROWS
from .head_steps import (
    FUSE,
    HEAD,
    Floats,
    KeptRows,
    Nodes,
    Opened,
    Run,
    bind_input,
    bind_output,
    described,
    provider_of,
    size,
)


class Blocks:
    """A head that guesses a block of tokens in one evaluation (DFlash, arXiv 2602.06036).

    Its cache has keys and values made from the target's states before each token that was read. Of
    these tokens, the head itself sees only the last one: a block is that token with masked places
    after it. n_ctx: the most tokens of the cache. chunk: the most tokens per call.
    """

    n_states = 0

    def __init__(self, folder: Path, config: EngineConfig, opened: Opened, chunk: int) -> None:
        self._head = opened(folder / HEAD)
        self._fuse = opened(folder / FUSE)
        self.provider = provider_of(self._head)
        with described(self._head, folder / HEAD, config) as graph:
            inputs, mask = graph.inputs, int(graph.notes["edgespec.mask_token"])
            self.n_guesses, self.width = map(size, graph.outputs["logits"][1:])
            self._block = np.full((1, size(inputs.pop("input_ids")[1])), mask, np.int64)
            self.n_ctx = graph.n_ctx
            sizes = {
                name.removeprefix("past_key_values."): size(shape[-1])
                for name, shape in inputs.items()
            }
        self._cache = {name: KeptRows(self.n_ctx, n, self.provider) for name, n in sizes.items()}
        self._places = np.arange(self.n_ctx, dtype=np.int64)
        self._all = np.zeros((1, self.n_guesses, self.width), np.float32)
        self._rows = np.zeros((MAX_ROWS, self.width), np.float32)
        self._last = 0  # the token that was read last
        self._is_guessed = False  # `_all` has the rows after that token

    def read(
        self, tokens: Sequence[int], taps: Floats, n_past: int, n_rows: int, run: Run
    ) -> Floats:
        """Append the states before these tokens to the cache; return the rows of the last `n_rows`
        tokens.
        """
        self._is_guessed = False
        self._append(taps, n_past, run)
        end = n_past + len(tokens)
        for i in range(n_rows):
            after = i - n_rows  # the rows after the last token come last, and stay in `_all`
            self._guess(tokens[after], end + after + 1, run)
            self._rows[i] = self._all[0, 0]
        self._last = tokens[-1]
        self._is_guessed = n_rows > 0
        return self._rows[:n_rows]

    def guess(self, nodes: Nodes, n_past: int, run: Run) -> Floats:
        """Return for each node the row of its depth, whichever tokens are before it on its path."""
        if not self._is_guessed:
            self._guess(self._last, n_past, run)
            self._is_guessed = True
        for i, depth in enumerate(nodes.depths):
            self._rows[i] = self._all[0, depth + 1]
        return self._rows[: len(nodes.depths)]

    def _append(self, taps: Floats, n_past: int, run: Run) -> None:
        """Run the graph that writes keys and values of these states to their places in the
        cache.
        """
        binding, end = self._fuse.io_binding(), n_past + len(taps)
        bind_input(binding, "hidden_states", taps[None])
        bind_input(binding, "position_ids", self._places[n_past:end])
        for name, kept in self._cache.items():
            kept.bind_output(binding, f"present.{name}", n_past, end)
        run(self._fuse, binding)

    def _guess(self, token: int, n_states: int, run: Run) -> None:
        """Fill `_all` with the rows after a token that follows the first `n_states` states in the
        cache.
        """
        binding = self._head.io_binding()
        self._block[0, 0] = token
        bind_input(binding, "input_ids", self._block)
        for name, kept in self._cache.items():
            kept.bind_input(binding, f"past_key_values.{name}", 0, n_states)
        bind_output(binding, "logits", self._all)
        run(self._head, binding)
