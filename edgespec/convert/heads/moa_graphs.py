"""The graphs of a Mixture of Attentions (arXiv 2410.03804)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .graphs import Graph


def write(job: dict[str, Any]) -> None:
    """Write fuse.onnx, which computes keys and values from the target's keys and values, and
    head.onnx, which reads tokens together with them.
    """
    _write_fuse(Graph(job))
    _write_head(Graph(job))


def _write_fuse(graph: Graph) -> None:
    """Write fuse.onnx, which makes the keys and values for the head's cross-attention.

    The keys and values of each token in all layers of the target attend to each other, without a
    mask. The mean of the result is the state that the cross-attention reads.
    """
    job = graph.job
    layer, cross = job["parts"]["layers"], job["parts"]["cross"]
    n_layer, width, eps = job["n_layer"], layer["width"], layer["eps"]
    taps = graph.input("hidden_states", 1, "n", n_layer * width)
    positions = graph.input("position_ids", "n", integer=True)
    state = graph.op("Reshape", taps, graph.const(np.array([-1, n_layer, width])))
    angles = graph.angles(layer["rotation"], graph.const(np.arange(n_layer)), n_layer)
    read = graph.norm("layers.input_layernorm", state, eps)
    q = graph.turned(_split(graph, "layers", "q", read), angles)
    k = graph.turned(_split(graph, "layers", "k", read), angles)
    v = _split(graph, "layers", "v", read)
    mixed = graph.linear("layers.o", graph.mixed(q, k, v, layer, ""))
    state = graph.op("Add", state, mixed)
    state = graph.op("Add", state, graph.feed_forward(state, eps, "layers."))
    mean = graph.op("ReduceMean", state, axes=[1], keepdims=0)
    mean = graph.op("Unsqueeze", mean, graph.const(np.array([0])))
    context = graph.norm("cross.input_layernorm", graph.linear("project", mean), cross["eps"])
    _keep(graph, "cross", 1, context, graph.angles(cross["rotation"], positions, job["n_ctx"]))
    graph.save("fuse.onnx", n_ctx=job["n_ctx"])


def _write_head(graph: Graph) -> None:
    job, parts = graph.job, graph.job["parts"]
    text, cross, longest = parts["text"], parts["cross"], job["n_ctx"] + 1
    ids = graph.input("input_ids", 1, "n", integer=True)
    positions = graph.input("position_ids", "n", integer=True)
    bias = graph.input("attention_bias", "rows", "total")
    seen = graph.input("context_bias", "rows", "context")
    own, context = (_past(graph, i, part) for i, part in enumerate((text, cross)))
    embedded = graph.embedding("embed_tokens", ids)
    read = graph.norm("text.input_layernorm", embedded, text["eps"])
    new = _keep(graph, "text", 0, read, graph.angles(text["rotation"], positions, longest))
    keys, values = (graph.op("Concat", *both, axis=1) for both in zip(own, new, strict=True))
    state, read = graph.last(embedded), graph.last(read)
    at = graph.last(graph.op("Unsqueeze", positions, graph.const(np.array([0]))))
    at = graph.op("Squeeze", at, graph.const(np.array([0])))
    turn = graph.angles(text["rotation"], at, longest)
    queries = graph.turned(_split(graph, "text", "q", read), turn)
    state = _layer(graph, "text", state, graph.mixed(queries, keys, values, text, bias))
    # A token reads the state of the token before it, which has the position of that token.
    after = graph.op("Add", at, graph.const(np.array(1)))
    read = graph.norm("cross.input_layernorm", state, cross["eps"])
    turn = graph.angles(cross["rotation"], after, longest)
    queries = graph.turned(_split(graph, "cross", "q", read), turn)
    state = _layer(graph, "cross", state, graph.mixed(queries, context[0], context[1], cross, seen))
    graph.output("logits", graph.linear("lm_head", state), 1, "rows", job["head_vocab_size"])
    graph.save("head.onnx", n_ctx=job["n_ctx"])


def _past(graph: Graph, i: int, layer: dict[str, Any]) -> list[str]:
    """Return the cached keys and values of a layer, each [1, total, kv heads, head_dim]."""
    size, name = layer["n_kv_heads"] * layer["head_dim"], ("past", "context")[i]
    inputs = [
        graph.input(f"past_key_values.{i}.{kind}", 1, name, size) for kind in ("key", "value")
    ]
    return [graph.heads(each, layer["n_kv_heads"], layer["head_dim"]) for each in inputs]


def _split(graph: Graph, part: str, kind: str, read: str) -> str:
    """Return the queries ("q"), keys ("k") or values ("v") of states, [b, n, heads, head_dim]."""
    layer = graph.job["parts"][part]
    n_heads = layer["n_heads"] if kind == "q" else layer["n_kv_heads"]
    return graph.heads(graph.linear(f"{part}.{kind}", read), n_heads, layer["head_dim"])


def _keep(graph: Graph, part: str, i: int, read: str, angles: tuple[str, str]) -> tuple[str, str]:
    """Return the keys and values of tokens, and make them outputs of the graph."""
    layer = graph.job["parts"][part]
    size = layer["n_kv_heads"] * layer["head_dim"]
    both = (graph.turned(_split(graph, part, "k", read), angles), _split(graph, part, "v", read))
    for kind, kept in zip(("key", "value"), both, strict=True):
        flat = graph.op("Reshape", kept, graph.const(np.array([0, 0, -1])))
        graph.output(f"present.{i}.{kind}", flat, 1, "n", size)
    return both


def _layer(graph: Graph, part: str, state: str, mixed: str) -> str:
    """Return the state after a layer. mixed: the output of its attention."""
    state = graph.op("Add", state, graph.linear(f"{part}.o", mixed))
    eps = graph.job["parts"][part]["eps"]
    return graph.op("Add", state, graph.feed_forward(state, eps, f"{part}."))
