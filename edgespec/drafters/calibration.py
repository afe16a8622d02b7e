"""The share of guesses that come true, by kind of evidence, learned while it is used."""

from __future__ import annotations

from collections.abc import Hashable


class Calibration:
    """Shares of hits by kind of evidence.

    strength: the prior weighs like so many observations. memory: an observation weighs half after
    about 0.7 * memory later ones of its kind.
    """

    def __init__(self, strength: float = 8, memory: float = 150) -> None:
        self._strength = strength
        self._keep = 1 - 1 / memory
        self._seen: dict[Hashable, tuple[float, float]] = {}

    def estimate(self, kind: Hashable, prior: float) -> float:
        """Return the probability of a hit; `prior` is that of a kind never observed."""
        hits, n = self._seen.get(kind, (0.0, 0.0))
        return (prior * self._strength + hits) / (self._strength + n)

    def observe(self, kind: Hashable, hit: bool) -> None:
        """Learn from one outcome."""
        hits, n = self._seen.get(kind, (0.0, 0.0))
        self._seen[kind] = self._keep * hits + hit, self._keep * n + 1
