"""The policy that drafts what is expected to pay on this device, and nothing where nothing does.

Time has a price: the tokens that the loop emits a second. A draft gains the tokens that are
expected to be accepted, less the price of the time that it adds to a plain step. Of all
sources and depths the one that gains most is taken, none if none gains more than a margin.

Two budgets keep the promise of never being slower if estimates are wrong. The *loss budget* is
what may still be lost against plain decoding: it begins with a little, losses use it up, gains
fill it, and no draft may risk more than is left. An answer begins with what is left, within
limits that depend on how long answers are and on what drafts have won, and gets a *refund* if
drafts that the budget forbade prove right. The *exploration budget* is the share of time that may
be spent on trying a draft model that is expected to lose.
"""

from __future__ import annotations

import bisect
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..costs.online import LOOK_AHEAD, MEMORY, Costs, FurtherTokens
from ..sampling.base import Request
from ..types import PLAIN, Budget, DraftEstimate, Extension, Plan, StepStats
from .accounts import EXPLORE, MOST_SPEED, Accounts
from .base import Ask
from .draft_gain import DraftGain

logger = logging.getLogger("edgespec.adaptive")

RISK = 1.05  # the costs of a draft count so many times: the best of many estimates is too good
BESIDE = 0.6  # share of their gain that guesses beside a draft model add to its own
MARGIN = 0.03  # tokens a step that a draft must promise above plain decoding
SURE = 0.4  # chance of failure that a possible loss is weighed with at least
CERTAIN = ((1.0, 1.0),)  # the confidence histogram that no draft model can surpass
_TOO_SLOW, _TOO_UNSURE = "draft too slow", "drafts too unsure"
_NOT_MEASURED = "costs are not measured yet"
_SHORT = 8  # tokens that an answer is sure to have; then half of it is always to come
_IN_SIGHT, _GROWTH = 16, 4  # it is like the last two so far ahead: 16 and 4 times what it has
_PLAIN_EVERY = 48  # steps that draft, at most, before one is plain
_PAUSE = 16  # steps for which a draft model that would not pay is not asked again


class Forbidden(NamedTuple):
    """A draft that only the loss budget forbade.

    source: its index. n_emitted: tokens of the answer then. cost: tokens that it would have cost.
    right: how many of its tokens have been emitted since.
    """

    source: int
    n_emitted: int
    depth: int
    cost: float
    right: int = 0


class _Moment(NamedTuple):
    """The figures that a step is weighed with.

    target: seconds of evaluations of 0, 1, 2, … tokens. price: tokens a second.
    """

    budget: Budget
    target: Sequence[float]
    price: float


class Adaptive:
    """The policy behind "auto". costs: measured, and corrected by every step.

    Until costs are known it decodes plainly.
    A plain step is taken now and then in any case, for nothing else tells what plain decoding
    takes; the first step is one, because the profile may have been measured in a slower moment.
    reason: why the last plain step was plain, in a few words.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self._since_plain = 1  # steps
        self._told_stale = False
        self.reason = "no draft yet"
        self._price = 0.0  # tokens a second
        self._regime = costs.regime
        self.accounts = Accounts()
        self.draft_gain = DraftGain()
        self._n_emitted = 0
        self._catch_up_s = 0.0  # of the step under way, which is not charged with it
        self._pause = 0  # steps until a draft model is asked again
        self._paused: set[int] = set()  # its sources
        self._forbidden: Forbidden | None = None

    def begin(self, request: Request) -> None:
        """Begin an answer with what is left of the loss budget, within limits."""
        self._end()
        self.accounts.begin(request.params.max_tokens)
        self._pause, self._forbidden = 0, None

    def choose(self, sources: Sequence[Ask], budget: Budget) -> Plan:
        """Return the source and depth that gain most."""
        self._n_emitted = budget.n_emitted
        if not self.costs.known:
            self.reason = _NOT_MEASURED
            return PLAIN
        target = self.costs.target(budget.n_past)
        if self._forbidden:
            self._look_back(self._forbidden, sources, budget.n_emitted)
        self._catch_up_s = 0.0
        if self._since_plain >= (_PLAIN_EVERY if self.costs.plain.n >= 4 else 1):
            self.reason = "measuring plain decoding"
            return PLAIN
        live = self._live(sources)
        if not live:
            if not self._paused:
                self.reason = "no match"
            return PLAIN
        moment = _Moment(budget, target, RISK * max(self._price, 1 / target[1]))
        plan, n_known = self._best(live, moment)
        estimate = live.get(plan.source)
        if not plan.depth or not estimate or estimate.extension is None:
            return plan
        self._catch_up_s = estimate.extension.catch_up_s(0)
        further = self._further(estimate.extension)
        return plan._replace(thresholds=further.thresholds(n_known, plan.depth, moment.price))

    def observe(self, step: StepStats) -> None:
        """Correct costs, the price of time and both budgets by the figures of a step."""
        catch_up_s, self._catch_up_s = self._catch_up_s, 0.0  # `choose` may be left out next time
        if not self.costs.known:
            return
        if step.n_evaluated != step.n_drafted + 1:
            return  # it ended the prefill as well
        n_past = step.n_past - step.n_emitted
        self.costs.observe(step, n_past)
        self._since_plain = 0 if step.n_evaluated == 1 else self._since_plain + 1
        self._forget_stale_costs()
        if self.costs.regime != self._regime:
            self._regime, self._price = self.costs.regime, 0.0
        plain = self.costs.plain_s(n_past)
        rate = step.n_emitted / max(step.total_s, 1e-9)
        if not self._price and step.n_evaluated == 1:
            rate *= self.accounts.speed  # what other steps make of it
        self._price += MEMORY * (rate - self._price) if self._price else rate
        self.accounts.speed = min(max(1.0, self._price * plain), MOST_SPEED)
        if self.costs.profile.draft:
            self.draft_gain.count(step, plain)
        tapping = self.costs.tapping_s / plain  # what a head costs all steps, in tokens
        lost = tapping
        if step.n_drafted or step.draft_evaluated:
            lost += max(0.0, step.total_s - catch_up_s - plain) / plain
        self.costs.won_by_head -= tapping
        if step.draft_evaluated:
            self.costs.won_by_head += step.n_accepted - lost + tapping
            self.accounts.count_catch_up(catch_up_s / plain, step.n_accepted - lost)
        self.accounts.count(step.n_accepted - lost, step.n_emitted)

    def plain_s(self, n_past: int) -> float | None:
        """Return the seconds of a plain step as the last ones took, None before there were some."""
        return self.costs.seen_plain_s(n_past)

    def learned(self) -> dict[str, Any]:
        """Return the accounts of the answers so far, as drafters.base.Learns has it."""
        self._end()
        return {"accounts": self.accounts.learned()}

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned, and forget what this answer has shown so far."""
        self._end()
        if "accounts" in state:
            self.accounts.relearn(state["accounts"])
        self._since_plain, self._price, self.costs.won_by_head = 1, 0.0, 0.0

    def _end(self) -> None:
        """Learn from an answer that has ended, once."""
        if self._n_emitted:
            self.accounts.end(self._n_emitted)
            self.draft_gain.end()
            self._n_emitted = 0

    @property
    def stale(self) -> bool:
        """True if the profile no longer fits the device."""
        return self.costs.stale

    def _forget_stale_costs(self) -> None:
        """Delete a profile that no longer fits from the disk, once."""
        if self.stale and not self._told_stale:
            logger.info("the measured costs no longer fit this device; the next load measures anew")
            self.costs.profile.forget()
            self._told_stale = True

    def _live(self, sources: Sequence[Ask]) -> dict[int, DraftEstimate]:
        """Return the estimates of sources that have anything to draft, by index.

        A draft model that pauses is not asked.
        """
        if self._pause:
            self._pause -= 1
        else:
            self._paused.clear()
        asked = {i: ask() for i, ask in enumerate(sources) if i not in self._paused}
        return {i: estimate for i, estimate in asked.items() if estimate.acceptance_probs}

    def _further(self, extension: Extension) -> FurtherTokens:
        return _further(self.costs, extension, extension.conditional_acceptance_rate)

    def _best(self, live: Mapping[int, DraftEstimate], moment: _Moment) -> tuple[Plan, int]:
        """Return the plan that gains most, or is tried, and how many of its tokens are known."""
        best = trial = PLAIN
        known: dict[int, int] = {}
        idle: list[int] = []
        for index, estimate in live.items():
            found, wished = self._known(estimate, moment)
            if found[1] <= MARGIN < wished[1] and estimate.extension is None:
                self._forbid(index, wished[0], moment)
            known[index] = found[0]
            plan = Plan(index, found[0], gain=found[1])
            if estimate.extension is not None:
                plan = self._extended(plan, estimate, estimate.extension, moment)
                if plan.gain <= MARGIN and not estimate.n_known:
                    idle = [index]
                plan = self._with_others(plan, found[0], estimate, moment)
                if not trial.depth or plan.gain > trial.gain:
                    trial = plan
            if plan.gain > best.gain:
                best = plan
        if best.gain <= MARGIN:
            best = self._explore(trial, live, moment)
            if idle and not best.depth:
                self._paused.update(idle)
                self._pause = _PAUSE
        return best, known.get(best.source, 0)

    def _known(
        self, estimate: DraftEstimate, moment: _Moment
    ) -> tuple[tuple[int, float], tuple[int, float]]:
        """Return (depth, gain) at which the known tokens gain most within the loss budget, and
        without it.
        """
        limit = min(moment.budget.limit, estimate.n_known, self.costs.max_depth)
        target, price = moment.target, moment.price
        best = wished = 0, 0.0
        expected, first, affordable = 0.0, target[1], True
        left = self.accounts.loss_budget
        reached = [0.0] * (limit + 1)  # of each depth, the probability that it is
        depths = estimate.depths or range(1, limit + 1)
        for depth, prob in enumerate(estimate.acceptance_probs[:limit], start=1):
            expected += prob
            cost = price * (target[depth + 1] - first)
            reached[depths[depth - 1]] += prob
            risk = 1 - reached[min(math.ceil(cost), limit)]  # of accepting less than it costs
            affordable = affordable and cost * max(risk, SURE) <= left
            if expected - cost > wished[1]:
                wished = depth, expected - cost
                if affordable:
                    best = wished
        return best, wished

    def _forbid(self, index: int, depth: int, moment: _Moment) -> None:
        """Remember a draft that only the loss budget forbids, unless there is one already."""
        if not self._forbidden:
            cost = moment.price * (moment.target[depth + 1] - moment.target[1])
            self._forbidden = Forbidden(index, moment.budget.n_emitted, depth, cost)

    def _with_others(
        self, plan: Plan, n_known: int, estimate: DraftEstimate, moment: _Moment
    ) -> Plan:
        """Return the plan of a draft model with what it costs to catch up, and with what the
        guesses of others beside its own gain.
        """
        gain = plan.gain
        if estimate.extension and plan.depth > n_known:
            gain -= self._catch_up(estimate, estimate.extension, n_known, moment)
        if estimate.beside and plan.depth:
            (_, beside), _ = self._known(estimate.beside, moment)
            gain += BESIDE * beside
        return plan._replace(gain=gain)

    def _look_back(self, draft: Forbidden, sources: Sequence[Ask], n_emitted: int) -> None:
        """Refund what a forbidden draft would have won, once it has ended or proved wrong."""
        emitted = n_emitted - draft.n_emitted
        unbroken = sources[draft.source]().streak >= emitted
        if unbroken and emitted < draft.depth:
            self._forbidden = draft._replace(right=emitted)
            return
        self.accounts.refund((draft.depth if unbroken else draft.right) - draft.cost)
        self._forbidden = None

    def _extended(
        self, known: Plan, estimate: DraftEstimate, extension: Extension, moment: _Moment
    ) -> Plan:
        """Return the plan continued by a draft model, as deep as the loss budget allows.

        The model's first evaluation shows how sure it is; from there it drafts what pays.
        """
        n = known.depth
        if estimate.n_known and not n:
            return known
        further = self._further(extension)
        depth = min(self._affordable(n, further, moment), moment.budget.limit - n)
        if depth <= 0:
            return known
        prob = estimate.at_end(n)
        worth = further.worth(extension.confidence_histogram, depth, prob, moment.price)
        return Plan(known.source, n + depth, gain=known.gain + worth)

    def _catch_up(
        self, estimate: DraftEstimate, extension: Extension, n_known: int, moment: _Moment
    ) -> float:
        """Return the tokens that catching up costs a step, spread over the steps to come."""
        seconds = extension.catch_up_s(n_known)
        if not seconds:
            return 0.0
        n_ahead = _tokens_ahead(moment.budget, min(self.accounts.lengths))
        steps = max(1.0, n_ahead / (1 + sum(estimate.acceptance_probs[:4])))
        return self.accounts.catch_up_penalty * moment.price * seconds / steps

    def _affordable(self, n: int, further: FurtherTokens, moment: _Moment) -> int:
        """Return how many tokens a draft model may add to n if all of them may be lost."""
        target = moment.target
        affordable_s = self.accounts.loss_budget / moment.price + target[1]
        return bisect.bisect_right(
            range(1, self.costs.max_depth - n + 1),
            affordable_s,
            key=lambda depth: target[n + depth + 1] + further.drafting_s(depth),
        )

    def _explore(self, trial: Plan, live: Mapping[int, DraftEstimate], moment: _Moment) -> Plan:
        """Return the trial of a draft model that could gain, else plain decoding.

        The exploration budget has to hold what the trial may lose.
        """
        extension = live[trial.source].extension if trial.depth else None
        if extension is None:
            if not self._paused:
                self.reason = _TOO_UNSURE
            return PLAIN
        if _is_hopeless(self.costs, extension, moment.price):
            self.reason = _TOO_SLOW if self.costs.profile.draft else _NOT_MEASURED
            return PLAIN
        self.reason = _TOO_UNSURE
        loss = MARGIN - trial.gain + moment.price * extension.catch_up_s(0)
        if loss > min(self.accounts.exploration_budget, 5 * EXPLORE * moment.budget.n_emitted):
            return PLAIN
        self.accounts.exploration_budget -= loss
        return trial


def _further(costs: Costs, extension: Extension, rate: float) -> FurtherTokens:
    """Return the worth of further tokens of a draft model at this conditional acceptance rate."""
    return costs.further(rate, extension.token_s, extension.further_s, extension.most)


def _tokens_ahead(budget: Budget, usual: int) -> int:
    """Return how many tokens of an answer are to come, for all that is known of it.

    They are as many as it has already, or as it lacks of the `usual` length. The latter counts only
    gradually, as the answer grows: it is not known before that it will be as long.
    """
    in_sight = _IN_SIGHT + _GROWTH * budget.n_emitted
    like_others = min(usual - budget.n_emitted, in_sight)
    return min(budget.remaining, max(budget.n_emitted, like_others, _SHORT))


def _is_hopeless(costs: Costs, extension: Extension, price: float) -> bool:
    """Return whether a draft model could not pay with every token right."""
    depth = min(LOOK_AHEAD, costs.max_depth)
    further = _further(costs, extension, 1.0)
    return further.worth(CERTAIN, depth, 1.0, price) <= MARGIN
