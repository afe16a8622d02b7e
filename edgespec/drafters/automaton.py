"""An online suffix automaton, which knows every substring of a growing text.

It was described by Blumer et al. in 1985, and used for drafting by SAM decoding (arXiv 2411.10666).
The suffix link of the newest state leads to the text's longest ending that occurred before. Each
state counts how often its substrings occurred.
"""

from __future__ import annotations

from ..cache.token_cache import common_prefix
from ..sampling.base import Request

SEPARATOR = -1  # separates texts that do not follow each other; never drafted
_OPENING = 32  # last tokens of the prompt that are put before a prediction
_COUNTED = 64  # endings counted per token; only periodic text has more


class SuffixAutomaton:
    """An automaton that knows every substring of a growing text.

    Its states are kept in parallel lists, with one entry per state: the length of its longest
    substring, its suffix link, its transitions, the number of its occurrences, and the end position
    of the latest one. `suffix()` finds earlier occurrences only, never the end of the text itself.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._length = [0]
        self._link = [-1]
        self._next: list[dict[int, int]] = [{}]
        self._count = [0]
        self._end = [-1]
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
        """Return (state, length) of the longest ending that occurred before; length is 0 if none
        did.
        """
        state = self._link[self._last] if self._last else 0
        return state, self._length[state]

    def step(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Return (state, length) of the longest known ending of a match with `token` appended."""
        while state > 0 and token not in self._next[state]:
            state = self._link[state]
            length = self._length[state]
        after = self._next[state].get(token)
        return (0, 0) if after is None else (after, length + 1)

    def continuations(self, state: int, limit: int) -> list[tuple[int, int, int]]:
        """Return up to `limit` tokens that followed a state, each as (token, hits, times).

        The token followed `hits` times out of `times`. The latest token comes first, then the most
        frequent ones.
        """
        newest = len(self.tokens) - 1
        times = max(1, self._count[state] - (self._end[state] == newest))
        if len(self._next[state]) == 1:
            ((token, after),) = self._next[state].items()
            return (
                []
                if token == SEPARATOR
                else [(token, max(1, min(self._count[after], times)), times)]
            )
        entries = sorted(
            (-self._count[after], -self._end[after], token)
            for token, after in self._next[state].items()
            if token != SEPARATOR
        )
        if entries:
            latest = min(entries, key=lambda entry: entry[1])
            entries.remove(latest)
            entries.insert(0, latest)
        return [(token, max(1, min(-count, times)), times) for count, _, token in entries[:limit]]

    def shorter(self, state: int) -> tuple[int, int]:
        """Follow the suffix link: return (state, length) of the longest shorter ending that
        occurred in more places than this state's text.
        """
        link = max(self._link[state], 0)
        return link, self._length[link]

    def _count_newest(self) -> None:
        state, end = self._last, len(self.tokens) - 1
        for _ in range(_COUNTED):
            if state <= 0:
                break
            self._count[state] += 1
            self._end[state] = end
            state = self._link[state]

    def _split(self, walk: int, token: int) -> int:
        """Return the state whose longest text is the one of `walk` plus `token`.

        If that text shares its state with longer texts, a new state is split off for it.
        """
        target = self._next[walk][token]
        if self._length[walk] + 1 == self._length[target]:
            return target
        clone = self._new_state(self._length[walk] + 1, dict(self._next[target]))
        self._link[clone], self._link[target] = self._link[target], clone
        for facts in (self._count, self._end):
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
        return len(self._length) - 1


def read(request: Request, automaton: SuffixAutomaton) -> SuffixAutomaton:
    """Return an automaton that has read a request's conversation.

    It is `automaton` itself if that has read a beginning of the conversation, else a new one.
    """
    text = _text(request)
    known = len(automaton.tokens)
    if common_prefix(automaton.tokens, text) < known:
        automaton, known = SuffixAutomaton(), 0
    for token in text[known:]:
        automaton.append(token)
    return automaton


def _text(request: Request) -> list[int]:
    """Return the tokens that are known before the answer, with SEPARATOR between the parts.

    The parts are the texts of the conversation that are no longer in the prompt, the last tokens of
    the prompt followed by the prediction, and the prompt.
    """
    earlier = [*request.earlier, SEPARATOR] if request.earlier else []
    opening = request.prompt[-_OPENING:] if request.prediction else ()
    predicted = [*opening, *request.prediction, SEPARATOR] if request.prediction else []
    return [*earlier, *predicted, *request.prompt]
