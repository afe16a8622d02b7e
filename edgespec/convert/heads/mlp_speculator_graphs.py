"""The graphs of an MLP speculator. `graphs.py` runs this file and passes its Graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .graphs import Graph


def write(job: dict[str, Any], new: Callable[[dict[str, Any]], Graph]) -> None:
    """Write head.I.onnx for each depth I.

    Depths that share all weights use one graph, that of the first of them.
    """
    n, inner = job["n_heads"], job["inner_size"]
    state_weight = 0.5 ** (0.5 / n)
    factor = math.sqrt((1 - state_weight**2) * inner / 2) / state_weight
    for i in range(min(n, 2) if job["tied"] else n):
        graph, width = new(job), inner if i else job["hidden_size"]
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
