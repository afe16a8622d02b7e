"""The graph of an MTP layer."""

from __future__ import annotations

from typing import Any

from .graphs import Graph


def write(job: dict[str, Any]) -> None:
    """Write head.onnx, which computes the next state and its logits from a state and a token."""
    graph, eps = Graph(job), job["decoder"]["eps"]
    embedded, states = graph.token_and_state()
    both = [graph.norm("token_norm", embedded, eps), graph.norm("hidden_norm", states, eps)]
    joined = graph.op("Concat", *(both[::-1] if job["states_first"] else both), axis=-1)
    state = graph.linear("fc", joined)
    state = graph.layer(state, graph.norm("input_layernorm", state, eps))
    state = graph.norm("norm", state, eps)
    graph.save_step(state, state)
