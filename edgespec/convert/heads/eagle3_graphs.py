"""The graphs of EAGLE-3."""

from __future__ import annotations

from typing import Any

import numpy as np

from .graphs import Graph


def write(job: dict[str, Any]) -> None:
    """Write fuse.onnx, which turns the states of several layers of the target into one state, and
    head.onnx, which computes the next state and its logits from a state and a token.
    """
    _write_fuse(Graph(job))
    _write_head(Graph(job))


def _write_fuse(graph: Graph) -> None:
    job, hidden = graph.job, graph.job["hidden_size"]
    n_taps, eps = len(job["layers"]), job["decoder"]["eps"]
    taps = graph.input("hidden_states", 1, "n", n_taps * hidden)
    if graph.has("fc_norm.0.weight"):
        names = [f"tap_{i}" for i in range(n_taps)]
        graph.op("Split", taps, graph.const(np.full(n_taps, hidden)), outputs=names, axis=-1)
        normed = [graph.norm(f"fc_norm.{i}", name, eps) for i, name in enumerate(names)]
        taps = graph.op("Concat", *normed, axis=-1)
    elif graph.has("input_norm.weight"):
        taps = graph.norm("input_norm", taps, eps)
    graph.output("states", graph.linear("fc", taps), 1, "n", job["decoder"]["width"])
    graph.save("fuse.onnx")


def _write_head(graph: Graph) -> None:
    job, eps = graph.job, graph.job["decoder"]["eps"]
    embedded, states = graph.token_and_state()
    normed = graph.norm("hidden_norm", states, eps)
    read = graph.op("Concat", graph.norm("input_layernorm", embedded, eps), normed, axis=-1)
    state = graph.layer(normed if job["norm_before_residual"] else states, read)
    guessing = graph.norm("norm", state, eps)
    graph.save_step(guessing, guessing if job["norm_output"] else state)
