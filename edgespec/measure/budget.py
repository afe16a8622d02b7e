"""The time that a measurement may take, with one clock for all of its parts."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..types import FinishReason

Clock = Callable[[], float]


class Budget:
    """A time limit that starts now, and the names of the parts that were left out for lack of time.

    Every part of a measurement may use the time that is left. `abort` ends it when the time is up.
    """

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or time.perf_counter
        self.left_out: list[str] = []
        self._start = self.clock()
        self._end = self._start + seconds

    @property
    def spent(self) -> float:
        """The seconds since the beginning."""
        return self.clock() - self._start

    @property
    def left(self) -> float:
        """The seconds that are left, at least 0."""
        return max(0.0, self._end - self.clock())

    def abort(self) -> FinishReason | None:
        """Return a reason to stop once the time is up, None before."""
        return None if self.left else "time_limit"

    def part(self, seconds: float) -> Budget:
        """Return a budget of `seconds`, or of the time that is left if that is less. Both budgets
        share the list of parts left out.
        """
        part = Budget(min(seconds, self.left), self.clock)
        part.left_out = self.left_out
        return part

    def fits(self, what: str, seconds: float) -> bool:
        """Return whether a part that takes `seconds` fits; if not, add it to those left out.

        what: the name of the part.
        """
        if seconds < self.left:
            return True
        self.left_out.append(what)
        return False
