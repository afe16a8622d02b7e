"""Detection of endless repetition, where an answer repeats the same span again and again."""

from __future__ import annotations

import numpy as np

from ..config import RepetitionDetection


class Repetition:
    """Detects that an answer ends with the same span of tokens again and again.

    For each size of a span it counts how many of the last tokens equal the token one span earlier.
    Each token takes the same work, however long the answer is: a few operations on arrays of
    max_pattern_size numbers. Nothing else of the answer is kept.
    """

    def __init__(self, rule: RepetitionDetection) -> None:
        self._least, self._most = rule.min_pattern_size, rule.max_pattern_size
        sizes = np.arange(self._least, self._most + 1)
        self._needed = np.maximum(sizes * rule.min_count, rule.min_tokens) - sizes
        self._equal = np.zeros_like(sizes)
        self._latest = np.full(2 * self._most + 1, -1)  # a ring stored twice, read as one slice
        self._at = 0

    def take(self, token: int) -> int:
        """Take the next token of an answer; return how many tokens at its end repeat one span.

        Return 0 if they are too few for the rule.
        """
        newest = 1 + self._at + self._most
        self._equal += 1
        self._equal *= self._latest[newest - self._least : newest - self._most - 1 : -1] == token
        self._latest[[1 + self._at, newest]] = token
        self._at = (self._at + 1) % self._most
        enough = self._equal >= self._needed
        if not enough.any():
            return 0
        shortest = int(enough.argmax())
        return int(self._equal[shortest]) + self._least + shortest
