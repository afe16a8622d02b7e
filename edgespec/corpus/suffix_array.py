"""A suffix array: an index that finds the last tokens of a context in a long text.

It takes eight bytes a token. The automaton in drafters.automaton can grow with a conversation but
takes hundreds of bytes a token. A suffix array (Manber and Myers 1993) is made once and can stay on
disk, mapped into memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

SEPARATOR = -1  # follows every text: no match goes beyond it
LARGEST = (1 << 20) - 2  # largest token id: with 1 added it has _BITS bits
MIN_MATCH = 3  # fewest tokens of a match
_DEPTH = 16  # number of tokens by which places are sorted
_LENGTHS = (MIN_MATCH, 4, 5, 6, 8, 11, _DEPTH)  # the lengths of matches that are tried
_CHUNK = 1 << 20  # most places sorted at once, unless more begin with the same token
_BITS = 20  # bits of a token in a sorting key
_SAMPLE = 64  # most places that are counted if more match


class Match(NamedTuple):
    """A range low … high - 1 of a suffix array: places that begin with the same `length` tokens."""

    low: int = 0
    high: int = 0
    length: int = 0


NO_MATCH = Match()


class SuffixArray:
    """All places (token positions) of a text, sorted by the tokens that begin there.

    tokens: int32 [n], ids and SEPARATOR; the last one is SEPARATOR. order: int32 [n], from
    `suffix_order`. Both may be read-only and mapped from a file; wrong values in the file cause
    wrong guesses but no errors.
    """

    def __init__(self, tokens: np.ndarray, order: np.ndarray) -> None:
        self._n = len(tokens)
        # plain ints are read faster from memory views than from arrays
        self._tokens: Any = np.ascontiguousarray(tokens, np.int32).data
        self._order: Any = np.ascontiguousarray(order, np.int32).data

    def __len__(self) -> int:
        return self._n

    def texts(self) -> list[np.ndarray]:
        """Return the tokens of each text between separators, without empty ones."""
        tokens = np.asarray(self._tokens)
        texts = np.split(tokens, np.flatnonzero(tokens == SEPARATOR))
        return [each[each != SEPARATOR] for each in texts if (each != SEPARATOR).any()]

    def find(self, ending: Sequence[int], most: int = _DEPTH) -> Match:
        """Return the places of the longest end of `ending` that occurs in the text, else NO_MATCH.

        Only ends of 3, 4, 5, 6, 8, 11 and 16 tokens are tried, and none longer than `most`.
        """
        longest = NO_MATCH
        lengths = [length for length in _LENGTHS if length <= min(most, len(ending))]
        least, end = 0, len(lengths)
        while least < end:
            middle = (least + end) // 2
            wanted = list(ending[len(ending) - lengths[middle] :])
            if match := self._places(wanted):
                longest, least = match, middle + 1
            else:
                end = middle
        return longest

    def narrow(self, match: Match, token: int) -> Match:
        """Return the places of a match at which `token` follows; NO_MATCH if there are none."""
        low, high, length = match
        if low == high:
            return NO_MATCH
        if length >= _DEPTH:
            low = high - 1  # beyond _DEPTH tokens they are not sorted: take the latest
        if high - low > 1:
            tokens, order, n = self._tokens, self._order, self._n

            def following(start: int) -> Any:
                return tokens[(start + length) % n]

            low = bisect_left(order, token, low, high, key=following)
            high = bisect_left(order, token + 1, low, high, key=following)
        elif self._following(low, length) != token:
            return NO_MATCH
        return Match(low, high, length + 1) if low < high else NO_MATCH

    def continuations(
        self, match: Match, limit: int | None = None
    ) -> list[tuple[int, int, int]]:  # fmt: skip
        """Return the tokens that follow a match, at most `limit` if it is given, the most frequent
        first, as triples (token, hits, times): the token follows at `hits` of `times` places. If
        there are many places, only a sample of them is counted.
        """
        low, high, length = match
        if low == high:
            return []
        if high - low == 1 or length >= _DEPTH:
            token = self._following(high - 1, length)
            return [] if token == SEPARATOR else [(token, 1, 1)]
        step = -(-(high - low) // _SAMPLE)
        places = range(low, high, step)
        counts = Counter([self._following(place, length) for place in places])
        del counts[SEPARATOR]
        return [(token, hits, len(places)) for token, hits in counts.most_common(limit)]

    def _places(self, wanted: list[int]) -> Match | None:
        """Return the places at which all these tokens occur, None if there are none."""
        tokens, length = self._tokens, len(wanted)

        def standing(start: int) -> Any:
            return tokens[start : start + length].tolist()

        low = bisect_left(self._order, wanted, key=standing)
        if low == self._n or standing(self._order[low]) != wanted:
            return None
        after = [*wanted[:-1], wanted[-1] + 1]
        return Match(low, bisect_left(self._order, after, low, key=standing), length)

    def _following(self, place: int, length: int) -> Any:
        return self._tokens[(self._order[place] + length) % self._n]


def indexed(texts: Sequence[np.ndarray]) -> SuffixArray:
    """Return a suffix array of `texts`, which are int32 arrays of token ids."""
    end = np.array([SEPARATOR], np.int32)
    tokens = np.concatenate([part for text in texts for part in (text, end)] or [end])
    return SuffixArray(tokens, suffix_order(tokens))


def suffix_order(tokens: np.ndarray) -> np.ndarray:
    """Return the places of a text, int32 [n], sorted by the 16 tokens that begin at each place.
    Places with equal tokens stay in the order of the text.

    tokens: int32 [n]. Sorting takes about 100 MB of additional memory, however long the text is.
    Raises ValueError for ids above LARGEST.
    """
    if len(tokens) and not SEPARATOR <= tokens.min() <= tokens.max() <= LARGEST:
        raise ValueError(f"a token id is not in -1 … {LARGEST}")
    order = np.empty(len(tokens), np.int32)
    ends = np.cumsum(np.bincount(tokens + 1))  # number of places with this token or a smaller one
    done = first = 0
    while done < len(tokens):
        last = max(first + 1, int(np.searchsorted(ends, done + _CHUNK, side="right")))
        places = np.flatnonzero((tokens >= first - 1) & (tokens < last - 1)).astype(np.int32)
        order[done : done + len(places)] = _sorted(tokens, places)
        done, first = done + len(places), last
    return order


def _sorted(tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Sort places by two tokens at a time; only places that are still equal are sorted further."""
    alike = np.arange(len(places))  # indices into `places` of those that are equal, by group
    group = np.zeros(len(places), np.int64)
    for depth in range(0, _DEPTH, 2):
        if not len(alike):
            break
        keys = group << 2 * _BITS
        keys |= _at(tokens, places[alike] + depth) << _BITS
        keys |= _at(tokens, places[alike] + depth + 1)
        by_key = np.argsort(keys)
        places[alike] = places[alike[by_key]]
        keys = keys[by_key]
        same = keys[1:] == keys[:-1]
        begins = np.concatenate([[True], ~same])
        several = ~begins | np.concatenate([same, [False]])
        alike, group = alike[several], np.cumsum(begins & several)[several] - 1
    by_place = np.argsort(group << 32 | places[alike])
    places[alike] = places[alike[by_place]]
    return places


def _at(tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return token id + 1 for each place; 0 means SEPARATOR, or a place beyond the end."""
    inside = places < len(tokens)
    values = tokens[np.where(inside, places, 0)].astype(np.int64) + 1
    return np.where(inside, values, 0)
