"""The contract of policies, which set the limits of each step's draft."""

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
    """The limits of one draft. Within them, `Growth` takes what gains most.

    nodes: most drafted tokens; 0 makes the step plain. price: the tokens that a second is worth;
    `costs` gives the seconds. At price 0 time costs nothing, and `costs` may be None. margin:
    tokens that a draft must gain. loss: tokens that a draft may lose. explore: tokens that may be
    lost by trying a model that is expected to lose. n_ahead: tokens of the answer that are expected
    to come, over which the time is spread in which a model reads text that it has not read yet.
    reading: a factor on that time. recurring: the time for so many tokens or fewer is not spread,
    because the model will have to read as many before its next draft.
    p_min: lookups draft no path below this probability. at_least: no draft is made of fewer tokens.
    max_leaves: most leaves of the tree; the target may allow fewer. paused: no model is evaluated
    where the text ends. lookups_only: no model is evaluated at all.
    """

    nodes: int = 0
    price: float = 0.0
    costs: Costs | None = None
    margin: float = 0.0
    loss: float = math.inf
    explore: float = 0.0
    n_ahead: int = 1 << 30
    reading: float = 1.0
    recurring: int = 0
    p_min: float = 0.0
    at_least: int = 1
    max_leaves: int = 1 << 30
    paused: bool = False
    lookups_only: bool = False


PLAIN = Limits()


class Policy:
    """Sets the limits of the draft at every step. Subclasses override what differs.

    reason: why nothing was drafted in the last plain step, in a few words. costs: the costs that it
    decides by, None if it does not use any. roles: what each drafter may do in this answer; a
    policy may replace them between steps.
    """

    reason = "nothing to draft"
    costs: Costs | None = None
    roles: Sequence[Role] = ()

    def begin(self, request: Request, drafters: Sequence[Drafter]) -> None:
        """Begin a request, and set `roles`. The last request may have ended without `observe`."""
        self.roles = (Role.MATCHED,) * len(drafters)

    def limits(self, budget: Budget) -> Limits:
        """Return the limits of the next draft, which has at most `budget.limit` nodes."""
        raise NotImplementedError

    def observe(self, step: StepStats, verified: Verified, growth: Growth | None) -> None:
        """Learn from the figures of a step. growth: what made its draft, None without a draft."""

    @property
    def loss_budget(self) -> float:
        """Tokens that this answer may still lose against plain decoding; inf without a limit."""
        return math.inf

    def plain_s(self, n_past: int) -> float | None:
        """Return the measured seconds of a plain step, None if they are not known."""
        return None

    def learned(self) -> Mapping[str, Any]:
        """Return what a later process should know, as `drafters.base.Learns` describes."""
        return {}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Adopt what `learned` returned."""

    def shared(self) -> Sequence[Learns]:
        """Return the parts that learn from the answers of all owners, and do not affect answers."""
        return ()


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """The parts that a policy may be made from.

    config: the user's settings, including `config.options`. costs: a function that returns the
    costs of evaluations on this device; it measures them if they are not known. max_leaves: most
    leaves of a tree that the target and the drafters in use allow.
    """

    config: SpeculativeConfig
    costs: Callable[[], Costs]
    max_leaves: int = 1
