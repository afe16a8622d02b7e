"""Evaluation of whole trees on models that grow trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..sampling.trees import depths_of
from ..types import Abort, Outputs
from .base import Model


def decode_by_levels(
    model: Model, tokens: Sequence[int], parents: Sequence[int], abort: Abort | None
) -> Outputs:
    """Evaluate a tree as `Model.decode_tree` does, by growing it one level at a time."""
    n_before = len(tokens) - len(parents)
    if n_before < 1:
        raise ValueError(f"a tree of {len(parents)} nodes needs a token before it")
    root = model.decode(tokens[:n_before], 1, abort).logits
    rows = np.empty((len(parents) + 1, root.shape[1]), root.dtype)
    rows[0] = root[0]
    depths, numbers = depths_of(parents), {-1: -1}
    for depth in range(1, max(depths, default=0) + 1):
        level = [node for node, at in enumerate(depths) if at == depth]
        above = [numbers[parents[node]] for node in level]
        grown = model.grow([tokens[n_before + node] for node in level], above, abort).logits
        rows[[node + 1 for node in level]] = grown
        for node in level:
            numbers[node] = len(numbers) - 1
    return Outputs(rows)
