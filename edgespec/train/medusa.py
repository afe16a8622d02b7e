"""Medusa heads in torch (arXiv 2401.10774): a residual block for each token ahead.

`head_task.py` imports it in the tools' environment; it needs torch, and nothing of edgespec. The
functions and shapes are those of a network in `objective.py`. All heads share one output matrix,
which begins as the target's: with one for each they would be larger than a small target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional

Weights = dict[str, Any]
"""I.linear.weight [d, d] and I.linear.bias [d] of each head, and lm_head.weight [V', d]."""

OUTPUT = "lm_head.weight"


class Sizes(NamedTuple):
    """The sizes of Medusa heads. n_ahead: the tokens that they draft."""

    hidden_size: int
    n_drafted: int
    n_ahead: int


def initial(sizes: Sizes, start: Mapping[str, Any], scale: Any, seed: int = 0) -> Weights:
    """Return the weights from which training starts.

    start: the tensors of an earlier checkpoint; without one, all heads begin with what the target
    itself guesses, and its output matrix is there as lm_head.weight. scale, seed: not used.
    """
    d, output = sizes.hidden_size, start.get("0.1.weight", start["lm_head.weight"])
    weights = {"lm_head.weight": output.float().clone()}
    for i in range(sizes.n_ahead):
        for part, shape in (("weight", (d, d)), ("bias", (d,))):
            given = start.get(f"{i}.0.linear.{part}")
            weights[f"{i}.linear.{part}"] = torch.zeros(shape) if given is None else given.clone()
    return weights


def unroll(
    weights: Weights, sizes: Sizes, embedding: Any, batch: Any, n_steps: int
) -> Iterator[Any]:
    """Yield the states of each head, [B, n - first, d]. embedding: not used."""
    last = batch.last[:, batch.first :]
    for i in range(min(n_steps, sizes.n_ahead)):
        block = (weights[f"{i}.linear.{part}"] for part in ("weight", "bias"))
        yield last + functional.silu(functional.linear(last, *block))


def exported(weights: Weights, sizes: Sizes, scale: Any, embedding: Any) -> Weights:
    """Return the tensors of a checkpoint, in Medusa's names."""
    tensors = {}
    for i in range(sizes.n_ahead):
        for part in ("weight", "bias"):
            tensors[f"{i}.0.linear.{part}"] = weights[f"{i}.linear.{part}"]
        tensors[f"{i}.1.weight"] = weights["lm_head.weight"].clone()  # a file shares no tensors
    return tensors
