"""The graph of Medusa heads. `graphs.py` runs this file and passes its Graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .graphs import Graph


def write(job: dict[str, Any], new: Callable[[dict[str, Any]], Graph]) -> None:
    """Write head.onnx, which outputs the logits rows of all heads."""
    graph = new(job)
    states = graph.input("hidden_states", 1, 1, job["hidden_size"])
    rows = []
    for i in range(job["n_heads"]):
        x = states
        for j in range(job["n_blocks"]):
            x = graph.op("Add", x, graph.silu(graph.linear(f"{i}.{j}.linear", x)))
        rows.append(graph.linear(f"{i}.lm_head", x))
    joined = graph.op("Concat", *rows, axis=1)
    graph.output("logits", joined, 1, job["n_heads"], job["head_vocab_size"])
    graph.save("head.onnx")
