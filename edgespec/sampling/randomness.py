"""The source of randomness in production: two independent generators, both seeded by the request.

`bernoulli` and `draw` use a sequential generator. `gumbel` is the Gumbel-max trick, in the form of
exponential clocks, with noise keyed by (seed, absolute position, token). The token that it draws
depends only on these and the distribution, so text drawn in this way is the same with and without
speculation. The noise of a position decides at most one emitted token.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
import random
import secrets
from collections.abc import Sequence

import numpy as np

from ..types import Distribution, Probs

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class SeededRandomness:
    """Randomness from a seed, 0 … 2^64 - 1; None picks a random seed, which `seed` then holds."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = secrets.randbits(64) if seed is None else seed
        self._sequential = random.Random(self.seed)

    def bernoulli(self, probability: float) -> bool:
        """Return True with `probability`."""
        return self._sequential.random() < probability

    def draw(self, distribution: Distribution) -> int:
        """Draw a token by inversion of the cumulative distribution."""
        probs = distribution.probs
        few = isinstance(probs, list)
        cumulative = list(itertools.accumulate(probs)) if few else np.cumsum(probs)
        i = bisect.bisect_right(cumulative, self._sequential.random() * cumulative[-1])
        while i == len(cumulative) or probs[i] == 0:
            i -= 1  # rounding put the point at the end: take the last possible token
        return int(distribution.ids[i])

    def gumbel(self, position: int, distribution: Distribution) -> int:
        """Return the token t with the least E_t / p_t; E_t ~ Exp(1), keyed by (seed, position, t).

        The token is distributed as `distribution`: E_t / p_t are exponential clocks with rates p_t,
        and the first to ring wins (Daliri, Musco, Suresh 2024, arXiv 2408.07978).
        """
        ids, probs = distribution.ids, distribution.probs
        if len(ids) == 1:
            return int(ids[0])
        if isinstance(ids, list) and isinstance(probs, list):
            return _gumbel_of_few(self.seed, position, ids, probs)
        return int(ids[int(self._races(position, distribution).argmin())])

    def smallest(
        self, position: int, distribution: Distribution, k: int
    ) -> list[tuple[int, float]]:
        """Return the k tokens with the least E_t / p_t, each with this value, the least first.

        Tokens with probability 0 are left out.
        """
        races = self._races(position, distribution)
        few = races.argpartition(k - 1)[:k] if k < len(races) else np.arange(len(races))
        best = few.take(races.take(few).argsort(kind="stable")).tolist()
        smallest = [(int(distribution.ids[i]), float(races[i])) for i in best]
        return [(token, race) for token, race in smallest if race < math.inf]

    def _races(self, position: int, distribution: Distribution) -> Probs:
        """Return E_t / p_t of each token; infinity for a token with probability 0."""
        clocks = exponentials(self.seed, position, np.asarray(distribution.ids))
        with np.errstate(divide="ignore", over="ignore"):
            races: Probs = clocks / np.asarray(distribution.probs)
        return races


def exponentials(seed: int, position: int, ids: np.ndarray) -> np.ndarray:
    """Return Exp(1) noise for tokens at an absolute position, float64 [len(ids)], never zero.

    It comes from a counter-based generator: SplitMix64's finaliser (Steele, Lea, Flood 2014) is
    applied to (seed, position), then to the token.
    """
    x = ids.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(_key(seed, position))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_MIX_1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_MIX_2)
    x ^= x >> np.uint64(31)
    uniform = ((x >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    result: np.ndarray = -np.log(uniform)
    return result


def _gumbel_of_few(seed: int, position: int, ids: Sequence[int], probs: Sequence[float]) -> int:
    """Draw as `gumbel` does, but without arrays, which would be slower for a few tokens."""
    key = _key(seed, position)
    best, first = ids[0], math.inf
    for token, p in zip(ids, probs, strict=True):
        if p > 0:
            uniform = ((_finish(token * _GOLDEN + key & _MASK) >> 11) + 0.5) * 2.0**-53
            clock = -math.log(uniform) / p
            if clock < first:
                best, first = token, clock
    return best


def _key(seed: int, position: int) -> int:
    return _mix_int(_mix_int(seed ^ 0x5EED) + position * _GOLDEN & _MASK)


def _mix_int(x: int) -> int:
    return _finish((x + _GOLDEN) & _MASK)


def _finish(x: int) -> int:
    x = ((x ^ (x >> 30)) * _MIX_1) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_2) & _MASK
    return x ^ (x >> 31)


def seed_of_choice(seed: int, choice: int) -> int:
    """Return the seed of one of several answers to a request: `seed` itself for choice 0."""
    if not choice:
        return seed
    return int.from_bytes(hashlib.sha256(f"{seed} {choice}".encode()).digest()[:8], "little")
