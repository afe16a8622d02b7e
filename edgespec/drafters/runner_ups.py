"""Tokens that were nearly chosen last time, each continued by prompt lookup.

The next token is often one that was likely one position before (LogitSpec, arXiv 2507.01449).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from typing import Any

from ..sampling.base import Request
from ..sampling.sampler import candidates
from ..types import Verified
from . import register
from .base import DrafterContext
from .calibration import Calibration
from .trees import TRUST

_N_TOP = 4
_LIKELY = (-4.0, -2.5, -1.5, -0.7)  # logits below the largest: classes of runners-up
_PRIOR = 0.06  # acceptance probability of a runner-up where nothing is known yet

RunnersUp = tuple[tuple[int, tuple[int, int]], ...]
"""Tokens, each with its class: rank, and how near it was to the largest."""


class RunnerUpBranches:
    """The runners-up of the row that gave the last token; it guesses nothing further."""

    wide = True

    def __init__(self) -> None:
        self._calibration = Calibration()
        self._last: RunnersUp = ()
        self._least: float | None = None  # a guess, to look at few logits

    def begin(self, request: Request) -> None:
        """Forget the last row."""
        self._last = ()

    def root(self) -> RunnersUp:
        """Return the runners-up of the last row."""
        return self._last

    def step(self, state: RunnersUp, token: int) -> RunnersUp:
        """Return nothing: there is no row behind a guess."""
        return ()

    def children(self, state: RunnersUp, least: float = 0.0) -> list[tuple[int, float]]:
        """Return the runners-up."""
        estimate = self._calibration.estimate
        return [(token, TRUST * estimate(kind, _PRIOR)) for token, kind in state]

    def accept(self, verified: Verified) -> None:
        """Learn if the last row's runners-up came next, and take those of the new one."""
        if not verified.tokens:
            return
        for token, kind in self._last:
            self._calibration.observe(kind, token == verified.tokens[0])
        self._last = ()
        if len(verified.rows):
            ids, logits, self._least = candidates(verified.rows[-1], _N_TOP, self._least)
            others = [
                (token, logit - logits[0])
                for token, logit in zip(ids, logits, strict=True)
                if token != verified.tokens[-1] and math.isfinite(logit)
            ]
            self._last = tuple(
                (token, (rank, bisect.bisect(_LIKELY, below)))
                for rank, (token, below) in enumerate(others)
            )

    def learned(self) -> dict[str, Any]:
        """Return the share of right guesses by kind of evidence, as Learns has it."""
        return {"runner_ups": self._calibration.learned()}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned."""
        self._calibration.relearn(state.get("runner_ups", ()))


@register("runner_ups", "runner-ups", automatic=True, trees=True)
def make(context: DrafterContext) -> RunnerUpBranches:
    """Make the source of method "runner_ups"."""
    return RunnerUpBranches()
