"""Prompt lookup as a tree: all that followed the longest endings that were seen before.

The counts of the automaton say how often each token followed, as in SuffixDecoding (arXiv
2411.04975); tokens that followed shorter endings only are guessed besides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..sampling.base import Request
from ..types import Verified
from . import register
from .base import DrafterContext
from .calibration import Calibration
from .suffix import SuffixAutomaton, assumed, kind_of, read
from .trees import TreeDrafter, max_leaves

_MOST = 4  # guesses behind one text
_SHORTER = 2  # shorter endings that are looked at
_OTHERS = 0.2  # share of what the guesses before a token leave to it, where nothing is known yet

State = tuple[int, int]
"""A state of the automaton, and the length of the ending that is matched."""


class SuffixBranches:
    """Guesses from what followed the text's ending before.

    min_match: shortest ending, in tokens.
    """

    def __init__(self, min_match: int = 2) -> None:
        self._min_match = min_match
        self._automaton = SuffixAutomaton()
        self._calibration = Calibration()
        self._predicted = 0.3  # share of the answer's last tokens that were the first guess

    def begin(self, request: Request) -> None:
        """Read the conversation, or only what is new of it."""
        self._automaton = read(request, self._automaton)
        self._predicted = 0.3

    def root(self) -> State:
        """Return the longest ending that occurred before."""
        return self._automaton.suffix()

    def step(self, state: State, token: int) -> State:
        """Return the longest ending of a match and one more token."""
        return self._automaton.step(*state, token)

    def children(self, state: State) -> list[tuple[int, float]]:
        """Return what followed, the most frequent after the longest ending first."""
        found: list[tuple[int, float]] = []
        left = 1.0
        for token, kind, prior in self._guesses(state):
            prob = self._calibration.estimate(kind, prior * left if found else prior)
            found.append((token, prob))
            left = max(left - prob, 0.02)
        return found

    def accept(self, verified: Verified) -> None:
        """Read the emitted tokens, and learn which of the guesses were right."""
        for token in verified.tokens:
            hit = False
            for rank, (guess, kind, _) in enumerate(self._guesses(self.root())):
                self._calibration.observe(kind, guess == token)
                hit = hit or (not rank and guess == token)
            self._predicted += (hit - self._predicted) / 20
            self._automaton.append(token)

    def _guesses(self, state: State) -> Iterator[tuple[int, object, float]]:
        """Yield (token, class of its evidence, prior): the first guess's prior is a probability,
        that of the others a share of what is left.
        """
        known: set[int] = set()
        longest = state[1]
        for _ in range(1 + _SHORTER):
            if state[1] < self._min_match:
                return
            for token, hits, times in self._automaton.continuations(state[0], _MOST):
                if token in known:
                    continue
                if len(known) == _MOST:
                    return
                evidence = kind_of(state[1], hits, times, self._predicted)
                if not known:
                    yield token, evidence, assumed(state[1], hits, times, self._predicted)
                else:
                    prior = _OTHERS * hits / times
                    yield token, (*evidence, len(known), state[1] < longest), prior
                known.add(token)
            state = self._automaton.shorter(state[0])

    def learned(self) -> dict[str, Any]:
        """Return the share of right guesses by kind of evidence, as Learns has it."""
        return {"suffix_tree": self._calibration.learned()}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned."""
        self._calibration.relearn(state.get("suffix_tree", ()))


@register("suffix_tree", "prompt lookup, as a tree")
def make(context: DrafterContext) -> TreeDrafter:
    """Make the drafter of method "suffix_tree"."""
    _, p_min = context.config.fixed or (0, 0.0)
    branches = SuffixBranches(context.config.prompt_lookup_min or 2)
    return TreeDrafter("suffix_tree", [branches], max_leaves(context), p_min)
