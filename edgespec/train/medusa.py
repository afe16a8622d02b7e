"""Medusa heads in torch (arXiv 2401.10774): a residual block for each token ahead.

The functions and shapes are those of a network in `objective.py`. All heads share one output
matrix, which begins as the target's: with one for each they would be larger than a small target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional

from .sizes import SHAPES, Sizes

Weights = dict[str, Any]
OUTPUT = "lm_head.weight"


def initial(sizes: Sizes, start: Mapping[str, Any], scale: Any, seed: int = 0) -> Weights:
    """Return the weights from which training starts.

    start: the tensors of an earlier checkpoint; without one, all heads begin with what the target
    itself guesses, and its output matrix is there as lm_head.weight. scale, seed: not used.
    """
    named = {OUTPUT: start.get("0.1.weight", start[OUTPUT]).float()}
    named |= {name.replace(".0.", "."): each for name, each in start.items() if ".0." in name}
    shapes = SHAPES["medusa"](sizes).items()
    return {name: named.get(name, torch.zeros(shape)).clone() for name, shape in shapes}


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
