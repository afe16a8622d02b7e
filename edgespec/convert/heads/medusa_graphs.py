"""The graph of Medusa heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from .graphs import Graph


def write(job: dict[str, Any]) -> None:
    """Write head.onnx, which outputs the logits rows of all heads.

    Heads that have the same output matrix use it together, so that it is read only once.
    """
    graph = Graph(job)
    states = graph.input("hidden_states", 1, 1, job["hidden_size"])
    outputs = [graph.weight(f"{i}.lm_head.weight") for i in range(job["n_heads"])]
    is_shared = all(np.array_equal(each, outputs[0]) for each in outputs)
    rows = []
    for i in range(job["n_heads"]):
        x = states
        for j in range(job["n_blocks"]):
            x = graph.op("Add", x, graph.silu(graph.linear(f"{i}.{j}.linear", x)))
        rows.append(x if is_shared else graph.linear(f"{i}.lm_head", x))
    joined = graph.op("Concat", *rows, axis=1)
    joined = graph.linear("0.lm_head", joined) if is_shared else joined
    graph.output("logits", joined, 1, job["n_heads"], job["head_vocab_size"])
    graph.save("head.onnx")
