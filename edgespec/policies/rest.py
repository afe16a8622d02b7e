"""Pauses of a head that is not worth its cost: it drafts nothing, and gets no hidden states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

_PATIENCE = 32  # steps: a head that was not used in so many in a row is paused
_LOST = -1.0  # tokens won in an answer, minus the cost of states: below this a head is paused, too
_ANSWERS, _MOST_ANSWERS = 8, 32  # answers for which a head is paused: at first, and at most
_SLOWED = 0.8  # a pause ends if other drafters are only so much as fast as when it began
_LATEST = 0.25  # weight of the latest answer in the mean of what the head wins


@dataclass(slots=True)
class Rest:
    """Decides when a head is paused, and for how long.

    A head that was not used for 32 steps is paused until the answer ends. If it has not won
    anything in earlier answers, it is paused in the next ones as well, each time for twice as many.
    The pause ends early where the other drafters win less than when it began: the head may help
    there. All of this is kept between processes.

    answers: answers for which the head is still paused. pause: answers of the next pause. won:
    tokens won in this answer, minus those that its states have cost. usual: tokens that the head
    has won per answer lately. n_unused: steps without it; None once it has drafted in this answer.
    speed: tokens emitted in the time of a plain step when the pause began. can_act: True while it
    is not paused, so that the target gives it hidden states.
    """

    answers: int = 0
    pause: int = _ANSWERS
    won: float = 0.0
    usual: float = 0.0
    n_unused: int | None = 0
    speed: float = 1.0
    can_act: bool = False

    def begin(self, speed: float) -> bool:
        """Begin an answer; return True if the head drafts nothing during it. speed: how many tokens
        were emitted lately in the time of a plain step.
        """
        if self.answers and speed < _SLOWED * self.speed:
            self.answers, self.pause = 0, _ANSWERS
        elif not self.answers:  # it was not paused from the start of the last answer
            self.usual += _LATEST * (self.won - self.usual)
            if self.usual > 0:
                self.pause = _ANSWERS
            elif self.won < _LOST:
                self.answers, self.speed = self._next_pause() + 1, speed
        self.answers = max(0, self.answers - 1)
        self.won, self.n_unused = 0.0, self.n_unused or 0
        return self.answers > 0

    def count(self, won: float, drafted: bool, speed: float) -> bool:
        """Count a step in which the head won `won` tokens over everything else that drafts. Return
        True if it is paused from now on, which means that it drafts nothing.
        """
        if not self.can_act:
            return False
        self.won += won
        if drafted:
            self.n_unused = None
        elif self.n_unused is not None:
            self.n_unused += 1
            if self.n_unused == _PATIENCE:
                self.n_unused, self.speed = 0, speed
                self.answers = 1 if self.usual > 0 else self._next_pause()
                return True
        return False

    def _next_pause(self) -> int:
        """Return for how many answers the head is paused now, and lengthen the next pause."""
        n, self.pause = self.pause, min(2 * self.pause, _MOST_ANSWERS)
        return n

    def learned(self) -> dict[str, Any]:
        """Return what decides about the next pauses, as plain data for JSON."""
        state = asdict(self)
        del state["can_act"]
        return state

    @classmethod
    def relearned(cls, state: Mapping[str, Any]) -> Rest:
        """Return one that goes on from what `learned` returned. Raises ValueError or TypeError for
        impossible values.
        """
        new = cls(**state)
        sane = (
            0 <= new.answers <= _MOST_ANSWERS
            and _ANSWERS <= new.pause <= _MOST_ANSWERS
            and math.isfinite(new.won + new.usual)
            and 0 <= (new.n_unused or 0) < _PATIENCE
            and 1 <= new.speed < math.inf
        )
        if not sane:
            raise ValueError(f"no pauses of a head: {state}")
        return new
