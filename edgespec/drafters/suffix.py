"""Prompt lookup: guess the tokens that followed earlier occurrences of the text's longest ending.

The counts of a suffix automaton say how often each token followed, as in SuffixDecoding (arXiv
2411.04975). Tokens that only followed shorter endings are guessed as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..sampling.base import Request
from ..types import Verified
from . import register
from .automaton import SuffixAutomaton, read
from .base import DrafterContext, Role
from .matches import MOST, Match, MatchDrafter

_SHORTER = 2  # number of shorter endings that are looked at
_PREDICTED = 0.3  # share of a new answer assumed to be predicted

State = tuple[int, int]
"""A state of the automaton, and the length of the ending that is matched."""


class SuffixDrafter(MatchDrafter):
    """Guesses the tokens that followed earlier occurrences of the text's ending.

    min_match: the length of the shortest ending that is matched, in tokens.
    """

    name = "suffix"

    def __init__(self, min_match: int = 2) -> None:
        super().__init__()
        self._min_match = min_match
        self._automaton = SuffixAutomaton()

    def begin(self, request: Request, role: Role) -> None:
        """Begin a request: read the conversation, or only its new part."""
        self._automaton = read(request, self._automaton)
        self._predicted = _PREDICTED

    def root(self) -> State:
        """Return the longest ending that occurred before."""
        return self._automaton.suffix()

    def step(self, state: State, token: int) -> State:
        """Return the longest known ending of the match with `token` appended."""
        return self._automaton.step(*state, token)

    def accept(self, verified: Verified) -> None:
        """Read the emitted tokens, and learn which guesses were right."""
        for token in verified.tokens:
            self._learn(self.root(), token)
            self._automaton.append(token)

    def matches(self, state: State) -> Iterator[Match]:
        """Yield the longest ending, then shorter ones, each of which occurred in more places."""
        for _ in range(1 + _SHORTER):
            if state[1] < self._min_match:
                return
            yield Match(state[1], self._automaton.continuations(state[0], MOST))
            state = self._automaton.shorter(state[0])


@register("suffix", "prompt lookup", aliases=("ngram",), automatic=True)
def make(context: DrafterContext) -> SuffixDrafter:
    """Make the drafter of method "suffix"."""
    target = context.target
    free = target is not None and target.capabilities.min_tokens > 1  # one token is drafted free
    return SuffixDrafter(context.config.prompt_lookup_min or (1 if free else 2))
