"""Pauses of a head that is not worth its cost: it drafts nothing, and gets no hidden states."""

from __future__ import annotations

_PATIENCE = 32  # steps: a head that was not used in so many in a row is paused
_LOST = -1.0  # tokens won in an answer, minus the cost of states: below this a head is paused, too
_ANSWERS, _MOST_ANSWERS = 8, 32  # answers for which a head is paused: at first, and at most
_SLOWED = 0.8  # a pause ends if decoding is at most this much as fast as when it began
_LATEST = 0.25  # weight of the latest answer in the mean of what the head wins


class Rest:
    """Decides when a head is paused, and for how long.

    A head that was not used for 32 steps is paused until the answer ends. If it has not won
    anything in earlier answers, it is paused in the next ones as well, each time for twice as many.
    The pause ends early where the other drafters win less than when it began: the head may help
    there. can_act: True while it is not paused, so that the target gives it hidden states.
    """

    can_act = False

    def __init__(self) -> None:
        self._answers = 0  # answers for which the head is still paused
        self._pause = _ANSWERS  # answers of the next pause
        self._won = 0.0  # tokens won in this answer, minus those that its states have cost
        self._usual = 0.0  # tokens that the head has won per answer lately
        self._n_unused: int | None = 0  # steps without it; None once it has drafted in this answer
        self._speed = 1.0  # at the beginning of the pause

    def begin(self, speed: float) -> bool:
        """Begin an answer; return True if the head drafts nothing during it. speed: how many tokens
        were emitted lately in the time of a plain step.
        """
        if self._answers and speed < _SLOWED * self._speed:
            self._answers, self._pause = 0, _ANSWERS
        elif not self._answers:  # it was not paused from the start of the last answer
            self._usual += _LATEST * (self._won - self._usual)
            if self._usual > 0:
                self._pause = _ANSWERS
            elif self._won < _LOST:
                self._answers, self._speed = self._next_pause() + 1, speed
        self._answers = max(0, self._answers - 1)
        self._won, self._n_unused = 0.0, self._n_unused or 0
        return self._answers > 0

    def count(self, won: float, drafted: bool, speed: float) -> bool:
        """Count a step in which the head won `won` tokens over everything else that drafts. Return
        True if it is paused from now on, which means that it drafts nothing.
        """
        if not self.can_act:
            return False
        self._won += won
        if drafted:
            self._n_unused = None
        elif self._n_unused is not None:
            self._n_unused += 1
            if self._n_unused == _PATIENCE:
                self._n_unused, self._speed = 0, speed
                self._answers = 1 if self._usual > 0 else self._next_pause()
                return True
        return False

    def _next_pause(self) -> int:
        """Return for how many answers the head is paused now, and lengthen the next pause."""
        n, self._pause = self._pause, min(2 * self._pause, _MOST_ANSWERS)
        return n
