"""The graph of EAGLE-1 and EAGLE-2. `graphs.py` runs this file and passes its Graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .graphs import Graph


def write(job: dict[str, Any], new: Callable[[dict[str, Any]], Graph]) -> None:
    """Write head.onnx, which computes the next state and its logits from a state and a token."""
    graph = new(job)
    embedded, states = graph.token_and_state()
    read = graph.linear("fc", graph.op("Concat", embedded, states, axis=-1))
    state = graph.layer(read, read)
    graph.save_step(state, state)
