"""A drafter of the tokens that were nearly chosen in the last step.

The next token is often one that was likely one position earlier (LogitSpec, arXiv 2507.01449).
Prompt lookup continues each of these guesses.
"""

from __future__ import annotations

import bisect
import math

from ..sampling.base import Request
from ..sampling.sampler import candidates
from ..types import Verified
from . import register
from .base import NOWHERE, TRUST, Children, DrafterContext, Role, State
from .calibration import CalibratedDrafter

_N_TOP = 4
_LIKELY = (-4.0, -2.5, -1.5, -0.7)  # bounds of classes: logit minus the row's largest logit
_PRIOR = 0.06  # acceptance probability of a runner-up before any outcome is observed

RunnersUp = tuple[tuple[int, tuple[int, int]], ...]
"""Tokens, each with its class: its rank, and the class of its distance to the largest logit."""


class RunnerUpDrafter(CalibratedDrafter):
    """Guesses that the next token is a runner-up of the row that the last token was chosen from."""

    name, wide = "runner_ups", True

    def __init__(self) -> None:
        super().__init__()
        self._last: RunnersUp = ()
        self._least: float | None = None  # estimated bound, so that `candidates` sorts few logits

    def begin(self, request: Request, role: Role) -> None:
        """Begin a request: forget the last row."""
        self._last = ()

    def root(self) -> State:
        """Return the runners-up of the last row."""
        return self._last or NOWHERE

    def step(self, state: RunnersUp, token: int) -> State:
        """Return NOWHERE: there is no row after a guess."""
        return NOWHERE

    def children(self, state: RunnersUp, least: float = 0.0) -> Children:
        """Return the runners-up."""
        estimate = self._calibration.estimate
        return [(token, TRUST * estimate(kind, _PRIOR)) for token, kind in state]

    def accept(self, verified: Verified) -> None:
        """Learn whether the last row's runners-up came next, and take those of the new last row."""
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


@register("runner_ups", "runner-ups", automatic=True, trees=True)
def make(context: DrafterContext) -> RunnerUpDrafter:
    """Make the drafter of method "runner_ups"."""
    return RunnerUpDrafter()
