"""An EAGLE-3 head in torch (arXiv 2503.01840): its weights and training-time test.

Shapes: B conversations of n tokens, padded on the right; d the target's hidden size; V' the tokens
that the head can draft. Row i reads the target's states at position i and the embedding of token
i + 1, and its guess is token i + 2. At step s of the training-time test it has also read its own s
guesses, so it guesses token i + 2 + s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional

from .sizes import ATTENTION, SHAPES, Sizes

Weights = dict[str, Any]
"""The trained tensors by SafeAILab's names, float32."""

OUTPUT = "lm_head.weight"
_UNSEEN = -1e30  # a score of a key that a query does not see


def initial(sizes: Sizes, start: Mapping[str, Any], scale: Any, seed: int = 0) -> Weights:
    """Return the weights from which training starts.

    start: weights taken from the target or from an earlier head, by the same names, if their shapes
    are the same. scale: [3d], what the states of the three layers are divided by before the head
    reads them. Without another start `fc` takes the third layer's states as they are: they are of
    the kind that the target's own last layer and output matrix read. All other matrices are random.
    """
    random, d = torch.Generator().manual_seed(seed), sizes.hidden_size
    start = {"fc.weight": torch.cat([torch.zeros(d, 2 * d), torch.eye(d)], 1), **start}
    weights = {}
    for name, shape in SHAPES["eagle3"](sizes).items():
        given = start.get(name)
        if given is not None and tuple(given.shape) == shape:
            weights[name] = given.float().clone()
        elif len(shape) == 1:
            weights[name] = torch.ones(shape)
        else:
            weights[name] = 0.02 * torch.randn(shape, generator=random)
    weights["fc.weight"] *= scale
    return {name: weight.requires_grad_() for name, weight in weights.items()}


def unroll(
    weights: Weights, sizes: Sizes, embedding: Any, batch: Any, n_steps: int
) -> Iterator[Any]:
    """Yield the head's normed states at each step of the training-time test, [B, n - first, d].

    Step s reads the true token at i + 1 + s and the head's own state of step s - 1, as in
    inference. It sees the rows up to i of step 0, and of every later step only its own row.
    embedding: [vocab_size, d], which is not trained.
    """
    first, n = batch.first, batch.ids.shape[1]
    seen: list[tuple[Any, Any]] = []
    state = functional.linear(batch.taps, weights["fc.weight"])
    for s in range(n_steps):
        rows = torch.arange(0 if s == 0 else first, n, device=state.device)
        tokens = batch.ids[:, (rows + 1 + s).clamp(max=n - 1)]
        state = _layer(weights, sizes, state, embedding[tokens], rows + s, first, seen)
        yield _normed(state, weights["norm.weight"], sizes.eps)


def _layer(
    weights: Weights, sizes: Sizes, state: Any, embedded: Any, positions: Any, first: int,
    seen: list[tuple[Any, Any]],
) -> Any:  # fmt: skip
    """Return the states of the rows from `first` on after the head's layer, and append the keys and
    values of this step to `seen`.

    state, embedded: [B, rows, d]; all rows at step 0, else those from `first` on.
    """
    read = torch.cat([
        _normed(embedded, weights["midlayer.input_layernorm.weight"], sizes.eps),
        _normed(state, weights["midlayer.hidden_norm.weight"], sizes.eps),
    ], -1)  # fmt: skip
    begin = 0 if seen else first
    groups = sizes.n_heads // sizes.n_kv_heads
    keys = _heads(weights, "k", read, sizes.head_dim)
    values = _heads(weights, "v", read, sizes.head_dim)
    keys = _rotated(keys, positions, sizes.rotation)
    seen.append((keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)))
    queries = _heads(weights, "q", read[:, begin:], sizes.head_dim)
    queries = _rotated(queries, positions[begin:], sizes.rotation)
    mixed = _attention(queries, seen, first).transpose(1, 2).flatten(2)
    state = state[:, begin:] + functional.linear(mixed, weights[f"{ATTENTION}.o_proj.weight"])
    inner = _normed(state, weights["midlayer.post_attention_layernorm.weight"], sizes.eps)
    gate = functional.linear(inner, weights["midlayer.mlp.gate_proj.weight"])
    up = functional.linear(inner, weights["midlayer.mlp.up_proj.weight"])
    down = weights["midlayer.mlp.down_proj.weight"]
    return state + functional.linear(functional.silu(gate) * up, down)


def _attention(queries: Any, seen: list[tuple[Any, Any]], first: int) -> Any:
    """Return the mixed values, [B, heads, rows, head_dim].

    Row i sees all rows up to i of step 0, and of each later step the row i alone.
    """
    (keys, values), *own = seen
    n_rows, n = queries.shape[2], keys.shape[2]
    rows = torch.arange(first, n, device=queries.device)
    hidden = torch.arange(n, device=queries.device) > rows[:, None]
    scores = [(queries @ keys.transpose(-1, -2)).masked_fill(hidden, _UNSEEN)]
    scores += [(queries * each).sum(-1, keepdim=True) for each, _ in own]
    shares = torch.softmax(torch.cat(scores, -1).float() / math.sqrt(queries.shape[-1]), -1)
    shares = shares.to(values.dtype)
    assert n_rows == n - first
    mixed = shares[..., :n] @ values
    for j, (_, each) in enumerate(own):
        mixed = mixed + shares[..., n + j : n + j + 1] * each
    return mixed


def _heads(weights: Weights, name: str, read: Any, head_dim: int) -> Any:
    projected = functional.linear(read, weights[f"{ATTENTION}.{name}_proj.weight"])
    return projected.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def _rotated(x: Any, positions: Any, rotation: list[float]) -> Any:
    """Rotate [B, heads, rows, head_dim] by angles that grow with the positions [rows]."""
    angles = positions[:, None].float() * torch.tensor(rotation, device=x.device)
    cos, sin = angles.cos(), angles.sin()
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def _normed(x: Any, weight: Any, eps: float) -> Any:
    return functional.rms_norm(x.float(), weight.shape, weight, eps)


def exported(weights: Weights, sizes: Sizes, scale: Any, embedding: Any) -> Weights:
    """Return the tensors of a checkpoint, whose head reads the layers' states as they are."""
    return {**weights, "fc.weight": weights["fc.weight"] / scale}
