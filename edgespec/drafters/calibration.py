"""The share of guesses that come true for each kind of evidence, learned during use."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from .base import Children, Drafter, State

_MOST_KINDS = 4096

Evidence = tuple[int, Hashable, float]
"""A guessed token, the kind of evidence for it, and its prior.

The prior of the first guess is a probability. The prior of a later guess is a share of the
probability that the guesses before it leave.
"""


class Calibration:
    """Shares of hits by kind of evidence.

    strength: the prior weighs as much as this number of observations. memory: an observation weighs
    half as much after about 0.7 * memory later ones of its kind.
    """

    def __init__(self, strength: float = 8, memory: float = 150) -> None:
        self._strength = strength
        self._memory = memory
        self._seen: dict[Hashable, tuple[float, float]] = {}

    def estimate(self, kind: Hashable, prior: float) -> float:
        """Return the probability of a hit; it is `prior` for a kind that was never observed."""
        hits, n = self._seen.get(kind, (0.0, 0.0))
        return (prior * self._strength + hits) / (self._strength + n)

    def observe(self, kind: Hashable, hit: bool, memory: float = 0) -> None:
        """Learn from one outcome. memory: that of this kind, if it differs from the others'."""
        keep = 1 - 1 / (memory or self._memory)
        hits, n = self._seen.get(kind, (0.0, 0.0))
        self._seen[kind] = keep * hits + hit, keep * n + 1

    def probs(self, evidence: Iterable[Evidence], least: float = 0.0) -> list[tuple[int, float]]:
        """Return the guesses for the next token, each with its probability.

        The list ends once its guesses leave a probability below `least` to further ones.
        """
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
        """Learn which guess was right; return True if it was the first one."""
        is_first = False
        for rank, (guess, kind, _) in enumerate(evidence):
            self.observe(kind, guess == token)
            is_first = is_first or (not rank and guess == token)
        return is_first

    def learned(self) -> list[tuple[Hashable, float, float]]:
        """Return (kind, hits, observations) of the most observed kinds, for JSON."""
        most_seen = sorted(self._seen.items(), key=lambda entry: -entry[1][1])
        return [(kind, hits, n) for kind, (hits, n) in most_seen[:_MOST_KINDS]]

    def relearn(self, state: Sequence[Sequence[Any]]) -> None:
        """Take what `learned` returned; it counts as older than all later observations.

        Raises ValueError or TypeError for impossible values; nothing has changed then.
        """
        seen: dict[Hashable, tuple[float, float]] = {}
        for kind, hits, n in state[:_MOST_KINDS]:
            if not 0 <= hits <= n < math.inf:
                raise ValueError(f"{hits!r:.20} hits of {n!r:.20}")
            share = min(1.0, self._memory / n) if n else 0.0
            seen[_hashable(kind)] = share * hits, share * n
        self._seen = seen


class CalibratedDrafter(Drafter):
    """A lookup drafter that learns how often guesses of each kind come true."""

    def __init__(self) -> None:
        self._calibration = Calibration()

    def evidence(self, state: State) -> Iterable[Evidence]:
        """Return the tokens that may follow a state, likeliest first, each with its evidence."""
        return ()

    def children(self, state: State, least: float = 0.0) -> Children:
        """Return the tokens that may follow a state; learned hit rates give the probabilities."""
        return self._calibration.probs(self.evidence(state), least)

    def learned(self) -> dict[str, Any]:
        """Return the share of right guesses by kind of evidence, as in `Learns`."""
        return {self.name: self._calibration.learned()}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned."""
        self._calibration.relearn(state.get(self.name, ()))


def _hashable(kind: Any) -> Hashable:
    """Return a kind of evidence as it was before it went through JSON: lists become tuples."""
    if isinstance(kind, list | tuple):
        return tuple(map(_hashable, kind))
    hash(kind)
    return kind  # type: ignore[no-any-return]
