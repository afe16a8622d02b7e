"""The policy that drafts only where that is expected to be faster on this device.

Time has a price: the tokens that the loop emits a second. This policy sets the price and the other
limits; `Growth` chooses within them what is drafted.

Two budgets keep the promise of never being slower, even if estimates are wrong. The *loss budget*
is the number of tokens that may still be lost against plain decoding. It starts small, losses use
it up, and gains fill it. No draft may risk more than is left. The budget passes from answer to
answer, within limits that depend on how long answers are and on what drafts have won. A *refund*
raises it if drafts that it forbade prove right. The *exploration budget* is the share of time that
may be spent on trying a draft model that is expected to lose.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ..costs.online import MEMORY, Costs
from ..drafters.base import Drafter, Learns, Role
from ..errors import ConfigError
from ..sampling.base import Request
from ..types import Budget, StepStats, Verified
from . import register
from .accounts import EXPLORE, MOST_SPEED, Accounts
from .base import PLAIN, Limits, Policy, PolicyContext
from .draft_gain import DraftGain
from .growth import Forbidden, Growth
from .rest import Rest

logger = logging.getLogger("edgespec.adaptive")

RISK = 1.05  # a factor on a draft's costs, because the best of many estimates is too optimistic
MARGIN = 0.03  # tokens that a draft must be expected to gain over a plain step
WIDE = 0.05  # `wide` drafters are off where no token below this probability is worth its time
_NOT_MEASURED = "costs are not measured yet"
_SHORT = 8  # least number of tokens that are expected to come, unless the request's limit is lower
_IN_SIGHT, _GROWTH = 16, 4  # foresight: 16 tokens, and 4 for each token of the answer so far
_PLAIN_EVERY = 48  # most drafting steps between two plain ones
_RECURRING = 32  # tokens between two drafts of a model; more are a passage, like the prompt
_CONSIDERING_S = 0.0002  # seconds by which a head that may draft lengthens each step in Python
_PAUSE = 16  # steps for which a draft model that is not worth its time is not evaluated


class Adaptive(Policy):
    """The policy that "auto" chooses unless the settings name a depth.

    costs: the measured costs of evaluations, corrected by every step. Until they are known, all
    steps are plain. Later a plain step is taken now and then, because nothing else shows how long
    plain decoding takes. The first step is always plain, because the profile may have been measured
    in a slower moment.
    """

    costs: Costs

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._since_plain = 1  # steps
        self._told_stale = False
        self.reason = "no draft yet"
        self._price = 0.0  # tokens a second
        self._company_s = 0.0  # a plain step of the company that the price was seen in; 0: alone
        self._regime = costs.regime
        self.accounts = Accounts()
        self.draft_gain = DraftGain()
        self._rest = Rest()
        self._n_emitted = 0
        self._may_draft = True
        self._pause = 0  # steps until a model may be evaluated again
        self._has_read = False  # a model has read the prompt
        self._forbidden: Forbidden | None = None
        self._right: list[int] = []  # indices of its tokens that were emitted

    def begin(self, request: Request, drafters: Sequence[Drafter]) -> None:
        """Begin an answer with what is left of the loss budget, within limits."""
        self._end()
        self._may_draft = bool(drafters)
        if drafters:
            self.accounts.begin(request.params.max_tokens)
        self._pause, self._forbidden, self._has_read = 0, None, False
        known = self.costs.known
        wide = known and self.costs.least(len(request.prompt))[0] <= WIDE
        role = Role.DRAWN if known and not wide else Role.MATCHED
        rests = any(d.reads_states for d in drafters) and self._rest.begin(self.accounts.speed)
        self.roles = tuple(
            Role.OFF if (d.wide and not wide) or (d.reads_states and rests) else role
            for d in drafters
        )
        self._rest.can_act = any(
            d.reads_states and role for d, role in zip(drafters, self.roles, strict=True)
        )
        self._without_states = tuple(
            Role.OFF if d.reads_states else role
            for d, role in zip(drafters, self.roles, strict=True)
        )

    def limits(self, budget: Budget) -> Limits:
        """Return the limits of the next draft: how many tokens, at which price of time."""
        costs = self.costs
        if not self._may_draft:
            return PLAIN
        self._n_emitted = budget.n_emitted
        if not costs.known:
            self.reason = _NOT_MEASURED
            return PLAIN
        alone = not budget.plain_s
        if not _are_near(budget.plain_s, self._company_s):
            self._company_s, self._price = budget.plain_s, 0.0
        plain_s = costs.target(budget.n_past)[1] if alone else budget.plain_s
        if alone and self._since_plain >= (_PLAIN_EVERY if costs.plain.n >= 4 else 1):
            self.reason = "measuring plain decoding"
            return PLAIN
        paused, self._pause = self._pause > 0, max(0, self._pause - 1)
        explore = min(self.accounts.exploration_budget, 5 * EXPLORE * budget.n_emitted)
        return Limits(
            nodes=min(budget.limit, costs.max_depth),
            price=RISK * max(self._price, 1 / plain_s),
            costs=costs,
            margin=MARGIN,
            loss=self.accounts.loss_budget,
            explore=explore,
            n_ahead=_tokens_ahead(budget, min(self.accounts.lengths)),
            reading=self.accounts.catch_up_penalty,
            recurring=_RECURRING if self._has_read else 0,
            paused=paused,
        )

    def observe(self, step: StepStats, verified: Verified, growth: Growth | None) -> None:
        """Update the costs, the price of time and both budgets with the figures of a step."""
        reading_s = growth.reading_s if growth else 0.0
        if not self.costs.known:
            return
        if growth:
            self._learn_from(growth, step)
        self._look_back(verified)
        if step.n_evaluated != step.n_drafted + 1 + step.n_filled:
            return  # the step ended the prefill as well
        n_past, alone = step.n_past - step.n_emitted, not step.plain_s
        if alone:
            self.costs.observe(step, n_past)
            self._since_plain = 0 if step.n_evaluated == 1 else self._since_plain + 1
            self._forget_stale_costs()
        if not self._may_draft:
            return  # such an answer shows nothing about drafts
        if self.costs.regime != self._regime:
            self._regime, self._price = self.costs.regime, 0.0
        plain = step.plain_s or self.costs.plain_s(n_past)
        rate = step.n_emitted / max(step.total_s, 1e-9)
        if not self._price and step.n_evaluated == 1:
            rate *= self.accounts.speed  # by as much as drafting has sped up earlier steps
        self._price += MEMORY * (rate - self._price) if self._price else rate
        self.accounts.speed = min(max(1.0, self._price * plain), MOST_SPEED)
        if self.costs.profile.draft:
            self.draft_gain.count(step, plain)
        tapping = self._tapping_s / plain  # tokens that a head's hidden states cost each step
        lost = tapping
        if step.n_drafted or step.draft_evaluated or step.n_beside:
            lost += max(0.0, step.total_s - reading_s - plain) / plain
        won_by_head = -tapping - _CONSIDERING_S / plain
        if step.draft_evaluated:
            self._has_read = True
            won_by_model = step.n_accepted - lost
            self.accounts.count_catch_up(reading_s / plain, won_by_model)
            if growth:
                later_s = max(0.0, step.total_s - plain)
                won_by_head += step.n_accepted - growth.free_gain - self._price * later_s
        self.accounts.count(step.n_accepted - lost, step.n_emitted)
        drafted = bool(step.draft_evaluated)
        if self._rest.count(won_by_head, drafted, self.accounts.speed):
            self.roles = self._without_states
            self._rest.can_act = False

    @property
    def loss_budget(self) -> float:
        """Tokens that this answer may still lose."""
        return self.accounts.loss_budget

    def plain_s(self, n_past: int) -> float | None:
        """Return the seconds of a plain step as measured lately, None before four plain steps.

        The time for a head's hidden states is left out: plain decoding does not need them.
        """
        seconds = self.costs.seen_plain_s(n_past)
        return None if seconds is None else seconds - self._tapping_s

    def shared(self) -> Sequence[Learns]:
        """Return the counter of the draft model's gain. It counts the answers of all owners."""
        return [self.draft_gain]

    def learned(self) -> dict[str, Any]:
        """Return the accounts of the answers so far, as `drafters.base.Learns` describes."""
        self._end()
        return {"accounts": self.accounts.learned()}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Adopt what `learned` returned, and forget what this answer has shown so far."""
        self._end()
        if "accounts" in state:
            self.accounts.relearn(state["accounts"])
        self._since_plain, self._price, self._rest = 1, 0.0, Rest()

    def _end(self) -> None:
        """Learn from the answer that has ended, unless that was done already."""
        if self._n_emitted:
            self.accounts.end(self._n_emitted)
            self.draft_gain.end()
            self._n_emitted = 0

    @property
    def stale(self) -> bool:
        """True if the profile no longer fits the device."""
        return self.costs.stale

    @property
    def _tapping_s(self) -> float:
        """The seconds that the target takes in each step to output the hidden states that a head
        reads; 0 if none does.
        """
        return self.costs.tapping_s if self._rest.can_act else 0.0

    def _forget_stale_costs(self) -> None:
        """Delete the profile from the disk if it no longer fits the device; only once."""
        if self.stale and not self._told_stale:
            logger.info("the measured costs no longer fit this device; the next load measures anew")
            self.costs.profile.forget()
            self._told_stale = True

    def _learn_from(self, growth: Growth, step: StepStats) -> None:
        """Learn from what `Growth` reports about a step in addition to the draft."""
        self.accounts.exploration_budget -= growth.explored
        if growth.forbidden and not self._forbidden:
            self._forbidden, self._right = growth.forbidden, []
        if not step.n_drafted and not step.draft_evaluated:
            self.reason = growth.reason or self.reason
            if growth.idle:
                self._pause = _PAUSE

    def _look_back(self, verified: Verified) -> None:
        """Refund what a forbidden draft would have won, once the emitted tokens differ from the
        draft or have reached its end.
        """
        if not self._forbidden:
            return
        draft, cost = self._forbidden
        parents = draft.parents or tuple(range(-1, len(draft.tokens) - 1))
        for token in verified.tokens:
            last = self._right[-1] if self._right else -1
            after = [i for i, parent in enumerate(parents) if parent == last]
            right = [i for i in after if draft.tokens[i] == token]
            self._right += right
            if not right or right[0] not in parents:
                self.accounts.refund(len(self._right) - cost)
                self._forbidden = None
                return


@register("adaptive", "what pays, by measured costs")
def make(context: PolicyContext) -> Adaptive:
    """Make the policy that decides at every step by measured costs."""
    config = context.config
    if config.num_speculative_tokens is not None or config.draft_p_min is not None:
        raise ConfigError(
            "the policy adaptive decides how deep drafts are; leave num_speculative_tokens and "
            "draft_p_min out, or take the policy fixed"
        )
    return Adaptive(context.costs())


def _are_near(seconds: float, others: float) -> bool:
    """Return whether two times differ by so little that the same rate of tokens goes with them."""
    return seconds == others or 0.8 * others < seconds < 1.25 * others


def _tokens_ahead(budget: Budget, usual: int) -> int:
    """Return how many more tokens of an answer are expected.

    The number is the greater of two: the tokens emitted so far, and the tokens still missing to the
    `usual` length. While the answer is short, the second counts only in part, because the answer
    may end early.
    """
    in_sight = _IN_SIGHT + _GROWTH * budget.n_emitted
    like_others = min(usual - budget.n_emitted, in_sight)
    return min(budget.remaining, max(budget.n_emitted, like_others, _SHORT))
