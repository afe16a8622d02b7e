"""Keyed randomness with distributions at the edges of what floats can hold."""

from __future__ import annotations

import numpy as np

from edgespec.sampling.base import Distribution
from edgespec.sampling.randomness import SeededRandomness


def test_probabilities_too_small_to_divide_by():
    """A temperature of 0.01 leaves probabilities such as 1e-310; warnings are errors here."""
    probs = np.array([5e-324, 1.0, 1e-310, 0.0])
    randomness = SeededRandomness(1)
    for whole in (Distribution(np.arange(4), probs), Distribution([0, 1, 2, 3], probs.tolist())):
        for position in range(50):
            assert randomness.gumbel(position, whole) == 1
            assert randomness.smallest(position, whole, 4)[0][0] == 1
