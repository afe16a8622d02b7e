"""Hidden states of a graph: the layers that are wanted, and the arrays that the graph writes to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError
from ..base import FINAL
from ..features import States
from .graph import Graph


class Taps:
    """Arrays for the hidden states that are wanted; other outputs are not bound.

    n_tokens: the most tokens per call.
    """

    def __init__(self, graph: Graph, n_tokens: int) -> None:
        self._graph, self._n_tokens = graph, n_tokens
        self.want(())

    def want(self, layers: Sequence[int]) -> None:
        """Collect the states of these layers from now on. The graph has to have an output for each
        layer.
        """
        once = list(dict.fromkeys(layers))
        self._order = [once.index(layer) for layer in layers]
        self._outputs = [self._graph.hidden[layer] for layer in once]
        shape = (len(once), self._n_tokens, self._graph.hidden_size)
        self._states: States = np.empty(shape, np.float32)
        self._given: list[npt.NDArray[Any]] = [
            states if dtype is np.float32 else np.empty(shape[1:], dtype)
            for states, (_, dtype) in zip(self._states, self._outputs, strict=True)
        ]

    def bind(self, binding: Any, width: int) -> None:
        """Bind the outputs for a call of `width` tokens."""
        shape = (1, width, self._graph.hidden_size)
        for (name, dtype), given in zip(self._outputs, self._given, strict=True):
            binding.bind_output(name, "cpu", 0, dtype, shape, given.ctypes.data)

    def states(self, start: int, end: int) -> States | None:
        """Return the hidden states of these tokens of the last call, [n, n_layers, hidden_size], a
        view valid until the next call; None if no layers are wanted.
        """
        if not self._outputs:
            return None
        for states, given in zip(self._states, self._given, strict=True):
            if given.dtype != np.float32:
                states[start:end] = given[start:end]
        kept: States = self._states[:, start:end].transpose(1, 0, 2)
        return kept if len(self._order) == len(self._outputs) else kept[:, self._order]


def copied(states: States | None) -> list[States]:
    """Return a list with a copy of the hidden states of one part of a call, [] for None."""
    return [] if states is None else [states.copy()]


def joined(parts: list[States], last: States | None) -> States | None:
    """Return the hidden states of all parts of a call as one array; `last` itself if it is the only
    part.
    """
    return last if last is None or not parts else np.concatenate([*parts, last])


def check_layers(path: Path, graph: Graph, layers: Sequence[int]) -> None:
    """Raise ConfigError if a graph does not return the hidden states of one of these layers."""
    missing = sorted({layer for layer in layers if layer not in graph.hidden})
    for layer in missing:
        if layer != FINAL and not 0 <= layer <= graph.n_layer:
            raise ConfigError(
                f"{path} has no layer {layer}; give 0 (what goes into the first) to "
                f"{graph.n_layer} (what comes out of the last), or {FINAL} for the final states"
            )
    if missing:
        names = ",".join("final" if layer == FINAL else str(layer) for layer in missing)
        raise ConfigError(
            f"{path} does not give the hidden states {names}; "
            f"`edgespec convert {path} --hidden-states {names}` adds them"
        )
