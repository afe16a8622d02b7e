"""The graphs of an MLP speculator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .graphs import Graph


def token_factor(n_heads: int, inner_size: int) -> float:
    """Return the weight of a token's embedding as a multiple of that of the state."""
    state_weight = 0.5 ** (0.5 / n_heads)
    return float(math.sqrt((1 - state_weight**2) * inner_size / 2) / state_weight)


def write(job: dict[str, Any]) -> None:
    """Write head.I.onnx for each depth I.

    Depths that share all weights use one graph, that of the first of them.
    """
    n, inner = job["n_heads"], job["inner_size"]
    factor = token_factor(n, inner)
    for i in range(min(n, 2) if job["tied"] else n):
        graph, width = Graph(job), inner if i else job["hidden_size"]
        ids = graph.input("input_ids", 1, "n", integer=True)
        state = graph.input("states", 1, "n", width)
        if i == 0 and job["scale_input"]:
            ones = graph.const(np.full(width, 2**-0.5, np.float32))
            state = graph.op("SimplifiedLayerNormalization", state, ones, axis=-1, epsilon=1e-6)
        token = graph.op("Mul", graph.embedding(f"emb.{i}", ids), graph.const(np.float32(factor)))
        mixed = graph.norm(
            f"ln.{i}", graph.op("Add", graph.linear(f"proj.{i}", state), token), 1e-6
        )
        turned = graph.op("Erf", graph.op("Mul", mixed, graph.const(np.float32(2**-0.5))))
        half = graph.op("Mul", mixed, graph.const(np.float32(0.5)))
        state = graph.op("Mul", half, graph.op("Add", turned, graph.const(np.float32(1))))
        rows = graph.linear(f"head.{i}", graph.last(state))
        graph.output("logits", rows, 1, "rows", job["head_vocab_size"])
        graph.output("next_states", state, 1, "n", inner)
        graph.save(f"head.{i}.onnx")
