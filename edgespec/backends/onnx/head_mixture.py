"""The graphs of a Mixture of Attentions: one cache is for the text, one for the target's states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...config import EngineConfig
from .buffers import MAX_ROWS
from .graph import KEEP
from .head_steps import (
    FUSE,
    HEAD,
    MAX_NODES,
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

_LOWEST = np.finfo(np.float32).min


class Mixture:
    """A head that reads tokens, and states made from its target's keys and values before each of
    them (Mixture of Attentions, arXiv 2410.03804). Guesses see only the states of the text.

    n_ctx: the most tokens of the cache. chunk: the most tokens per call.
    """

    n_states = n_guesses = 0

    def __init__(self, folder: Path, config: EngineConfig, opened: Opened, chunk: int) -> None:
        self._head = opened(folder / HEAD)
        self._fuse = opened(folder / FUSE)
        self.provider = provider_of(self._head)
        names = [f"{i}.{kind}" for i in range(2) for kind in ("key", "value")]
        with described(self._head, folder / HEAD, config) as graph:
            self.width, self.n_ctx = size(graph.outputs["logits"][-1]), graph.n_ctx
            sizes = {name: size(graph.inputs[f"past_key_values.{name}"][-1]) for name in names}
        self._cache = {
            name: KeptRows(self.n_ctx, width, self.provider) for name, width in sizes.items()
        }
        self._ids = np.zeros((1, max(chunk, MAX_ROWS)), np.int64)
        self._places = np.arange(self.n_ctx, dtype=np.int64)
        self._n_rows = np.ones(1, np.int64)
        self._logits = np.zeros((MAX_ROWS, self.width), np.float32)
        self._sees = np.zeros((MAX_NODES, MAX_NODES), bool)
        self._n_blind = 0  # how many first tokens have no target state before them: 1 or 0

    def read(
        self, tokens: Sequence[int], taps: Floats, n_past: int, n_rows: int, run: Run
    ) -> Floats:
        """Append tokens and the states before them to the caches."""
        total, places = n_past + len(tokens), self._places
        if n_past == 0:
            self._n_blind = int(not taps[0].any())
        self._append(taps, n_past, run)
        rows = places[total - max(1, n_rows) : total, None]
        sees = places[:total] <= rows
        of_states = sees & ((places[:total] >= self._n_blind) | (rows == 0))
        self._evaluate(tokens, places[n_past:total], _bias(sees), _bias(of_states), run)
        return self._logits[:n_rows]

    def guess(self, nodes: Nodes, n_past: int, run: Run) -> Floats:
        """Append nodes after the tokens that were read; each node sees only its own path of the
        tree.
        """
        n, first = len(nodes.tokens), nodes.n_before
        sees = np.ones((n, n_past + first + n), bool)
        for i, parent in enumerate(nodes.parents):
            path = self._sees[first + i]
            path[:] = False if parent < 0 else self._sees[parent]
            path[first + i] = True
            sees[i, n_past:] = path[: first + n]
        positions = n_past + np.array(nodes.depths, np.int64)
        of_states = np.ones((n, n_past), bool)
        of_states[:, : self._n_blind] = n_past <= self._n_blind
        self._evaluate(nodes.tokens, positions, _bias(sees), _bias(of_states), run)
        return self._logits[:n]

    def _append(self, taps: Floats, n_past: int, run: Run) -> None:
        """Run the graph that writes keys and values of these states to their places in the
        cache.
        """
        binding, end = self._fuse.io_binding(), n_past + len(taps)
        bind_input(binding, "hidden_states", taps[None])
        bind_input(binding, "position_ids", self._places[n_past:end])
        for name in ("1.key", "1.value"):
            self._cache[name].bind_output(binding, f"present.{name}", n_past, end)
        run(self._fuse, binding)

    def _evaluate(
        self,
        tokens: Sequence[int],
        positions: npt.NDArray[np.int64],
        bias: Floats,
        context_bias: Floats,
        run: Run,
    ) -> None:
        """Fill the logits rows of the last len(bias) tokens, and append all tokens to the text's
        cache.
        """
        n, (rows, total), binding = len(tokens), bias.shape, self._head.io_binding()
        self._ids[0, :n] = tokens
        self._n_rows[0] = rows
        given: dict[str, Any] = {
            "input_ids": self._ids[:, :n], "position_ids": positions, "attention_bias": bias,
            "context_bias": context_bias, KEEP: self._n_rows,
        }  # fmt: skip
        for name, array in given.items():
            bind_input(binding, name, array)
        for name, kept in self._cache.items():
            length = total - n if name[0] == "0" else context_bias.shape[1]
            kept.bind_input(binding, f"past_key_values.{name}", 0, length)
        for name in ("0.key", "0.value"):
            self._cache[name].bind_output(binding, f"present.{name}", total - n, total)
        bind_output(binding, "logits", self._logits[None, :rows])
        run(self._head, binding)


def _bias(sees: npt.NDArray[np.bool_]) -> Floats:
    """Return the bias to add to attention scores so that places that a token must not see do not
    count.
    """
    bias = np.zeros(sees.shape, np.float32)
    bias[~sees] = _LOWEST
    return bias
