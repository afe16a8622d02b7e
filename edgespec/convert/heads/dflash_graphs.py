"""The graphs of DFlash (arXiv 2602.06036); `graphs.py` runs this file, and its Graph is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from .graphs import Graph


class Rotation(NamedTuple):
    """Names of the cosines and sines of some positions, each [n, 1, head_dim / 2]."""

    cos: str
    sin: str


def write(job: dict[str, Any], new: Callable[[dict[str, Any]], Graph]) -> None:
    """Write fuse.onnx, which makes keys and values of the target's states, and head.onnx, which
    guesses a block behind them.
    """
    _write_fuse(new(job))
    _write_head(new(job))


def _write_fuse(graph: Graph) -> None:
    job, layer = graph.job, graph.job["decoder"]
    taps = graph.input("hidden_states", 1, "n", len(job["layers"]) * job["hidden_size"])
    positions = graph.input("position_ids", "n", integer=True)
    states = graph.norm("hidden_norm", graph.linear("fc", taps), layer["eps"])
    rotation, size = _rotation(graph, positions), layer["n_kv_heads"] * layer["head_dim"]
    for i in range(len(job["windows"])):
        keys = _keys(graph, i, states, rotation)
        flat = graph.op("Reshape", keys, graph.const(np.array([1, -1, size])))
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
    rotation = _rotation(graph, positions)
    state = graph.embedding("embed_tokens", ids)
    if job["embedding_scale"] != 1:
        state = graph.op("Mul", state, graph.const(np.float32(job["embedding_scale"])))
    for i in range(len(job["windows"])):
        bias = _bias(graph, positions, length, job["windows"][i], job["causal"][i])
        read = graph.norm(f"{i}.input_layernorm", state, layer["eps"])
        mixed = _attention(graph, i, read, past[i], rotation, bias)
        state = graph.op("Add", state, graph.linear(f"{i}.o", mixed))
        state = graph.op("Add", state, graph.feed_forward(state, layer["eps"], f"{i}."))
    state = graph.norm("norm", _from(graph, state, 1), layer["eps"])
    graph.output("logits", _scaled(graph, graph.linear("lm_head", state)), 1, n - 1,
                 job["head_vocab_size"])  # fmt: skip
    graph.save("head.onnx", n_ctx=job["n_ctx"], mask_token=job["mask_token"])


def _from(graph: Graph, x: str, first: int) -> str:
    """Return the rows of [1, n, d] from one on."""
    bounds = (np.array([each]) for each in (first, np.iinfo(np.int64).max, 1))
    return graph.op("Slice", x, *(graph.const(each) for each in bounds))


def _scaled(graph: Graph, logits: str) -> str:
    """Return logits as the head's config wants them."""
    if graph.job["logit_scale"] != 1:
        logits = graph.op("Mul", logits, graph.const(np.float32(graph.job["logit_scale"])))
    if not graph.job["softcap"]:
        return logits
    most = graph.const(np.float32(graph.job["softcap"]))
    return graph.op("Mul", graph.op("Tanh", graph.op("Div", logits, most)), most)


def _rotation(graph: Graph, positions: str) -> Rotation:
    """Return cosines and sines of positions [n]; a block lies behind the longest text, too."""
    longest = graph.job["n_ctx"] + graph.job["n_heads"] + 1
    angles = np.arange(longest)[:, None, None] * np.array(graph.job["decoder"]["rotation"])
    tables = (graph.const(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
    return Rotation(*(graph.op("Gather", table, positions) for table in tables))


def _turned(graph: Graph, x: str, rotation: Rotation) -> str:
    """Return [n, heads, head_dim] with each pair of numbers rotated; a pair is a number of the
    first half and one of the second.
    """
    first, second = f"{x}/first", f"{x}/second"
    half = graph.job["decoder"]["head_dim"] // 2
    graph.op("Split", x, graph.const(np.array([half, half])), outputs=[first, second], axis=-1)
    cos, sin = rotation
    both = [
        graph.op(kind, graph.op("Mul", a, cos), graph.op("Mul", b, sin))
        for kind, a, b in (("Sub", first, second), ("Add", second, first))
    ]
    return graph.op("Concat", *both, axis=-1)


def _heads(graph: Graph, x: str) -> str:
    """Return [1, n, heads * head_dim] as [n, heads, head_dim]."""
    size = graph.job["decoder"]["head_dim"]
    n_heads = graph.const(np.array([0, -1, size]))  # 0: as many as there are
    flat = graph.op("Squeeze", x, graph.const(np.array([0])))
    return graph.op("Reshape", flat, n_heads)


def _keys(graph: Graph, i: int, states: str, rotation: Rotation) -> str:
    """Return the keys of states in layer i, [n, kv heads, head_dim]."""
    keys = _heads(graph, graph.linear(f"{i}.k", states))
    normed = graph.norm(f"{i}.k_norm", keys, graph.job["decoder"]["eps"])
    return _turned(graph, normed, rotation)


def _attention(
    graph: Graph, i: int, read: str, past: list[str], rotation: Rotation, bias: str
) -> str:
    """Return what the block's queries mix of the values of the past and of its own, [1, n, d].

    Queries that share keys stand in one matrix with them: nothing is repeated.
    """
    layer, n = graph.job["decoder"], graph.job["n_heads"] + 1
    n_kv, size = layer["n_kv_heads"], layer["head_dim"]
    queries = _heads(graph, graph.linear(f"{i}.q", read))
    queries = graph.norm(f"{i}.q_norm", queries, layer["eps"])
    queries = graph.op("Mul", _turned(graph, queries, rotation),
                       graph.const(np.float32(size**-0.5)))  # fmt: skip
    queries = graph.op("Transpose", queries, perm=[1, 0, 2])
    queries = graph.op("Reshape", queries, graph.const(np.array([n_kv, -1, size])))
    own = (_keys(graph, i, read, rotation), _heads(graph, graph.linear(f"{i}.v", read)))
    keys, values = (
        graph.op("Concat", _heads(graph, before), new, axis=0)
        for before, new in zip(past, own, strict=True)
    )
    scores = graph.op("MatMul", queries, graph.op("Transpose", keys, perm=[1, 2, 0]))
    if bias:
        apart = graph.op("Reshape", scores, graph.const(np.array([layer["n_heads"], n, -1])))
        apart = graph.op("Add", apart, bias)
        scores = graph.op("Reshape", apart, graph.op("Shape", scores))
    mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1),
                     graph.op("Transpose", values, perm=[1, 0, 2]))  # fmt: skip
    mixed = graph.op("Reshape", mixed, graph.const(np.array([layer["n_heads"], n, size])))
    mixed = graph.op("Transpose", mixed, perm=[1, 0, 2])
    return graph.op("Reshape", mixed, graph.const(np.array([1, n, -1])))


def _bias(graph: Graph, positions: str, length: str, window: int, causal: bool) -> str:
    """Return what is added to scores so that places out of sight count nothing, [n, total]; ""
    where all is in sight. length: of the past.
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
