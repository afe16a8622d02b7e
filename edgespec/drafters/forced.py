"""Tokens that a request's constraint leaves no choice about: half of a JSON answer is such text.

They are guesses like any other: the target verifies them together with what is drafted behind them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..sampling.base import Matcher, Request
from ..types import Verified
from . import register
from .base import DrafterContext
from .calibration import Calibration, Evidence

_PRIOR = 0.97  # probability that forced text comes in these tokens

State = tuple[int, ...]
"""The tokens behind the text so far."""


class ForcedBranches:
    """Guesses from the constraint of a request; none without one."""

    wide, constrained_only = False, True

    def __init__(self) -> None:
        self._matcher: Matcher | None = None
        self._calibration = Calibration()

    def begin(self, request: Request) -> None:
        """Begin a request."""
        self._matcher = request.matcher()

    def root(self) -> State:
        """Return the state behind the text so far."""
        return ()

    def step(self, state: State, token: int) -> State:
        """Return the state behind another token."""
        return (*state, token)

    def children(self, state: State, least: float = 0.0) -> list[tuple[int, float]]:
        """Return the next forced token, if there is one."""
        return self._calibration.probs(self._guesses(state), least)

    def accept(self, verified: Verified) -> None:
        """Learn which forced tokens came."""
        if self._matcher is None:
            return
        for token in verified.tokens:
            self._calibration.observe_all(self._guesses(()), token)
            self._matcher.accept([token])

    def learned(self) -> dict[str, Any]:
        """Return how often forced tokens came, as Learns has it."""
        return {"forced": self._calibration.learned()}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned."""
        if "forced" in state:
            self._calibration.relearn(state["forced"])

    def _guesses(self, state: State) -> list[Evidence]:
        forced = self._matcher.forced(state) if self._matcher else ()
        return [(forced[0], "forced", _PRIOR)] if forced else []


@register("forced", "forced tokens", automatic=True)
def make(context: DrafterContext) -> ForcedBranches:
    """Make the source of method "forced"."""
    return ForcedBranches()
