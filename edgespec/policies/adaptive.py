"""Drafts what is expected to pay on this device, and nothing where nothing does.

Time has a price: the tokens that the loop emits a second. A draft gains the tokens that are
expected to be accepted, less the price of the time that it adds to a plain step. Of all
sources and depths the one that gains most is taken, none where none gains more than a margin.

Two accounts keep promises where estimates are wrong. The *purse* is what an answer may still
lose against plain decoding: it begins with a little, losses empty it, gains fill it, and no
draft may risk more than it holds. The *credit* is the share of time that may be spent on
trying a draft model that is expected to lose.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..types import Budget, Floors, Offer, Plan, StepStats
from .profile import Profile

logger = logging.getLogger("edgespec.adaptive")

RISK = 1.1  # what a draft costs is counted so many times: the best of many guesses flatters itself
MARGIN = 0.03  # tokens a step that a draft must promise above plain decoding
PURSE = 2.5  # tokens that an answer may lose
EXPLORE = 0.01  # share of what is emitted that may be lost as well, and again on trying
_SHORT = 8  # tokens that an answer is sure to have; then it is always half-way
_PLAIN_EVERY = 48  # steps that draft, at most, before one is plain
_AHEAD = 8  # further tokens that are weighed before a draft model stops
_MEMORY = 1 / 24  # weight of a new step in running means


class _Ratio:
    """A measured time over the expected one, followed slowly; at first quickly downwards, for
    other programs only ever add to a time.
    """

    def __init__(self) -> None:
        self.value, self.n = 1.0, 0

    def follow(self, ratio: float) -> None:
        self.n += 1
        quickly = self.n <= 8 and ratio < self.value
        if not quickly:
            ratio = min(max(ratio, self.value / 2), 2 * self.value)
        self.value += (0.5 if quickly else _MEMORY) * (ratio - self.value)


@dataclass(frozen=True, slots=True)
class _Model:
    """What a draft model's offers are weighed with at one price and one cache length.

    gains: of 1, 2, … tokens behind a first one that is there: (tokens for each unit of its
    survival, tokens lost by the time they take).
    """

    each: float
    gains: tuple[tuple[float, float], ...]
    floors: Floors

    def worth(self, starts: Iterable[tuple[float, float]], scale: float = 1.0) -> float:
        """Gain of a draft before its first evaluation; `scale`: survival of what is before it."""
        total = -self.each
        for share, survival in starts:
            survival *= scale
            total += share * max(0.0, max([survival * n - lost for n, lost in self.gains]))
        return total


class Adaptive:
    """The policy behind "auto". `profile`: measured costs, corrected by every step.

    Plain steps and wide ones are corrected apart, for a profile may have been measured in a bad
    moment; and a plain step is taken now and then in any case, for nothing else tells what
    plain decoding takes. reason: why the last plain step was plain, in a few words.
    """

    def __init__(self, profile: Profile, max_depth: int = 31) -> None:
        self._profile = profile
        self._max_depth = max_depth
        self._plain = _Ratio()  # of plain steps
        self._wide = _Ratio()  # of wider ones
        self._draft = _Ratio()  # of a draft model's, beside that of plain steps
        self._since_plain = 0
        self._told = False  # that the profile is stale
        self.reason = "no draft yet"
        self._price = 0.0  # tokens a second
        self._credit = 0.0
        self._purse = PURSE
        self._n_emitted = 0
        self._lengths = (0, 0)  # of the last two answers
        self._reading_s = 0.0  # what the step under way is not charged with
        self._table: tuple[tuple[int, ...], list[float]] = ((), [])
        self._cached: dict[tuple[int, ...], _Model] = {}

    def choose(self, offers: Sequence[Offer], budget: Budget) -> Plan:
        """The offer and depth that gain most."""
        if budget.n_emitted <= self._n_emitted:  # another answer
            self._purse = PURSE
            self._lengths = self._lengths[1], self._n_emitted
        self._n_emitted = budget.n_emitted
        self._reading_s = 0.0
        if self._since_plain >= (_PLAIN_EVERY if self._plain.n >= 4 else 1):
            self.reason = "measuring plain decoding"
            return Plan()
        target = self._target(budget.n_past)
        price = RISK * max(self._price, 1 / target[1])
        limit = min(budget.limit, self._max_depth)
        best = probe = Plan()
        for index, offer in enumerate(offers):
            if not offer.survival:
                continue
            plan = self._known(index, offer, limit, target, price)
            if offer.n_pending is not None:
                plan = self._drawn(plan, offer, limit, budget, price)
                if not probe.depth or plan.gain > probe.gain:
                    probe = plan
            if plan.gain > best.gain:
                best = plan
        if best.gain <= MARGIN:
            best = self._explore(probe, offers, budget, price)
        if best.depth and offers[best.index].n_pending is not None:
            self._reading_s = self._reading(offers[best.index], 0, budget, 1.0)
        return best

    def observe(self, stats: StepStats) -> None:
        """Correct costs and the price of time by what the step took and gave."""
        reading_s, self._reading_s = self._reading_s, 0.0  # the next may be taken without `choose`
        if stats.n_evaluated != stats.n_drafted + 1:
            return  # it ended the prefill as well
        n_past = stats.n_past - stats.n_emitted
        ratio = stats.verify_s / self._profile.target(stats.n_evaluated, n_past)
        if stats.n_evaluated == 1:
            before = self._plain.value
            self._plain.follow(ratio)
            self._wide.value *= math.sqrt(self._plain.value / before)
        else:
            self._wide.follow(ratio)
        if stats.draft_evaluated and stats.draft_evaluated[0] <= _SHORT:
            expected = sum(self._draft_s(n, n_past) for n in stats.draft_evaluated)
            self._draft.follow(self._draft.value * stats.draft_s / expected)
        self._since_plain = 0 if stats.n_evaluated == 1 else self._since_plain + 1
        if self.stale and not self._told:
            logger.info("the measured costs no longer fit this device; the next load measures anew")
            self._profile.forget()
            self._told = True
        rate = stats.n_emitted / max(stats.total_s, 1e-9)
        self._price += _MEMORY * (rate - self._price) if self._price else rate
        plain = self.plain_s(n_past)
        charged = stats.n_drafted or stats.draft_evaluated
        lost = max(0.0, stats.total_s - reading_s - plain) / plain if charged else 0.0
        self._purse += stats.n_accepted - lost + EXPLORE * stats.n_emitted
        self._credit = min(self._credit + EXPLORE * stats.n_emitted, 4.0)

    def plain_s(self, n_past: int) -> float:
        """By the profile, corrected by the last plain steps."""
        return self._plain.value * self._profile.target(1, n_past) + self._profile.overhead

    @property
    def stale(self) -> bool:
        """Whether steps take so much more or less than the profile says, or in so different a
        proportion, that it should be measured anew.
        """
        ratios = (self._plain, self._wide)
        return any(ratio.n > 16 and not 0.6 < ratio.value < 1.7 for ratio in ratios)

    def _known(
        self, index: int, offer: Offer, limit: int, target: Sequence[float], price: float
    ) -> Plan:
        """The depth at which tokens that are there already gain most."""
        best, gain, expected = 0, 0.0, 0.0
        for depth, survival in enumerate(offer.survival[: min(limit, offer.n_known)], start=1):
            expected += survival
            stake = price * (target[depth + 1] - target[1])
            if stake * (1 - survival) > self._purse:
                break
            if expected - stake > gain:
                best, gain = depth, expected - stake
        return Plan(index, best, gain=gain)

    def _drawn(self, known: Plan, offer: Offer, limit: int, budget: Budget, price: float) -> Plan:
        """The same, continued by a draft model: one evaluation shows how sure it is, and from
        there it drafts what pays, as deep as the purse allows.

        What it has to read before that is spread over as many tokens as the answer has already,
        or the shorter of the last two had: whether an answer will be long is known when it is.
        """
        if offer.n_known and not known.depth:
            return known
        model = self._model(offer.follow, budget.n_past, price)
        survival = offer.survival[known.depth - 1] if known.depth else 1.0
        depth = known.depth + self._affordable(known.depth, model, budget, price)
        if depth == known.depth:
            return known
        gain = known.gain + model.worth(offer.starts, survival)
        like_others = min(self._lengths) - budget.n_emitted
        ahead = min(budget.remaining, max(budget.n_emitted, like_others, _SHORT))
        steps = max(1.0, ahead / (1 + sum(offer.survival[:4])))
        gain -= self._reading(offer, known.depth, budget, price) / steps
        return Plan(known.index, min(limit, depth), model.floors.starting(known.depth), gain)

    def _affordable(self, n: int, model: _Model, budget: Budget, price: float) -> int:
        """How many tokens a draft model may add to n: the purse could lose them all."""
        target = self._target(budget.n_past)
        for depth in range(1, self._max_depth - n + 1):
            lost = price * (target[n + depth + 1] - target[1]) + depth * model.each
            if lost > self._purse:
                return depth - 1
        return self._max_depth - n

    def _reading(self, offer: Offer, n_known: int, budget: Budget, price: float) -> float:
        """Tokens lost while a draft model reads up, but for the one it has to read anyway."""
        n = (offer.n_pending or 1) + n_known
        return price * (self._draft_s(n, budget.n_past) - self._draft_s(1, budget.n_past))

    def _explore(self, probe: Plan, offers: Sequence[Offer], budget: Budget, price: float) -> Plan:
        """Nothing gains: a draft model that could, if what it may lose has been saved up."""
        matched = any(offer.survival and offer.n_pending is None for offer in offers)
        self.reason = "drafts too unsure" if matched or probe.depth else "no match"
        if not probe.depth:
            return Plan()
        if self._model(1.0, budget.n_past, price).worth([(1.0, 1.0)]) <= MARGIN:
            self.reason = "draft too slow"
            return Plan()
        loss = MARGIN - probe.gain + self._reading(offers[probe.index], 0, budget, price)
        if loss > min(self._credit, 5 * EXPLORE * budget.n_emitted):
            return Plan()
        self._credit -= loss
        return probe

    def _model(self, follow: float, n_past: int, price: float) -> _Model:
        """Kept until one of them has changed by about 4%."""
        costs = self._target(n_past)
        key = (*self._table[0], round(25 * math.log(price)), round(25 * follow))
        if key not in self._cached:
            if len(self._cached) >= 32:
                self._cached.clear()
            self._cached[key] = self._weigh(follow, n_past, price, costs)
        return self._cached[key]

    def _weigh(self, follow: float, n_past: int, price: float, seconds: Sequence[float]) -> _Model:
        """Floors: the least survival that pays over the best number of further tokens."""
        each = price * self._draft_s(1, n_past)
        costs = [price * s for s in seconds]
        tokens = list(itertools.accumulate(follow**j for j in range(_AHEAD)))
        keep, extend = [], []
        for i in range(self._max_depth):
            lost = [costs[i + j + 2] - costs[i + 1] + j * each for j in range(_AHEAD)]
            keep.append(min(x / n for x, n in zip(lost, tokens, strict=True)))
            extend.append(min((x + each) / n for x, n in zip(lost, tokens, strict=True)) / follow)
            if not i:
                gains = _useful(list(zip(tokens, lost, strict=True)))
        return _Model(each, gains, Floors(tuple(keep), tuple(extend)))

    def _draft_s(self, n: int, n_past: int) -> float:
        draft = self._profile.draft
        return self._plain.value * self._draft.value * draft(n, n_past) if draft else 1e9

    def _target(self, n_past: int) -> list[float]:
        """Seconds of n tokens, Python's included; kept until they have changed by about 2%."""
        plain, wide = self._plain.value, self._wide.value
        key = (n_past >> 7, round(50 * math.log(plain)), round(50 * math.log(wide)))
        if self._table[0] != key:
            curve, overhead = self._profile.target, self._profile.overhead
            first = plain * curve(1, n_past)
            n = self._max_depth + _AHEAD + 3
            more = [max(first, wide * curve(i, n_past)) for i in range(2, n)]
            self._table = key, [overhead + seconds for seconds in (0.0, first, *more)]
        return self._table[1]


def _useful(gains: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Those that are best at some survival."""
    best = {max(gains, key=lambda g: s / 20 * g[0] - g[1]) for s in range(1, 21)}
    return tuple(sorted(best))
