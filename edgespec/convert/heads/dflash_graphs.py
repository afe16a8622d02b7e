"""The graphs of DFlash (arXiv 2602.06036)."""

from __future__ import annotations

from typing import Any

import numpy as np

from .graphs import Graph

Angles = tuple[str, str]


def write(job: dict[str, Any]) -> None:
    """Write fuse.onnx, which computes keys and values from the target's states, and head.onnx,
    which guesses the block of tokens after them.
    """
    _write_fuse(Graph(job))
    _write_head(Graph(job))


def _write_fuse(graph: Graph) -> None:
    job, layer = graph.job, graph.job["decoder"]
    taps = graph.input("hidden_states", 1, "n", len(job["layers"]) * job["hidden_size"])
    positions = graph.input("position_ids", "n", integer=True)
    states = graph.norm("hidden_norm", graph.linear("fc", taps), layer["eps"])
    angles, size = _angles(graph, positions), layer["n_kv_heads"] * layer["head_dim"]
    for i in range(len(job["windows"])):
        keys = _normed(graph, i, "k", states, angles)
        flat = graph.op("Reshape", keys, graph.const(np.array([0, 0, -1])))
        graph.output(f"present.{i}.key", flat, 1, "n", size)
        graph.output(f"present.{i}.value", graph.linear(f"{i}.v", states), 1, "n", size)
    graph.save("fuse.onnx", n_ctx=job["n_ctx"])


def _write_head(graph: Graph) -> None:
    job, layer, n = graph.job, graph.job["decoder"], graph.job["n_heads"] + 1
    ids = graph.input("input_ids", 1, n, integer=True)
    size = layer["n_kv_heads"] * layer["head_dim"]
    past = [
        [graph.input(f"past_key_values.{i}.{kind}", 1, "past", size) for kind in ("key", "value")]
        for i in range(len(job["windows"]))
    ]
    length = graph.op("Gather", graph.op("Shape", past[0][0]), graph.const(np.array(1)))
    positions = graph.op("Add", length, graph.const(np.arange(n)))
    angles = _angles(graph, positions)
    state = graph.embedding("embed_tokens", ids)
    if job["embedding_scale"] != 1:
        state = graph.op("Mul", state, graph.const(np.float32(job["embedding_scale"])))
    for i in range(len(job["windows"])):
        bias = _bias(graph, positions, length, job["windows"][i], job["causal"][i])
        read = graph.norm(f"{i}.input_layernorm", state, layer["eps"])
        mixed = _attention(graph, i, read, past[i], angles, bias)
        state = graph.op("Add", state, graph.linear(f"{i}.o", mixed))
        state = graph.op("Add", state, graph.feed_forward(state, layer["eps"], f"{i}."))
    state = graph.norm("norm", _from(graph, state, 1), layer["eps"])
    graph.output("logits", _scaled(graph, graph.linear("lm_head", state)), 1, n - 1,
                 job["head_vocab_size"])  # fmt: skip
    graph.save("head.onnx", n_ctx=job["n_ctx"], mask_token=job["mask_token"])


def _from(graph: Graph, x: str, first: int) -> str:
    """Return the rows of [1, n, d] from the row `first` on."""
    bounds = (np.array([each]) for each in (first, np.iinfo(np.int64).max, 1))
    return graph.op("Slice", x, *(graph.const(each) for each in bounds))


def _scaled(graph: Graph, logits: str) -> str:
    """Return the logits after the scaling and the soft cap in the head's config."""
    if graph.job["logit_scale"] != 1:
        logits = graph.op("Mul", logits, graph.const(np.float32(graph.job["logit_scale"])))
    if not graph.job["softcap"]:
        return logits
    most = graph.const(np.float32(graph.job["softcap"]))
    return graph.op("Mul", graph.op("Tanh", graph.op("Div", logits, most)), most)


def _angles(graph: Graph, positions: str) -> Angles:
    """Return cosines and sines of positions, also for a block after the longest text."""
    longest = graph.job["n_ctx"] + graph.job["n_heads"] + 1
    return graph.angles(graph.job["decoder"]["rotation"], positions, longest)


def _normed(graph: Graph, i: int, kind: str, states: str, angles: Angles) -> str:
    """Return the normed and rotated queries or keys of layer i, [1, n, heads, head_dim].

    kind: "q" or "k".
    """
    layer = graph.job["decoder"]
    n_heads = layer["n_heads"] if kind == "q" else layer["n_kv_heads"]
    heads = graph.heads(graph.linear(f"{i}.{kind}", states), n_heads, layer["head_dim"])
    return graph.turned(graph.norm(f"{i}.{kind}_norm", heads, layer["eps"]), angles)


def _attention(graph: Graph, i: int, read: str, past: list[str], angles: Angles, bias: str) -> str:
    """Return the attention of the block's queries over the past and the block itself, [1, n, d]."""
    layer = graph.job["decoder"]
    shape = layer["n_kv_heads"], layer["head_dim"]
    values = graph.heads(graph.linear(f"{i}.v", read), *shape)
    own = (_normed(graph, i, "k", read, angles), values)
    keys, values = (
        graph.op("Concat", graph.heads(before, *shape), new, axis=1)
        for before, new in zip(past, own, strict=True)
    )
    return graph.mixed(_normed(graph, i, "q", read, angles), keys, values, layer, bias)


def _bias(graph: Graph, positions: str, length: str, window: int, causal: bool) -> str:
    """Return the bias that hides some places from attention, [n, total], or "" if none are hidden.

    length: the length of the past.
    """
    if not (window or causal):
        return ""
    zero, one = graph.const(np.array(0)), graph.const(np.array(1))
    end = graph.op("Add", length, graph.const(np.array(graph.job["n_heads"] + 1)))
    places = graph.op("Range", zero, end, one)
    ahead = graph.op("Sub", places, graph.op("Unsqueeze", positions, graph.const(np.array([1]))))
    limits = []
    if causal:
        limits.append(graph.op("LessOrEqual", ahead, zero))
    if window:
        far = graph.op("Abs", ahead)
        limits.append(graph.op("Less", far, graph.const(np.array(window))))
    seen = limits[0] if len(limits) == 1 else graph.op("And", *limits)
    nothing, lowest = np.float32(0), np.finfo(np.float32).min
    return graph.op("Where", seen, graph.const(nothing), graph.const(lowest))
