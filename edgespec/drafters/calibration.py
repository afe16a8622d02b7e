"""The share of guesses that come true, by kind of evidence, learned while it is used."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from .base import Children, Drafter, State

_MOST_KINDS = 4096

Evidence = tuple[int, Hashable, float]
"""A guessed token, the kind of evidence for it, and its prior: the first guess's is a probability,
that of the others a share of what those before leave.
"""


class Calibration:
    """Shares of hits by kind of evidence.

    strength: the prior weighs like so many observations. memory: an observation weighs half after
    about 0.7 * memory later ones of its kind.
    """

    def __init__(self, strength: float = 8, memory: float = 150) -> None:
        self._strength = strength
        self._memory = memory
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

    def probs(self, evidence: Iterable[Evidence], least: float = 0.0) -> list[tuple[int, float]]:
        """Return guesses of one token with their probabilities; few below `least`."""
        probs: list[tuple[int, float]] = []
        left = 1.0
        for token, kind, prior in evidence:
            prob = self.estimate(kind, prior * left if probs else prior)
            probs.append((token, prob))
            left = max(left - prob, 0.02)
            if left < least:
                break
        return probs

    def observe_all(self, evidence: Iterable[Evidence], token: int) -> bool:
        """Learn which guess was right, and return whether it was the first."""
        is_first = False
        for rank, (guess, kind, _) in enumerate(evidence):
            self.observe(kind, guess == token)
            is_first = is_first or (not rank and guess == token)
        return is_first

    def learned(self) -> list[tuple[Hashable, float, float]]:
        """Return (kind, hits, observations) for JSON, of the kinds that were observed most."""
        most_seen = sorted(self._seen.items(), key=lambda entry: -entry[1][1])
        return [(kind, hits, n) for kind, (hits, n) in most_seen[:_MOST_KINDS]]

    def relearn(self, state: Sequence[Sequence[Any]]) -> None:
        """Take what `learned` returned: older than all that is observed from now on.

        Raises ValueError or TypeError for what cannot be, and is then as before.
        """
        seen: dict[Hashable, tuple[float, float]] = {}
        for kind, hits, n in state[:_MOST_KINDS]:
            if not 0 <= hits <= n < math.inf:
                raise ValueError(f"{hits!r:.20} hits of {n!r:.20}")
            share = min(1.0, self._memory / n) if n else 0.0
            seen[_hashable(kind)] = share * hits, share * n
        self._seen = seen


class CalibratedDrafter(Drafter):
    """A lookup that learns how often guesses of each kind come true."""

    def __init__(self) -> None:
        self._calibration = Calibration()

    def evidence(self, state: State) -> Iterable[Evidence]:
        """Return what speaks for tokens after a state, the likeliest first."""
        return ()

    def children(self, state: State, least: float = 0.0) -> Children:
        """Return what may follow a state, by how often such guesses came true."""
        return self._calibration.probs(self.evidence(state), least)

    def learned(self) -> dict[str, Any]:
        """Return the share of right guesses by kind of evidence, as Learns has it."""
        return {self.name: self._calibration.learned()}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned."""
        self._calibration.relearn(state.get(self.name, ()))


def _hashable(kind: Any) -> Hashable:
    """Return a kind of evidence that went through JSON as it was: lists were tuples."""
    if isinstance(kind, list | tuple):
        return tuple(map(_hashable, kind))
    hash(kind)
    return kind  # type: ignore[no-any-return]
