"""The contract of policies: what is worth its time, within which limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ..config import SpeculativeConfig
from ..costs.online import Costs
from ..drafters.base import Drafter, Learns, Role
from ..sampling.base import Request
from ..types import Budget, StepStats, Verified

if TYPE_CHECKING:
    from .growth import Growth


class Limits(NamedTuple):
    """The limits of one draft, within which growth takes what gains most.

    nodes: most drafted tokens; 0: the step is plain. price: tokens that a second costs, by the
    seconds that `costs` tells; at 0 time costs nothing, and `costs` may be None. margin: tokens
    that a draft must gain. loss: those that it may lose. explore: those that may be lost by trying
    a model that is expected to lose. n_ahead: tokens of the answer that are expected to come.
    reading: how many times the time counts in which a model reads what it has not read. p_min:
    lookups draft no path below this probability. at_least: shorter drafts are none. max_leaves: of
    the tree, fewer if the target evaluates fewer. paused: no model is opened where the text ends.
    lookups_only: none is opened at all.
    """

    nodes: int = 0
    price: float = 0.0
    costs: Costs | None = None
    margin: float = 0.0
    loss: float = math.inf
    explore: float = 0.0
    n_ahead: int = 1 << 30
    reading: float = 1.0
    p_min: float = 0.0
    at_least: int = 1
    max_leaves: int = 1 << 30
    paused: bool = False
    lookups_only: bool = False


PLAIN = Limits()


class Policy:
    """Says at every step within which limits a draft grows. Subclasses say what differs.

    reason: why nothing was drafted in the last plain step, in a few words. costs: by which it
    decides, if it does. roles: what each drafter may do in this answer; a policy may replace them
    between steps.
    """

    reason = "nothing to draft"
    costs: Costs | None = None
    roles: Sequence[Role] = ()

    def begin(self, request: Request, drafters: Sequence[Drafter]) -> None:
        """Begin a request, and set `roles`; an earlier one may have ended without an `observe`."""
        self.roles = (Role.MATCHED,) * len(drafters)

    def limits(self, budget: Budget) -> Limits:
        """Return the limits of the next draft: at most `budget.limit` nodes."""
        raise NotImplementedError

    def observe(self, step: StepStats, verified: Verified, growth: Growth | None) -> None:
        """Learn from the figures of a step. growth: of its draft, None if none was grown."""

    def plain_s(self, n_past: int) -> float | None:
        """Return the seconds of a plain step as measured, None if that is not known."""
        return None

    def learned(self) -> Mapping[str, Any]:
        """Return what goes on in another process, as `drafters.base.Learns` has it."""
        return {}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned."""

    def shared(self) -> Sequence[Learns]:
        """Return parts that learn from everybody, and that no answer depends on."""
        return ()


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """The parts that a policy may be made from.

    config: the user's settings, `config.options` among them. costs: returns what evaluations cost
    on this device; measures it where it is not known. max_leaves: of a tree, by the drafters that
    are used and by the target.
    """

    config: SpeculativeConfig
    costs: Callable[[], Costs]
    max_leaves: int = 1
