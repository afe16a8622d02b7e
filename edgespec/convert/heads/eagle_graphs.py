"""The graph of EAGLE-1 and EAGLE-2."""

from __future__ import annotations

from typing import Any

from .graphs import Graph


def write(job: dict[str, Any]) -> None:
    """Write head.onnx, which computes the next state and its logits from a state and a token."""
    graph = Graph(job)
    embedded, states = graph.token_and_state()
    read = graph.linear("fc", graph.op("Concat", embedded, states, axis=-1))
    state = graph.layer(read, read)
    graph.save_step(state, state)
