"""The rest of a head that is not worth what it costs: the target gives it no hidden states then."""

from __future__ import annotations

_PATIENCE = 32  # steps of an answer after which a head that was not used is worth nothing
_LOST = -1.0  # tokens lost in an answer by a head and its states, after which it rests as well
_ANSWERS = 8  # for which it is left alone then
_LATEST = 0.25  # weight of the latest answer in what it usually wins


class Rest:
    """Says when a head rests, and for how long: one that was not used in an answer rests for the
    rest of it, and for further ones only if it has not won anything in those before.

    can_act: it is not resting now, and the target gives it states.
    """

    can_act = False

    def __init__(self) -> None:
        self._answers = 0  # to come without it
        self._won = 0.0  # tokens in this answer, less those that its states have cost
        self._usual = 0.0  # tokens that it won in an answer lately
        self._n_unused: int | None = 0  # steps of this answer; None once it has drafted

    def begin(self) -> bool:
        """Begin an answer, and return whether it rests in it."""
        if not self._answers:  # it acted in the last one
            self._usual += _LATEST * (self._won - self._usual)
            if self._won < _LOST and self._usual < 0:
                self._answers = _ANSWERS + 1
        self._answers = max(0, self._answers - 1)
        self._won, self._n_unused = 0.0, 0
        return self._answers > 0

    def count(self, won: float, drafted: bool) -> bool:
        """Count a step that won so many tokens, and return whether it rests from now on."""
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
