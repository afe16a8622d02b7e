"""Resting of a head that is not worth its cost: meanwhile the target gives no hidden states."""

from __future__ import annotations

_PATIENCE = 32  # a head that was not used in the first so many steps of an answer rests
_LOST = -1.0  # a head that has lost more tokens than this in an answer, states included, rests too
_ANSWERS = 8  # for so many answers
_LATEST = 0.25  # weight of the latest answer in what it usually wins


class Rest:
    """Decides when a head rests, and for how long.

    A head that an answer has not used so far rests until the answer ends. It also rests in further
    answers if it has not won anything in those before. can_act: True while it does not rest, so
    that the target gives it hidden states.
    """

    can_act = False

    def __init__(self) -> None:
        self._answers = 0  # answers for which it still rests
        self._won = 0.0  # tokens won in this answer, minus those that its states have cost
        self._usual = 0.0  # tokens that it has won per answer lately
        self._n_unused: int | None = 0  # steps of this answer without it; None once it has drafted

    def begin(self) -> bool:
        """Begin an answer; return True if the head drafts nothing during it."""
        if not self._answers:  # it acted in the last one
            self._usual += _LATEST * (self._won - self._usual)
            if self._won < _LOST and self._usual < 0:
                self._answers = _ANSWERS + 1
        self._answers = max(0, self._answers - 1)
        self._won, self._n_unused = 0.0, 0
        return self._answers > 0

    def count(self, won: float, drafted: bool) -> bool:
        """Count a step in which the head won `won` tokens; return True if it rests from now on,
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
