"""Drafts what is expected to pay on this device, and nothing where nothing does.

Time has a price: the tokens that the loop emits a second. A draft gains the tokens that are
expected to be accepted, less the price of the time that it adds to a plain step. Of all
sources and depths the one that gains most is taken, none where none gains more than a margin.

Two accounts keep promises where estimates are wrong. The *purse* is what may still be lost
against plain decoding: it begins with a little, losses empty it, gains fill it, and no draft
may risk more than it holds; an answer begins with what is left, within limits, and is lent a
little where drafts that the purse forbade prove right. The *credit* is the share of time that
may be spent on trying a draft model that is expected to lose.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Sequence
from typing import NamedTuple

from ..costs.corrections import AHEAD, MEMORY, Costs, Tail
from ..costs.profile import Profile
from ..types import PLAIN, Budget, Offer, Plan, StepStats

logger = logging.getLogger("edgespec.adaptive")

RISK = 1.05  # what a draft costs is counted so many times: the best of many guesses flatters itself
MARGIN = 0.03  # tokens a step that a draft must promise above plain decoding
PURSE = 3.5  # tokens that the first answer may lose, and any that follows one that gained
NEW = 1.5  # that any may lose
LENT = 3.0  # that it may lose besides, where forbidden drafts would have won as much
SURE = 0.4  # chance of failure that a stake is weighed with at least
EXPLORE = 0.01  # share of what is emitted that may be lost as well, and again on trying
CERTAIN = ((1.0, 1.0),)  # what no draft model can surpass
_TOO_SLOW, _TOO_UNSURE = "draft too slow", "drafts too unsure"
_SHORT = 8  # tokens that an answer is sure to have; then it is always half-way
_IN_SIGHT, _GROWTH = 16, 4  # it is like the last two so far ahead: 16 and 4 times what it has
_PLAIN_EVERY = 48  # steps that draft, at most, before one is plain
_REST = 16  # steps for which a draft model that would not pay is not asked again


class Forbidden(NamedTuple):
    """A draft that the purse forbade. offer: its index; n_emitted: tokens of the answer, then;
    depth; stake: tokens that it would have cost; right: so many of it have been said since.
    """

    offer: int
    n_emitted: int
    depth: int
    stake: float
    right: int = 0


class Adaptive:
    """The policy behind "auto". `profile`: measured costs, corrected by every step. max_depth: most
    tokens of a draft, at least one; ValueError.

    A plain step is taken now and then in any case, for nothing else tells what plain decoding
    takes. reason: why the last plain step was plain, in a few words.
    """

    def __init__(self, profile: Profile, max_depth: int = 31) -> None:
        if max_depth < 1:
            raise ValueError(f"max_depth must be at least 1, not {max_depth}")
        self._profile = profile
        self._max_depth = max_depth
        self._costs = Costs(profile, max_depth)
        self._since_plain = 1  # so the first step is plain: the profile may be of a slower moment
        self._told = False  # that the profile is stale
        self.reason = "no draft yet"
        self._price = 0.0  # tokens a second
        self._credit = 0.0
        self._purse = PURSE
        self._n_emitted = 0
        self._lengths = (0, 0)  # of the last two answers
        self._reading_s = 0.0  # what the step under way is not charged with
        self._read, self._won = 0.0, 0.0  # tokens that this answer lost reading, and won by it
        self._reluctance = 1.0  # what reading has to win, by its cost
        self._rest = 0  # steps until a draft model is asked again
        self._resting: set[int] = set()  # its offers
        self._forbidden: Forbidden | None = None
        self._lent = 0.0  # tokens, to this answer

    def choose(self, offers: Sequence[Offer], budget: Budget) -> Plan:
        """The offer and depth that gain most."""
        if budget.n_emitted <= self._n_emitted:  # another answer
            self._purse = min(max(self._purse - self._lent, NEW), PURSE)
            self._lengths = self._lengths[1], self._n_emitted
            self._reconsider_reading()
            self._rest = 0
            self._forbidden, self._lent = None, 0.0
        self._n_emitted = budget.n_emitted
        if self._forbidden:
            self._look_back(self._forbidden, offers, budget.n_emitted)
        self._reading_s = 0.0
        if self._since_plain >= (_PLAIN_EVERY if self._costs.plain.n >= 4 else 1):
            self.reason = "measuring plain decoding"
            return PLAIN
        live = self._live(offers)
        if not live:
            if not self._resting:
                self.reason = "no match"
            return PLAIN
        target = self._costs.target(budget.n_past)
        price = RISK * max(self._price, 1 / target[1])
        plan, n_known = self._best(live, budget, target, price)
        offer = live.get(plan.offer)
        if not plan.depth or not offer or offer.n_pending is None:
            return plan
        self._reading_s = self._reading(offer, 0, budget)
        thresholds = self._costs.tail(offer.follow).thresholds(n_known, plan.depth, price)
        return plan._replace(thresholds=thresholds)

    def observe(self, stats: StepStats) -> None:
        """Correct costs and the price of time by what the step took and gave."""
        reading_s, self._reading_s = self._reading_s, 0.0  # the next may be taken without `choose`
        if stats.n_evaluated != stats.n_drafted + 1:
            return  # it ended the prefill as well
        n_past = stats.n_past - stats.n_emitted
        self._costs.observe(stats, n_past)
        self._since_plain = 0 if stats.n_evaluated == 1 else self._since_plain + 1
        if self.stale and not self._told:
            logger.info("the measured costs no longer fit this device; the next load measures anew")
            self._profile.forget()
            self._told = True
        rate = stats.n_emitted / max(stats.total_s, 1e-9)
        self._price += MEMORY * (rate - self._price) if self._price else rate
        plain = self.plain_s(n_past)
        charged = stats.n_drafted or stats.draft_evaluated
        lost = max(0.0, stats.total_s - reading_s - plain) / plain if charged else 0.0
        if stats.draft_evaluated:
            self._read += reading_s / plain
            self._won += stats.n_accepted - lost
        self._purse += stats.n_accepted - lost + EXPLORE * stats.n_emitted
        self._credit = min(self._credit + EXPLORE * stats.n_emitted, 4.0)

    def plain_s(self, n_past: int) -> float:
        """By the profile, corrected by the last plain steps."""
        return self._costs.plain_s(n_past)

    @property
    def stale(self) -> bool:
        """Whether the profile no longer fits the device."""
        return self._costs.stale

    def _reconsider_reading(self) -> None:
        """An answer has ended: did the draft model win back what it took to read?"""
        factor = 0.9 if not self._read else 0.5 if self._won > self._read else 1.5
        self._reluctance = min(max(1.0, self._reluctance * factor), 2.0)
        self._read = self._won = 0.0

    def _live(self, offers: Sequence[Offer]) -> dict[int, Offer]:
        """Those that have anything to offer. A draft model that rests is not asked."""
        if self._rest:
            self._rest -= 1
        else:
            self._resting.clear()
        asked = {i: offers[i] for i in range(len(offers)) if i not in self._resting}
        return {i: offer for i, offer in asked.items() if offer.survival}

    def _best(
        self, live: dict[int, Offer], budget: Budget, target: Sequence[float], price: float
    ) -> tuple[Plan, int]:
        """What gains most, or is tried; how many of its tokens are there already."""
        best = probe = PLAIN
        known: dict[int, int] = {}
        idle: list[int] = []
        for index, offer in live.items():
            known[index], gain = self._known(index, offer, budget, target, price)
            plan = Plan(index, known[index], gain=gain)
            if offer.n_pending is not None:
                plan = self._drawn(plan, offer, budget, target, price)
                if plan.gain <= MARGIN and not offer.n_known:
                    idle = [index]
                if plan.depth > known[index]:
                    read = self._spread(offer, known[index], budget, price)
                    plan = plan._replace(gain=plan.gain - read)
                if not probe.depth or plan.gain > probe.gain:
                    probe = plan
            if plan.gain > best.gain:
                best = plan
        if best.gain <= MARGIN:
            best = self._explore(probe, live, budget, price)
            if idle and not best.depth:
                self._resting.update(idle)
                self._rest = _REST
        return best, known.get(best.offer, 0)

    def _known(
        self, index: int, offer: Offer, budget: Budget, target: Sequence[float], price: float
    ) -> tuple[int, float]:
        """(depth, gain) at which tokens that are there already gain most, within the purse. Notes
        what only the purse forbids.
        """
        limit = min(budget.limit, offer.n_known, self._max_depth)
        best = wished = 0, 0.0
        expected, first, purse, affordable = 0.0, target[1], self._purse, True
        for depth, survival in enumerate(offer.survival[:limit], start=1):
            expected += survival
            stake = price * (target[depth + 1] - first)
            affordable = affordable and stake * max(1 - survival, SURE) <= purse
            if expected - stake > wished[1]:
                wished = depth, expected - stake
                if affordable:
                    best = wished
        if best[1] <= MARGIN < wished[1] and not self._forbidden and offer.n_pending is None:
            stake = price * (target[wished[0] + 1] - first)
            self._forbidden = Forbidden(index, budget.n_emitted, wished[0], stake)
        return best

    def _look_back(self, draft: Forbidden, offers: Sequence[Offer], n_emitted: int) -> None:
        """A forbidden draft that proves right shows that the purse is too strict with this text:
        what it would have won, in the end or by its first wrong token, is lent.
        """
        said = n_emitted - draft.n_emitted
        unbroken = offers[draft.offer].streak >= said
        if unbroken and said < draft.depth:
            self._forbidden = draft._replace(right=said)
            return
        won = (draft.depth if unbroken else draft.right) - draft.stake
        lent = max(0.0, min(won, NEW - self._purse, LENT - self._lent))
        self._purse += lent
        self._lent += lent
        self._forbidden = None

    def _drawn(
        self, known: Plan, offer: Offer, budget: Budget, target: Sequence[float], price: float
    ) -> Plan:
        """The same, continued by a draft model: one evaluation shows how sure it is, and from
        there it drafts what pays, as deep as the purse allows.
        """
        n = known.depth
        if offer.n_known and not n:
            return known
        tail = self._costs.tail(offer.follow)
        depth = min(self._affordable(n, tail, target, price), budget.limit - n)
        if depth <= 0:
            return known
        survival = offer.survival[n - 1] if n else 1.0
        gain = known.gain + tail.worth(offer.starts, depth, survival, price)
        return Plan(known.offer, n + depth, gain=gain)

    def _spread(self, offer: Offer, n_known: int, budget: Budget, price: float) -> float:
        """Tokens that reading up costs a step. It is spread over as many tokens as the answer has
        already, or the shorter of the last two had, the latter with caution: whether an answer
        will be long is known when it is.
        """
        reading_s = self._reading(offer, n_known, budget)
        if not reading_s:
            return 0.0
        in_sight = _IN_SIGHT + _GROWTH * budget.n_emitted
        like_others = min(min(self._lengths) - budget.n_emitted, in_sight)
        ahead = min(budget.remaining, max(budget.n_emitted, like_others, _SHORT))
        steps = max(1.0, ahead / (1 + sum(offer.survival[:4])))
        return self._reluctance * price * reading_s / steps

    def _affordable(self, n: int, tail: Tail, target: Sequence[float], price: float) -> int:
        """How many tokens a draft model may add to n: the purse could lose them all."""
        afforded = self._purse / price + target[1]
        return bisect.bisect_right(
            range(1, self._max_depth - n + 1),
            afforded,
            key=lambda depth: target[n + depth + 1] + depth * tail.each,
        )

    def _reading(self, offer: Offer, n_known: int, budget: Budget) -> float:
        """Seconds until a draft model has read up, but for the token it has to read anyway."""
        n, n_past = (offer.n_pending or 1) + n_known, budget.n_past
        if n == 1:
            return 0.0
        return self._costs.draft(n, n_past) - self._costs.draft(1, n_past)

    def _is_hopeless(self, price: float) -> bool:
        """Whether a draft model could not pay with every token right."""
        depth = min(AHEAD, self._max_depth)
        return self._costs.tail(1.0).worth(CERTAIN, depth, 1.0, price) <= MARGIN

    def _explore(self, probe: Plan, live: dict[int, Offer], budget: Budget, price: float) -> Plan:
        """Nothing gains: a draft model that could, if what it may lose has been saved up."""
        if not probe.depth:
            if not self._resting:
                self.reason = _TOO_UNSURE
            return PLAIN
        if self._is_hopeless(price):
            self.reason = _TOO_SLOW
            return PLAIN
        self.reason = _TOO_UNSURE
        loss = MARGIN - probe.gain + price * self._reading(live[probe.offer], 0, budget)
        if loss > min(self._credit, 5 * EXPLORE * budget.n_emitted):
            return PLAIN
        self._credit -= loss
        return probe
