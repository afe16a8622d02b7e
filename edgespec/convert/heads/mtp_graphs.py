"""The graph of an MTP layer. `graphs.py` runs this file and passes its Graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .graphs import Graph


def write(job: dict[str, Any], new: Callable[[dict[str, Any]], Graph]) -> None:
    """Write head.onnx, which computes the next state and its logits from a state and a token."""
    graph, layer = new(job), job["decoder"]
    eps, width = layer["eps"], layer["width"]
    ids = graph.input("input_ids", 1, "n", integer=True)
    states = graph.input("states", 1, "n", width)
    both = [
        graph.norm("token_norm", graph.embedding("embed_tokens", ids), eps),
        graph.norm("hidden_norm", states, eps),
    ]
    joined = graph.op("Concat", *(both[::-1] if job["states_first"] else both), axis=-1)
    state = graph.linear("fc", joined)
    read = graph.norm("input_layernorm", state, eps)
    mixed = graph.attention(read)
    if graph.has("attention_gate.weight"):
        mixed = graph.op("Mul", mixed, graph.op("Sigmoid", graph.linear("attention_gate", read)))
    state = graph.op("Add", state, graph.linear("o", mixed))
    state = graph.op("Add", state, graph.feed_forward(state, eps))
    state = graph.norm("norm", state, eps)
    graph.output("logits", graph.linear("lm_head", graph.last(state)), 1, "rows",
                 job["head_vocab_size"])  # fmt: skip
    graph.output("next_states", state, 1, "n", width)
    graph.save("head.onnx", n_ctx=job["n_ctx"])
