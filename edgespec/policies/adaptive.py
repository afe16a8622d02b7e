"""Drafts what is expected to pay on this device, and nothing where nothing does.

Time has a price: the tokens that the loop emits a second. A draft gains the tokens that are
expected to be accepted, less the price of the time that it adds to a plain step. Of all
sources and depths the one that gains most is taken, none where none gains more than a margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import Budget, Floors, Offer, Plan, StepStats
from .profile import Profile

MARGIN = 0.03
EXPLORE = 0.01  # share of the time that may be lost on finding out
_SHORT = 8  # tokens that an answer is expected to have; a longer one is half-way, always
_LOOK_AHEAD = 8
_MEMORY = 1 / 24  # weight of a new step in running means


@dataclass(slots=True)
class _Source:
    """What is known of a source that needs a model: how its gains differ from its offers."""

    bias: float = 0.0
    n: int = 0


class Adaptive:
    """The policy behind "auto". `profile`: measured costs, corrected by every step."""

    def __init__(self, profile: Profile, max_depth: int = 31) -> None:
        self._profile = profile
        self._max_depth = max_depth
        self._speed = 1.0  # seconds of an evaluation, as a multiple of the profile's
        self._draft_speed = 1.0
        self._price = 0.0  # tokens a second
        self._sources: dict[str, _Source] = {}
        self._credit = 0.0
        self._planned: tuple[str, float, float] | None = None  # source, gain, reading
        self.why = "no step yet"

    def choose(self, offers: Sequence[Offer], budget: Budget) -> Plan:
        """The offer and depth that gain most."""
        n_past = budget.n_past
        plain = self._target(1, n_past)
        price = max(self._price, 1 / plain)
        limit = min(budget.limit, self._max_depth)
        best, probe = Plan(), Plan()
        for index, offer in enumerate(offers):
            if not offer.survival:
                continue
            if offer.n_pending is None:
                plan = self._lookup(index, offer, limit, n_past, price)
            else:
                plan = self._model(index, offer, limit, budget, price)
                if self._could_pay(offer, limit, n_past, price) and plan.gain > probe.gain - 9:
                    probe = plan
            if plan.depth and plan.gain > best.gain:
                best = plan
        if best.gain <= MARGIN:
            best = self._explore(probe)
        self._planned = None
        if best.depth:
            offer = offers[best.index]
            reading = self._reading_s(offer, n_past) if offer.n_pending else 0.0
            self._planned = (offer.source, best.gain, reading)
        return best

    def _lookup(self, index: int, offer: Offer, limit: int, n_past: int, price: float) -> Plan:
        """The depth at which a draft that costs nothing gains most."""
        plain = self._target(1, n_past)
        best, gain, expected = 0, 0.0, 0.0
        for depth, survival in enumerate(offer.survival[:limit], start=1):
            expected += survival
            value = expected - price * (self._target(depth + 1, n_past) - plain)
            if value > gain:
                best, gain = depth, value
        return Plan(index, best, Floors(), gain)

    def _model(self, index: int, offer: Offer, limit: int, budget: Budget, price: float) -> Plan:
        """A draft model's draft ends where going on does not pay; what that gains is learned."""
        depth, gain = self._best_depth(offer.survival[:limit], budget.n_past, price)
        source = self._sources.setdefault(offer.source, _Source())
        ahead = min(budget.remaining, max(budget.n_emitted, _SHORT))
        steps = ahead / (1 + sum(offer.survival[:depth]))
        reading = self._reading_s(offer, budget.n_past)
        gain += source.bias - price * reading / max(1.0, steps)
        floors = self._floors(offer.survival[:limit], budget.n_past, price)
        return Plan(index, limit, floors, gain)

    def _best_depth(
        self, survival: Sequence[float], n_past: int, price: float
    ) -> tuple[int, float]:
        plain, each = self._target(1, n_past), self._draft(1, n_past)
        best, gain, expected = 1, -1e9, 0.0
        for depth, share in enumerate(survival, start=1):
            expected += share
            value = expected - price * (self._target(depth + 1, n_past) - plain + depth * each)
            if value > gain:
                best, gain = depth, value
        return best, gain

    def _could_pay(self, offer: Offer, limit: int, n_past: int, price: float) -> bool:
        """Whether it would gain if every token were right."""
        return self._best_depth([1.0] * min(limit, _LOOK_AHEAD), n_past, price)[1] > MARGIN

    def _floors(self, survival: Sequence[float], n_past: int, price: float) -> Floors:
        """Survivals below which a token is not worth its row, or the next one not its making:
        the least that pays over the best number of further tokens, if each of them is as likely
        to follow as tokens are on the whole.
        """
        n = len(survival)
        follow = (survival[-1] / survival[0]) ** (1 / (n - 1)) if n > 1 and survival[0] else 0.8
        times = [self._target(i + 1, n_past) for i in range(n + _LOOK_AHEAD + 1)]
        each = self._draft(1, n_past)
        keep, extend = [], []
        for i in range(n):
            least_keep = least_extend = 1e9
            tokens, share = 0.0, 1.0
            for j in range(1, _LOOK_AHEAD + 1):
                tokens += share
                share *= follow
                added = times[i + j] - times[i]
                least_keep = min(least_keep, price * (added + (j - 1) * each) / tokens)
                least_extend = min(least_extend, price * (added + j * each) / (tokens * follow))
            keep.append(least_keep)
            extend.append(least_extend)
        extend[0] = 0.0  # that it drafts at all is the plan
        return Floors(tuple(keep), tuple(extend))

    def _explore(self, probe: Plan) -> Plan:
        """A draft that is expected to lose, where what it may lose has been saved up."""
        loss = -probe.gain
        if not probe.depth or self._credit < loss:
            return Plan()
        self._credit -= loss
        return probe

    def observe(self, stats: StepStats) -> None:
        """Correct costs, gains and the price of time by what the step took and gave."""
        if stats.n_evaluated != stats.n_drafted + 1:
            return  # the step that ended the prefill
        n_past = stats.n_past - stats.n_emitted
        self._credit = min(self._credit + EXPLORE * stats.n_emitted, 2.0)
        expected = self._profile.target(stats.n_evaluated, n_past)
        ratio = min(max(stats.verify_s / expected, self._speed / 2), 2 * self._speed)
        self._speed += _MEMORY * (ratio - self._speed)
        rate = stats.n_emitted / max(stats.total_s, 1e-9)
        self._price += _MEMORY * (rate - self._price) if self._price else rate
        self._learn(stats, n_past)

    def _learn(self, stats: StepStats, n_past: int) -> None:
        if self._planned is None or self._planned[0] not in self._sources:
            return
        plain = self._target(1, n_past)
        price = max(self._price, 1 / plain)
        took = self._target(stats.n_evaluated, n_past) + stats.draft_s - self._planned[2]
        gained = stats.n_accepted - price * (took - plain)
        source = self._sources[self._planned[0]]
        source.n += 1
        weight = max(_MEMORY, 1 / (source.n + 3))
        source.bias += weight * (gained - self._planned[1])

    def _reading_s(self, offer: Offer, n_past: int) -> float:
        """What a draft model takes to read up, beyond the token that it has to read anyway."""
        return self._draft(offer.n_pending or 1, n_past) - self._draft(1, n_past)

    def _target(self, n: int, n_past: int) -> float:
        return self._speed * self._profile.target(n, n_past) + self._profile.overhead

    def _draft(self, n: int, n_past: int) -> float:
        draft = self._profile.draft
        return self._draft_speed * draft(n, n_past) if draft else 1e9
