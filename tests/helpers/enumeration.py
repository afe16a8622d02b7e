"""Exact laws of random programs: every outcome of every choice, weighted, none sampled."""

from __future__ import annotations

import copy
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from edgespec.types import Distribution


class Branching:
    """Randomness that replays a list of choices and takes the first option after its end."""

    def __init__(self, path: list[int]) -> None:
        self.path = path
        self.widths: list[int] = []
        self._weight = 1.0
        self._streams: list[Branching] = []
        self._drawn: dict[int, list[tuple[Distribution, int]]] = {}

    @property
    def weight(self) -> float:
        """The probability of the choices so far, with those of streams beside it."""
        return math.prod([self._weight, *[other._weight for other in self._streams]])

    def _choose(self, weights: Sequence[float]) -> int:
        options = [i for i, w in enumerate(weights) if w > 0]
        at = len(self.widths)
        if at == len(self.path):
            self.path.append(0)
        self.widths.append(len(options))
        picked = options[self.path[at]]
        self._weight *= weights[picked]
        return picked

    def bernoulli(self, probability: float) -> bool:
        assert -1e-12 <= probability <= 1 + 1e-12, probability
        probability = min(1.0, max(0.0, probability))
        return self._choose([1 - probability, probability]) == 1

    def draw(self, distribution: Distribution) -> int:
        assert abs(sum(distribution.probs) - 1) < 1e-12
        return int(distribution.ids[self._choose(list(distribution.probs))])

    def beside(self) -> Branching:
        """Return the randomness of another stream in the same run: it goes on with the same list of
        choices, but the noise of positions is its own.
        """
        other = copy.copy(self)
        other._drawn = {}
        self._streams.append(other)
        return other

    def gumbel(self, position: int, distribution: Distribution) -> int:
        """Draw with the noise of a position, by the exact law.

        The first draw there has the law of its distribution; the second one has the exact
        conditional law, given the token of the first with the same noise.
        """
        earlier = self._drawn.setdefault(position, [])
        for other, winner in earlier:
            if np.array_equal(other.ids, distribution.ids) and np.array_equal(
                other.probs, distribution.probs
            ):
                return winner
        if not earlier:
            weights = list(distribution.probs)
        else:
            assert len(earlier) == 1, "only two laws a position can be enumerated"
            first, winner = earlier[0]
            joint = [gumbel_law(first, winner, distribution, int(b)) for b in distribution.ids]
            weights = (np.array(joint) / sum(joint)).tolist()
        token = int(distribution.ids[self._choose(weights)])
        earlier.append((distribution, token))
        return token


def law(run: Callable[[Branching], Hashable]) -> dict[Hashable, float]:
    """Return the exact law of what `run` returns."""
    found: dict[Hashable, float] = defaultdict(float)
    path: list[int] = []
    while True:
        chance = Branching(path)
        found[run(chance)] += chance.weight
        while path and path[-1] + 1 == chance.widths[len(path) - 1]:
            path.pop()
        if not path:
            return dict(found)
        path[-1] += 1


def total_variation(a: dict[Hashable, float], b: dict[Hashable, float]) -> float:
    return 0.5 * sum(abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in a.keys() | b.keys())


def gumbel_law(q: Distribution, a: int, p: Distribution, b: int) -> float:
    """P(argmin E/q = a and argmin E/p = b) for the same E_t ~ Exp(1), by integration.

    With s = E_a and r = E_b / E_a every other clock must exceed s * max(q_j/q_a, r p_j/p_b);
    integrating s out leaves a sum of ∫ dr / (c + d r)^2 over the pieces of that maximum.
    """
    ids = sorted(set(q.ids) | set(p.ids))
    qa, pb = q.prob(a), p.prob(b)
    if qa == 0 or pb == 0:
        return 0.0
    others = [j for j in ids if j not in (a, b)]
    if a == b:
        rate = 1 + sum(max(q.prob(j) / qa, p.prob(j) / pb) for j in others)
        return 1 / rate
    low = q.prob(b) / qa
    high = pb / p.prob(a) if p.prob(a) > 0 else np.inf
    if low >= high:
        return 0.0
    lines = [(q.prob(j) / qa, p.prob(j) / pb) for j in others]
    cuts = sorted({c / d for c, d in lines if d > 0 and low < c / d < high})
    total, edges = 0.0, [low, *cuts, high]
    for left, right in itertools.pairwise(edges):
        middle = (left + right) / 2 if right < np.inf else left + 1
        c = 1 + sum(c for c, d in lines if c >= d * middle)
        d = 1 + sum(d for c, d in lines if c < d * middle)
        upper = 0.0 if right == np.inf else 1 / (c + d * right)
        total += (1 / (c + d * left) - upper) / d
    return float(total)


V = 3


def random_rows(seed: int, zeros: bool) -> dict[tuple[int, ...], Distribution]:
    """Return a distribution for every context of up to 4 tokens; some tokens are impossible."""
    rng = np.random.default_rng(seed)
    rows = {}
    for n in range(5):
        for context in itertools.product(range(V), repeat=n):
            probs = rng.dirichlet(np.full(V, 0.7))
            if zeros and rng.random() < 0.6:
                probs[rng.integers(V)] = 0
                probs /= probs.sum()
            keep = np.flatnonzero(probs) if rng.random() < 0.5 else np.arange(V)
            rows[context] = Distribution(keep, probs[keep] / probs[keep].sum())
    return rows


def plain_law(p, length):
    def run(chance):
        tokens = ()
        for _ in range(length):
            tokens += (chance.draw(p[tokens]),)
        return tokens

    return law(run)


def complete(chance, p, tokens, length):
    """Go on with the target alone from what a step emitted; noise is fresh at each position."""
    tokens = tuple(tokens)
    while len(tokens) < length:
        tokens += (chance.draw(p[tokens]),)
    return tokens[:length]
