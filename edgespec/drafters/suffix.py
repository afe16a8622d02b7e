"""Prompt lookup: an online suffix automaton over the text of the conversation so far.

The automaton (Blumer et al. 1985; for drafting: SAM decoding, arXiv 2411.10666) knows every
substring of the text. The suffix link of the newest state is the longest ending that was
seen before; what followed it then is drafted now. Each state counts how often its substrings
occurred, so the drafter can say how sure it is.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

from ..cache.token_cache import common_prefix
from ..sampling.base import Request
from ..types import NO_THRESHOLDS, Draft, DraftEstimate, Thresholds, Verified
from . import register
from .base import DrafterContext
from .calibration import Calibration

SEPARATOR = -1  # between texts that do not follow each other: never drafted
_HOPELESS = 0.02  # on no device does it pay to draft tokens that are accepted this seldom
_COPYING = (0.3, 0.6, 0.85)  # answers in classes, by how much of their end lookup predicted
_COUNTED = 64  # endings counted per token; longer chains occur only in periodic text


class SuffixAutomaton:
    """An automaton that knows every substring of a growing text.

    Its states are parallel lists: length of the longest substring, suffix link, transitions,
    occurrences, end position of the latest occurrence. The newest position is counted when
    the next token comes, so that `suffix()` finds earlier occurrences only.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._length = [0]
        self._link = [-1]
        self._next: list[dict[int, int]] = [{}]
        self._count = [0]
        self._end = [-1]
        self._end_before = [-1]
        self._last = 0

    def append(self, token: int) -> None:
        """Add one token, in amortised O(1)."""
        state, walk = self._new_state(self._length[self._last] + 1, {}), self._last
        while walk != -1 and token not in self._next[walk]:
            self._next[walk][token] = state
            walk = self._link[walk]
        self._link[state] = 0 if walk == -1 else self._split(walk, token)
        self._last = state
        self.tokens.append(token)
        self._count_newest()

    def suffix(self) -> tuple[int, int]:
        """Return (state, length) of the longest ending that occurred before; length 0 if none."""
        state = self._link[self._last] if self._last else 0
        return state, self._length[state]

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Return (state, length) of the longest ending of a match and one more token."""
        while state > 0 and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        after = self._next[state].get(token)
        return (0, 0) if after is None else (after, length + 1)

    def follow(self, state: int, limit: int) -> list[tuple[int, int, int]]:
        """Return up to `limit` (token, hits, times) that followed the latest occurrence of a state.

        The text before it was followed by this token `hits` times out of `times`.
        """
        found: list[tuple[int, int, int]] = []
        newest = len(self.tokens) - 1
        at_end = self._end[state] == newest
        position = (self._end_before if at_end else self._end)[state] + 1
        while len(found) < limit and 0 < position <= newest:
            token = self.tokens[position]
            after = self._next[state].get(token)
            if token == SEPARATOR or after is None:
                break
            followed = self._count[state] - (self._end[state] == newest)  # nothing follows yet
            times = max(1, followed)
            found.append((token, min(self._count[after], times), times))
            state, position = after, position + 1
        return found

    def continuations(self, state: int, limit: int) -> list[tuple[int, int, int]]:
        """Return up to `limit` (token, hits, times) that followed a state, the latest first, then
        the most frequent: `hits` times out of `times`.
        """
        newest = len(self.tokens) - 1
        times = max(1, self._count[state] - (self._end[state] == newest))
        found = sorted(
            (-self._count[after], -self._end[after], token)
            for token, after in self._next[state].items()
            if token != SEPARATOR
        )
        if found:
            latest = min(found, key=lambda entry: entry[1])
            found.remove(latest)
            found.insert(0, latest)
        return [(token, max(1, min(-count, times)), times) for count, _, token in found[:limit]]

    def shorter(self, state: int) -> tuple[int, int]:
        """Return (state, length) of the longest shorter ending that occurred in more places."""
        link = max(self._link[state], 0)
        return link, self._length[link]

    def _count_newest(self) -> None:
        state, end = self._last, len(self.tokens) - 1
        for _ in range(_COUNTED):
            if state <= 0:
                break
            self._count[state] += 1
            self._end_before[state], self._end[state] = self._end[state], end
            state = self._link[state]

    def _split(self, walk: int, token: int) -> int:
        """Return the state of exactly (text of `walk`) + token, split off a longer one."""
        target = self._next[walk][token]
        if self._length[walk] + 1 == self._length[target]:
            return target
        clone = self._new_state(self._length[walk] + 1, dict(self._next[target]))
        self._link[clone], self._link[target] = self._link[target], clone
        for facts in (self._count, self._end, self._end_before):
            facts[clone] = facts[target]
        while walk != -1 and self._next[walk].get(token) == target:
            self._next[walk][token] = clone
            walk = self._link[walk]
        return clone

    def _new_state(self, length: int, transitions: dict[int, int]) -> int:
        self._length.append(length)
        self._link.append(-1)
        self._next.append(transitions)
        self._count.append(0)
        self._end.append(-1)
        self._end_before.append(-1)
        return len(self._length) - 1


class SuffixDrafter:
    """Drafts what followed the longest ending that was seen before.

    min_match: shortest ending, in tokens, to draft from. p_min: the draft ends where its
    estimated acceptance probability falls below this. It is deterministic, so any choice may look
    at it. Every emitted token tells whether it would have been right, drafted or not.
    """

    name = "suffix"

    def __init__(self, min_match: int = 2, p_min: float = 0.0) -> None:
        self._min_match = min_match
        self._p_min = p_min
        self._automaton = SuffixAutomaton()
        self._calibration = Calibration()
        self._n_context = 0
        self._found: tuple[int, list[tuple[int, float]]] | None = None  # (limit, what there was)
        self._predicted = 0.0  # share of the answer's last tokens that lookup would have drafted
        self._streak = 0  # so many of the last tokens, one behind the other

    def begin(self, request: Request) -> None:
        """Read the conversation, or only what is new if it continues what was read before."""
        self._automaton = read(request, self._automaton)
        self._n_context = len(request.prompt)
        self._predicted = 0.3
        self._streak = 0
        self._found = None

    def estimate(self, context: Sequence[int], limit: int) -> DraftEstimate:
        """Return the acceptance probability of each depth; the tokens are known already."""
        probs = tuple(prob for _, prob in self._find(context, limit))
        return DraftEstimate(self.name, probs, n_known=len(probs), streak=self._streak)

    def propose(
        self, context: Sequence[int], limit: int, thresholds: Thresholds = NO_THRESHOLDS
    ) -> Draft:
        """Draft what followed last time; `context` may go on beyond what was accepted."""
        found = self._find(context, limit)
        n = next((i for i, (_, s) in enumerate(found) if not thresholds.keeps(i, s)), len(found))
        prob = found[n - 1][1] if n else 1.0
        return Draft(tuple(token for token, _ in found[:n]), self.name, acceptance_prob=prob)

    def accept(self, verified: Verified) -> None:
        """Read the emitted tokens, and compare them with those that lookup would have drafted."""
        for token in verified.tokens:
            hit = False
            state, length = self._automaton.suffix()
            if length >= self._min_match:
                for expected, hits, times in self._automaton.follow(state, 1):
                    hit = token == expected
                    self._calibration.observe(kind_of(length, hits, times, self._predicted), hit)
            self._predicted += (hit - self._predicted) / 20
            self._streak = self._streak + 1 if hit else 0
            self._automaton.append(token)
        self._n_context += len(verified.tokens)
        self._found = None

    def learned(self) -> dict[str, Any]:
        """Return the share of right guesses by kind of evidence, as Learns has it."""
        return {self.name: self._calibration.learned()}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned."""
        self._calibration.relearn(state.get(self.name, ()))

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def _find(self, context: Sequence[int], limit: int) -> list[tuple[int, float]]:
        """Return token and acceptance probability of each depth."""
        if len(context) > self._n_context:
            return self._look(context, limit)
        if self._found is None or self._found[0] < limit:  # several sources ask at every step
            self._found = limit, self._look(context, limit)
        return self._found[1][:limit]

    def _look(self, context: Sequence[int], limit: int) -> list[tuple[int, float]]:
        state, length = self._automaton.suffix()
        for i in range(self._n_context, len(context)):
            state, length = self._automaton.step(state, length, context[i])
        if length < self._min_match:
            return []
        found, prob = [], 1.0
        for token, hits, times in self._automaton.follow(state, limit):
            kind = kind_of(length, hits, times, self._predicted)
            prior = assumed(length, hits, times, self._predicted)
            prob *= self._calibration.estimate(kind, prior)
            if prob < self._p_min or prob < _HOPELESS:
                break
            found.append((token, prob))
            length += 1
        return found


def read(request: Request, automaton: SuffixAutomaton) -> SuffixAutomaton:
    """Return an automaton that has read a request's conversation: the given one, if it has read the
    beginning of it, else a new one.
    """
    text = [*request.earlier, SEPARATOR, *request.prompt] if request.earlier else request.prompt
    known = len(automaton.tokens)
    if common_prefix(automaton.tokens, text) < known:
        automaton, known = SuffixAutomaton(), 0
    for token in text[known:]:
        automaton.append(token)
    return automaton


def assumed(length: int, hits: int, times: int, predicted: float) -> float:
    """Return the chance that a token is right where nothing is known yet.

    After a match of n tokens that was followed by it `hits` of `times`:
    (hits / times)^2 * (n + times - 1) / (n + times + 0.5). That was read off the greedy answers
    of SmolLM2-135M to 30 Spec-Bench questions: a text seen once went on as before in 55% of
    cases for n = 2, 74% for 4, 83% for 8 to 11 and 90% beyond. It is more in an answer that
    copies much, and less in one that does not.
    """
    evidence = length + times
    chance = (hits / times) ** 2 * (evidence - 1) / (evidence + 0.5)
    copying: float = (max(predicted, 0.02) / (1.02 - predicted) / 1.5) ** 0.3
    odds = chance / (1 - chance) * copying
    return odds / (1 + odds)


def kind_of(length: int, hits: int, times: int, predicted: float) -> tuple[int, int, int]:
    """Return the class of the evidence for a token.

    It consists of the match's length, of how the match was followed before, and of how much of the
    answer is copied.
    """
    classes = (1, 2, 3, 4, 6, 8, 12, 20, 40)
    followed = 3 if hits == times == 1 else 4 * hits // times if hits < times else 4
    return bisect.bisect_left(classes, length), followed, bisect.bisect(_COPYING, predicted)


@register("suffix", "prompt lookup", aliases=("ngram",), automatic=True)
def make(context: DrafterContext) -> SuffixDrafter:
    """Make the drafter of method "suffix"."""
    config, target = context.config, context.target
    free = target is not None and target.capabilities.min_tokens > 1  # a draft of one token is
    _, p_min = config.fixed or (0, 0.0)
    return SuffixDrafter(config.prompt_lookup_min or (1 if free else 2), p_min)
