"""A device profile, corrected by what real steps take."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable

from ..types import StepStats, Thresholds
from .profile import Profile

MEMORY = 1 / 24  # weight of a new step in running means
AHEAD = 8  # tokens of a draft model that are weighed together
_WEIGHED = (1, 2, 4, AHEAD)  # numbers of further tokens, of which the best one counts
_NOISE = 0.03  # changes of a ratio that tables do not follow
_BLOCK = 128  # cached tokens that tables hold for
_READING = 8  # tokens: to evaluate so many and more is another thing than to draft


class _Ratio:
    """A measured time over the expected one: of the first ones a mean, then followed slowly.
    At first quickly downwards, for other programs only ever add to a time; one that is `steady`
    rises slowly from the beginning, for there are many like it.
    """

    def __init__(self, steady: bool = True) -> None:
        self.value, self.n, self._steady = 1.0, 0, steady

    @property
    def is_off(self) -> bool:
        """Whether it is far from one, and known to be."""
        return self.n > 16 and not 0.6 < self.value < 1.7

    def follow(self, ratio: float) -> None:
        self.n += 1
        weight = MEMORY if self._steady else max(MEMORY, 1 / (self.n + 1))
        if self.n <= 8 and ratio < self.value:
            weight = 0.5
        elif not self.value / 2 < ratio < 2 * self.value:
            ratio = self.value * (2 if ratio > self.value else 0.5)
        self.value += weight * (ratio - self.value)


class Tail:
    """A draft model's tokens at the end of a draft: what they give, and take.

    each: seconds of one of its evaluations; follow: the chance of a token behind one that was
    accepted; seconds: of the target's evaluations of 0, 1, 2, … tokens.
    """

    def __init__(self, each: float, follow: float, seconds: list[float]) -> None:
        self.each = each
        self._follow = follow
        self._seconds = seconds
        tokens = list(itertools.accumulate(follow**i for i in range(AHEAD)))
        # n, tokens for each unit of the first one's survival, seconds of drafting behind it
        self._weighed = [(n, tokens[n - 1], each * (n - 1)) for n in _WEIGHED]
        self._gains = [(n, t, seconds[n + 1] - seconds[1] + s) for n, t, s in self._weighed]

    def worth(
        self, starts: Iterable[tuple[float, float]], depth: int, scale: float, price: float
    ) -> float:
        """Tokens gained by at most `depth` tokens, before their first evaluation. starts: as in
        an Offer; scale: survival of what is before them; price: tokens a second.
        """
        gains = [(tokens, price * lost) for n, tokens, lost in self._gains if n <= depth]
        least = min([lost / tokens for tokens, lost in gains])
        total = -price * self.each
        for share, first in starts:
            survival = scale * first
            if share > 0.01 and survival > least:
                total += share * max([survival * tokens - lost for tokens, lost in gains])
        return total

    def thresholds(self, n_known: int, depth: int, price: float) -> Thresholds:
        """For a draft of `depth` tokens of which the first n_known are there already."""
        keep, extend = self._least
        keeps = [price * seconds for seconds in keep[n_known:depth]]
        extends = [price * seconds for seconds in extend[n_known + 1 : depth]]
        return Thresholds((0.0,) * n_known + tuple(keeps), (0.0,) * (n_known + 1) + tuple(extends))

    @functools.cached_property
    def _least(self) -> tuple[list[float], list[float]]:
        """The least survivals that pay, (to keep a token, to make another), over the price of
        time: in seconds a token, over the best of _WEIGHED.
        """
        keep, extend = [], []
        for first in range(1, len(self._seconds) - AHEAD):
            before, after = self._seconds[first], self._seconds[first:]
            added = [(after[n] - before + s, tokens) for n, tokens, s in self._weighed]
            keep.append(min([s / tokens for s, tokens in added]))
            extend.append(min([(s + self.each) / tokens for s, tokens in added]) / self._follow)
        return keep, extend


class Costs:
    """Seconds of evaluations. Plain steps, wider ones and a draft model's are corrected apart:
    a profile may have been measured in a bad moment, and what slows the reading of weights
    (other programs) is not what slows arithmetic (heat).
    """

    def __init__(self, profile: Profile, max_depth: int) -> None:
        self._profile = profile
        self._max_depth = max_depth
        self.plain = _Ratio()
        self._wide = _Ratio(steady=False)
        self._draft = _Ratio(steady=False)  # beside that of plain steps
        self._settled = 1.0, 1.0, 1.0  # the three, as tables take them
        self._block = -1
        self._measured: list[float] = []  # of 1, 2, … tokens, by the profile
        self._drafting: list[float] = []  # of 0, 1, 2, … by the draft model, by the profile
        self._table: list[float] = []  # of 0, 1, 2, … tokens, by settled ratios
        self._tails: dict[int, Tail] = {}  # that go with it

    def observe(self, stats: StepStats, n_past: int) -> None:
        """One step behind n_past cached tokens."""
        ratio = stats.verify_s / self._profile.target(stats.n_evaluated, n_past)
        if stats.n_evaluated == 1:
            before = self.plain.value
            self.plain.follow(ratio)
            self._wide.value *= math.sqrt(self.plain.value / before)
        else:
            self._wide.follow(ratio)
        if stats.draft_evaluated and stats.draft_evaluated[0] < _READING:
            expected = sum(self.draft(n, n_past) for n in stats.draft_evaluated)
            self._draft.follow(self._draft.value * stats.draft_s / expected)
        self._settle()

    @property
    def stale(self) -> bool:
        """Whether steps take so much more or less than the profile says that it should be
        measured anew.
        """
        return self.plain.is_off or self._wide.is_off

    def plain_s(self, n_past: int) -> float:
        """A plain step, Python's share included."""
        return self.plain.value * self._profile.target(1, n_past) + self._profile.overhead

    def draft(self, n: int, n_past: int) -> float:
        """A draft model's evaluation of n tokens; of few by the block that `target` gave last."""
        if not self._profile.draft:
            return 1e9
        few = n < len(self._drafting)
        seconds = self._drafting[n] if few else self._profile.draft(n, n_past)
        return self.plain.value * self._draft.value * seconds

    def target(self, n_past: int) -> list[float]:
        """Of 0, 1, 2, … tokens, Python's share included. Made for blocks of cached tokens, and
        anew where a ratio has changed by more than noise.
        """
        if self._block != n_past // _BLOCK:
            self._block, self._table = n_past // _BLOCK, []
            curve, drafting = self._profile.target, self._profile.draft
            middle = self._block * _BLOCK + _BLOCK // 2
            self._measured = [curve(n, middle) for n in range(1, self._max_depth + AHEAD + 1)]
            self._drafting = [drafting(n, middle) for n in range(_READING)] if drafting else []
        if not self._table:
            plain, wide, _ = self._settled
            overhead, first = self._profile.overhead, plain * self._measured[0]
            more = [overhead + max(first, wide * s) for s in self._measured[1:]]
            self._table = [overhead, overhead + first, *more]
            self._tails.clear()
        return self._table

    def tail(self, follow: float) -> Tail:
        """By the costs that `target` gave last. follow: the chance of a token behind one that was
        accepted, in steps of 0.04.
        """
        kind = max(1, round(25 * follow))
        tail = self._tails.get(kind)
        if tail is None:
            plain, _, draft = self._settled
            each = plain * draft * self._drafting[1] if self._drafting else 1e9
            tail = self._tails[kind] = Tail(each, kind / 25, self._table)
        return tail

    def _settle(self) -> None:
        """All three at once, for their differences decide."""
        now = plain, wide, draft = self.plain.value, self._wide.value, self._draft.value
        last_plain, last_wide, last_draft = self._settled
        changes = plain / last_plain, wide / plain * last_plain / last_wide, draft / last_draft
        if not all(1 - _NOISE < change < 1 + _NOISE for change in changes):
            self._settled, self._table = now, []
