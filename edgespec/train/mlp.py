"""An MLP speculator in torch (arXiv 2404.19124), in the form of IBM's accelerators.

The functions and shapes are those of a network in `objective.py`. All steps share their weights,
except for the first projection. The embedding is the target's own and is not trained, because it is
larger than all other weights together; the width of the speculator's states is that of the
target's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional

from ..convert.heads.mlp_speculator_graphs import token_factor
from .sizes import SHAPES, Sizes

Weights = dict[str, Any]
OUTPUT = "head.0.weight"
_EPS = 1e-6


def initial(sizes: Sizes, start: Mapping[str, Any], scale: Any, seed: int = 0) -> Weights:
    """Return the weights from which training starts.

    start: the tensors of an earlier checkpoint, and the target's output matrix as lm_head.weight.
    Without a checkpoint the projections hand on what they read, so that the output matrix sees
    states of the kind that it knows. scale, seed: not used.
    """
    d, identity = sizes.hidden_size, torch.eye(sizes.hidden_size)
    new = {
        "proj.0.weight": identity, "proj.1.weight": identity, "ln.0.weight": torch.ones(d),
        "ln.0.bias": torch.zeros(d), OUTPUT: start["lm_head.weight"].float(),
    }  # fmt: skip
    names = SHAPES["mlp"](sizes)
    return {name: start.get(f"speculator.{name}", new[name]).clone() for name in names}


def unroll(
    weights: Weights, sizes: Sizes, embedding: Any, batch: Any, n_steps: int
) -> Iterator[Any]:
    """Yield the states after each drafted token, [B, n - first, d]."""
    first, n = batch.first, batch.ids.shape[1]
    state = _normed(batch.last[:, first:]) / math.sqrt(2)
    of_token = token_factor(sizes.n_ahead, sizes.hidden_size) * _embedding_scale(embedding)
    rows = torch.arange(first, n, device=state.device)
    for s in range(min(n_steps, sizes.n_ahead)):
        tokens = batch.ids[:, (rows + 1 + s).clamp(max=n - 1)]
        read = functional.linear(state, weights[f"proj.{min(s, 1)}.weight"])
        mixed = read + of_token * embedding[tokens]
        state = functional.gelu(_normed(mixed) * weights["ln.0.weight"] + weights["ln.0.bias"])
        yield state


def exported(weights: Weights, sizes: Sizes, scale: Any, embedding: Any) -> Weights:
    """Return the tensors of a checkpoint, in the names of IBM's accelerators."""
    tensors = {f"speculator.{name}": weight for name, weight in weights.items()}
    return tensors | {"speculator.emb.0.weight": _embedding_scale(embedding) * embedding}


def _embedding_scale(embedding: Any) -> Any:
    """Return the factor that gives the target's embeddings the size that the form expects of
    untrained ones: a mean square of 1 / d.
    """
    return (embedding.square().mean() * embedding.shape[1]).rsqrt()


def _normed(x: Any) -> Any:
    return functional.rms_norm(x.float(), x.shape[-1:], eps=_EPS)
