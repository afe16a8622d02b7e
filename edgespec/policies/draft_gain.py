"""The time that a draft model or head has saved, measured in the steps in which it drafted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..types import StepStats

MOST_ANSWERS = 64  # answers that count; earlier ones fade
_NAME = "draft_gain"


class DraftGain:
    """Sums the time spent on answers while a draft model was loaded, and the time that the model's
    own drafts saved.

    Steps in which only lookups drafted count as no saving: they would be the same without the
    model. answers: how many answers count, at most MOST_ANSWERS. spent_s, saved_s: the two sums in
    seconds; those of earlier answers fade.
    """

    def __init__(self) -> None:
        self.answers = 0
        self.spent_s = self.saved_s = 0.0
        self._spent_s = self._saved_s = 0.0  # of the answer under way

    @property
    def value(self) -> float:
        """The speed-up: the time without the model divided by the time with it; at first 1."""
        return (self.spent_s + self.saved_s) / self.spent_s if self.spent_s else 1.0

    def count(self, step: StepStats, plain_s: float) -> None:
        """Count a step. plain_s: the seconds of a plain step at the same place."""
        self._spent_s += step.total_s
        if step.draft_evaluated:
            self._saved_s += step.n_emitted * plain_s - step.total_s

    def end(self) -> None:
        """End an answer."""
        if not self._spent_s:
            return
        fading = 1 - 1 / MOST_ANSWERS
        self.spent_s = fading * self.spent_s + self._spent_s
        self.saved_s = fading * self.saved_s + self._saved_s
        self.answers = min(self.answers + 1, MOST_ANSWERS)
        self._spent_s = self._saved_s = 0.0

    def learned(self) -> dict[str, Any]:
        """Return the sums of the answers that have ended, {} if there were none."""
        if not self.answers:
            return {}
        return {_NAME: {"answers": self.answers, "spent_s": self.spent_s, "saved_s": self.saved_s}}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Adopt what `learned` returned, if `state` has it. Raises ValueError, TypeError or
        KeyError for impossible values.
        """
        if _NAME not in state:
            return
        gain = state[_NAME]
        answers, spent, saved = int(gain["answers"]), gain["spent_s"], gain["saved_s"]
        sane = 0 < answers <= MOST_ANSWERS and 0 < spent < 1e9 and -spent < saved < 1e9
        if not (sane and math.isfinite(spent + saved)):
            raise ValueError(f"no gain of a draft model: {gain}")
        self.answers, self.spent_s, self.saved_s = answers, float(spent), float(saved)
