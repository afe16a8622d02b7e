"""Pauses of a head that is not worth its cost: it drafts nothing, and gets no hidden states."""

from __future__ import annotations

_PATIENCE = 32  # steps: a head that was not used in the first ones of an answer is paused
_LOST = -1.0  # tokens won in an answer, minus the cost of states: below this a head is paused, too
_ANSWERS = 8  # answers for which a head is paused
_LATEST = 0.25  # weight of the latest answer in the mean of what the head wins


class Rest:
    """Decides when a head is paused, and for how long.

    A head that was not used in the first steps of an answer is paused until the answer ends. If it
    has not won anything in earlier answers, it is paused in the next ones as well. can_act: True
    while it is not paused, so that the target gives it hidden states.
    """

    can_act = False

    def __init__(self) -> None:
        self._answers = 0  # answers for which the head is still paused
        self._won = 0.0  # tokens won in this answer, minus those that its states have cost
        self._usual = 0.0  # tokens that the head has won per answer lately
        self._n_unused: int | None = 0  # steps of this answer without it; None once it has drafted

    def begin(self) -> bool:
        """Begin an answer; return True if the head drafts nothing during it."""
        if not self._answers:  # it was not paused from the start of the last answer
            self._usual += _LATEST * (self._won - self._usual)
            if self._won < _LOST and self._usual < 0:
                self._answers = _ANSWERS + 1
        self._answers = max(0, self._answers - 1)
        self._won, self._n_unused = 0.0, 0
        return self._answers > 0

    def count(self, won: float, drafted: bool) -> bool:
        """Count a step in which the head won `won` tokens. Return True if it is paused from now on,
        which means that it drafts nothing.
        """
        if not self.can_act:
            return False
        self._won += won
        if drafted:
            self._n_unused = None
        elif self._n_unused is not None:
            self._n_unused += 1
            if self._n_unused == _PATIENCE:
                self._answers = 1 if self._usual > 0 else _ANSWERS
                return True
        return False
