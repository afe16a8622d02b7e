"""A drafter of forced tokens, where a request's constraint leaves no choice.

Half of a JSON answer is such text. The tokens are guesses like any other: the target verifies them
together with the tokens drafted after them.
"""

from __future__ import annotations

from ..sampling.base import Matcher, Request
from ..types import Verified
from . import register
from .base import NOWHERE, DrafterContext, Role
from .calibration import CalibratedDrafter, Evidence

_PRIOR = 0.97  # probability that the target splits forced text into these tokens

State = tuple[int, ...]
"""The tokens after the text so far."""


class ForcedDrafter(CalibratedDrafter):
    """Guesses the tokens that a request's constraint forces; nothing without a constraint."""

    name = "forced"

    def __init__(self) -> None:
        super().__init__()
        self._matcher: Matcher | None = None

    def begin(self, request: Request, role: Role) -> None:
        """Begin a request."""
        self._matcher = request.matcher()

    def root(self) -> State | None:
        """Return the state of the text so far; NOWHERE without a constraint."""
        return () if self._matcher else NOWHERE

    def accept(self, verified: Verified) -> None:
        """Learn which forced tokens were emitted."""
        if self._matcher is None:
            return
        for token in verified.tokens:
            self._calibration.observe_all(self.evidence(()), token)
            self._matcher.accept([token])

    def evidence(self, state: State) -> list[Evidence]:
        """Return the next forced token, if there is one."""
        forced = self._matcher.forced(state) if self._matcher else ()
        return [(forced[0], "forced", _PRIOR)] if forced else []


@register("forced", "forced tokens", automatic=True)
def make(context: DrafterContext) -> ForcedDrafter:
    """Make the drafter of method "forced"."""
    return ForcedDrafter()
