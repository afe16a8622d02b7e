"""How nearly a target chose the other token where two texts of the same request part."""

from __future__ import annotations

import numpy as np

from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import Distribution

NOISE = 0.5  # logits of SmolLM2 differ by less between evaluations of different widths


def parting(model, prompt, sampling, one, other):
    """Return by how many logits the target prefers one of two tokens where two texts part, with the
    noise that the seed adds; 0 if they do not part.
    """
    i = next((i for i, pair in enumerate(zip(one, other, strict=False)) if len({*pair}) > 1), None)
    if i is None:
        return abs(len(one) - len(other)) * np.inf if len(one) != len(other) else 0.0
    model.truncate(0)
    row = model.decode([*prompt, *one[:i]], 1).logits[0]
    gap, both = float(row[one[i]]) - float(row[other[i]]), sorted({one[i], other[i]})
    if sampling.get("temperature"):
        pair = Distribution(both, [0.5, 0.5])
        noise = dict(SeededRandomness(sampling["seed"]).smallest(len(prompt) + i, pair, 2))
        gap -= sampling["temperature"] * np.log(noise[one[i]] / noise[other[i]])
    return abs(gap)
