"""Token recycling: what was likely behind each token the last time, whatever came of it.

Token recycling (Luo et al. 2024, arXiv 2408.08696), fed by the rows of emitted tokens.
"""

from __future__ import annotations

import bisect
import itertools
import math

from ..sampling.base import Request
from ..sampling.sampler import candidates
from ..types import Verified
from . import register
from .base import DrafterContext
from .calibration import Calibration
from .runner_ups import RunnerUpBranches
from .suffix_tree import SuffixBranches
from .trees import Branches, TreeDrafter, max_leaves

_N_TOP = 6
_LIKELY = (-4.0, -2.5, -1.5, -0.7, -0.01)  # logits below the largest: classes of guesses
_PRIORS = (0.3, 0.1)  # acceptance probability of the first guess and of others, nothing known yet
_MOST = 8192  # tokens whose successors are remembered: a few MB

Guess = tuple[int, tuple[int, int]]
"""A token and its class: rank, and how near it was to the largest."""


class RecyclingBranches:
    """The likeliest successors of each token, as in the last row behind it, kept over requests."""

    def __init__(self) -> None:
        self._calibration = Calibration()
        self._after: dict[int, list[Guess]] = {}  # what was seen least recently goes first
        self._last = -1
        self._least: float | None = None  # a guess, to look at few logits

    def begin(self, request: Request) -> None:
        """Begin behind the prompt's last token."""
        self._last = request.prompt[-1]

    def root(self) -> int:
        """Return the last token."""
        return self._last

    def step(self, state: int, token: int) -> int:
        """Return the token: nothing before it matters."""
        return token

    def children(self, state: int) -> list[tuple[int, float]]:
        """Return its likeliest successors."""
        return [
            (token, self._calibration.estimate(kind, _PRIORS[kind[0] > 0]))
            for token, kind in self._after.get(state, ())
        ]

    def accept(self, verified: Verified) -> None:
        """Learn which guesses were right, and take the new ones."""
        for token, row in itertools.zip_longest(verified.tokens, verified.rows):
            for guess, kind in self._after.get(self._last, ()):
                self._calibration.observe(kind, guess == token)
            if row is not None:
                ids, logits, self._least = candidates(row, _N_TOP, self._least)
                below = [logit - logits[0] for logit in logits if math.isfinite(logit)]
                self._after.pop(self._last, None)
                self._after[self._last] = [
                    (guess, (rank, bisect.bisect(_LIKELY, how)))
                    for rank, (guess, how) in enumerate(zip(ids, below, strict=False))
                ]
            self._last = token
        while len(self._after) > _MOST:
            del self._after[next(iter(self._after))]


@register("recycling", "prompt lookup, what was nearly said and what followed, as a tree")
def make(context: DrafterContext) -> TreeDrafter:
    """Make the drafter of method "recycling"."""
    _, p_min = context.config.fixed or (0, 0.0)
    lookup = SuffixBranches(context.config.prompt_lookup_min or 2)
    sources: list[Branches] = [lookup, RunnerUpBranches(), RecyclingBranches()]
    return TreeDrafter("recycling", sources, max_leaves(context), p_min)
