"""The rest of a head that is not worth what it costs: the target gives it no hidden states then."""

from __future__ import annotations

_PATIENCE = 32  # steps of an answer after which a head that was not used is worth nothing
_LOST = -1.0  # tokens lost in an answer by a head and its states, after which it rests as well
_ANSWERS = 8  # for which it is left alone then


class Rest:
    """Says when a head rests, and for how long.

    can_act: it is not resting now, and the target gives it states.
    """

    can_act = False

    def __init__(self) -> None:
        self._answers = 0  # to come without it
        self._won = 0.0  # tokens in this answer, less those that its states have cost
        self._n_unused: int | None = 0  # steps of this answer; None once it has drafted

    def begin(self) -> bool:
        """Begin an answer, and return whether it rests in it."""
        self._answers = max(0, self._answers - 1)
        if not self._answers and self._won < _LOST:
            self._answers = _ANSWERS
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
                self._answers = _ANSWERS
                return True
        return False
