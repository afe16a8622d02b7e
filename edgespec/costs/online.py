"""A device profile corrected by the times of real steps, and the worth of more drafting."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable

from ..types import StepStats, Thresholds
from .profiles import Profile

MEMORY = 1 / 24  # weight of a new step in running means
LOOK_AHEAD = 8  # tokens of a draft model that are weighed together
_WEIGHED = (1, 2, 4, LOOK_AHEAD)  # numbers of further tokens, of which the best one counts
_TOLERANCE = 0.03  # tables follow a ratio only if it has changed by more
_BLOCK = 128  # tables hold for so many cached tokens
_READING = 8  # tokens: evaluations of so many and more are reading, not drafting
_UNKNOWN_S = 1e9  # an evaluation of a draft model whose costs were not measured


class _Ratio:
    """The ratio of measured to expected times: a mean of the first ones, which then follows slowly.

    At first it follows quickly downwards, for other programs only ever add to a time; one that is
    `steady` rises slowly from the beginning, because there are many measurements of it.
    """

    def __init__(self, steady: bool = True) -> None:
        self.value, self.n, self._steady = 1.0, 0, steady

    @property
    def is_off(self) -> bool:
        """True if it is known to be far from one."""
        return self.n > 16 and not 0.6 < self.value < 1.7

    def follow(self, ratio: float) -> None:
        """Take one measured ratio into account."""
        self.n += 1
        weight = MEMORY if self._steady else max(MEMORY, 1 / (self.n + 1))
        if self.n <= 8 and ratio < self.value:
            weight = 0.5
        elif not self.value / 2 < ratio < 2 * self.value:
            ratio = self.value * (2 if ratio > self.value else 0.5)
        self.value += weight * (ratio - self.value)


class FurtherTokens:
    """The worth of further tokens that a draft model adds at the end of a draft.

    token_s: seconds of one of the model's evaluations. conditional_rate: acceptance rate of a
    token behind one that was accepted. seconds: of the target's evaluations of 0, 1, 2, … tokens.
    """

    def __init__(self, token_s: float, conditional_rate: float, seconds: list[float]) -> None:
        self.token_s = token_s
        self._conditional_rate = conditional_rate
        self._seconds = seconds
        tokens = list(itertools.accumulate(conditional_rate**i for i in range(LOOK_AHEAD)))
        # n, tokens for each unit of the first one's probability, seconds of drafting behind it
        self._weighed = [(n, tokens[n - 1], token_s * (n - 1)) for n in _WEIGHED]
        self._gains = [(n, t, seconds[n + 1] - seconds[1] + s) for n, t, s in self._weighed]

    def worth(
        self, histogram: Iterable[tuple[float, float]], depth: int, scale: float, price: float
    ) -> float:
        """Return the tokens gained by at most `depth` tokens, before their first evaluation.

        histogram: the confidence histogram of an Extension. scale: acceptance probability of
        the tokens before them. price: tokens that a second costs.
        """
        gains = [(tokens, price * lost) for n, tokens, lost in self._gains if n <= depth]
        least = min([lost / tokens for tokens, lost in gains])
        total = -price * self.token_s
        for share, first in histogram:
            prob = scale * first
            if share > 0.01 and prob > least:
                total += share * max([prob * tokens - lost for tokens, lost in gains])
        return total

    def thresholds(self, n_known: int, depth: int, price: float) -> Thresholds:
        """Return the thresholds of a draft of `depth` tokens, the first n_known of them known."""
        keep, extend = self._least
        keeps = [price * seconds for seconds in keep[n_known:depth]]
        extends = [price * seconds for seconds in extend[n_known + 1 : depth]]
        return Thresholds((0.0,) * n_known + tuple(keeps), (0.0,) * (n_known + 1) + tuple(extends))

    @functools.cached_property
    def _least(self) -> tuple[list[float], list[float]]:
        """The least acceptance probabilities that pay, over the price of time: seconds a token.

        The first list is for keeping a token, the second for evaluating another one; each entry
        is the best over the numbers in _WEIGHED.
        """
        keep, extend = [], []
        for first in range(1, len(self._seconds) - LOOK_AHEAD):
            before, after = self._seconds[first], self._seconds[first:]
            added = [(after[n] - before + s, tokens) for n, tokens, s in self._weighed]
            keep.append(min([s / tokens for s, tokens in added]))
            least = min([(s + self.token_s) / tokens for s, tokens in added])
            extend.append(least / self._conditional_rate)
        return keep, extend


class Costs:
    """The seconds of evaluations on this device, by the profile and corrected by every step.

    Plain steps, wider ones and a draft model's are corrected apart: a profile may have been
    measured in a bad moment, and what slows the reading of weights (other programs) is not what
    slows arithmetic (heat). max_depth: most tokens of a draft; raises ValueError below one.
    """

    def __init__(self, profile: Profile, max_depth: int = 31) -> None:
        if max_depth < 1:
            raise ValueError(f"max_depth must be at least 1, not {max_depth}")
        self.profile = profile
        self.max_depth = max_depth
        self.plain = _Ratio()
        self._wide = _Ratio(steady=False)
        self._draft = _Ratio(steady=False)  # beside that of plain steps
        self._settled = 1.0, 1.0, 1.0  # the three, as tables take them
        self._block = -1
        self._measured: list[float] = []  # of 1, 2, … tokens, by the profile
        self._drafting: list[float] = []  # of 0, 1, 2, … by the draft model, by the profile
        self._table: list[float] = []  # of 0, 1, 2, … tokens, by settled ratios
        self._further: dict[tuple[int, float], FurtherTokens] = {}  # that go with it

    def observe(self, stats: StepStats, n_past: int) -> None:
        """Correct the costs by one step behind n_past cached tokens."""
        ratio = stats.verify_s / self.profile.target(stats.n_evaluated, n_past)
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
        """True if steps differ so much from the profile that it should be measured anew."""
        return self.plain.is_off or self._wide.is_off

    def plain_s(self, n_past: int) -> float:
        """Return the seconds of a plain step, Python's share included."""
        return self.plain.value * self.profile.target(1, n_past) + self.profile.overhead

    def draft(self, n: int, n_past: int) -> float:
        """Return the seconds of a draft model's evaluation of n tokens.

        For few tokens they are those at the cached tokens that `target` was last called with.
        """
        if not self.profile.draft:
            return _UNKNOWN_S
        few = n < len(self._drafting)
        seconds = self._drafting[n] if few else self.profile.draft(n, n_past)
        return self.plain.value * self._draft.value * seconds

    @property
    def draft_token_s(self) -> float:
        """The seconds of a draft model's evaluation of one token, as tables take them."""
        plain, _, draft = self._settled
        return plain * draft * self._drafting[1] if self._drafting else _UNKNOWN_S

    def target(self, n_past: int) -> list[float]:
        """Return the seconds of steps of 0, 1, 2, … tokens, Python's share included.

        The table is made for a block of cached tokens, and anew if a ratio has changed by more
        than the tolerance.
        """
        if self._block != n_past // _BLOCK:
            self._block, self._table = n_past // _BLOCK, []
            curve, drafting = self.profile.target, self.profile.draft
            middle = self._block * _BLOCK + _BLOCK // 2
            self._measured = [curve(n, middle) for n in range(1, self.max_depth + LOOK_AHEAD + 1)]
            self._drafting = [drafting(n, middle) for n in range(_READING)] if drafting else []
        if not self._table:
            plain, wide, _ = self._settled
            overhead, first = self.profile.overhead, plain * self._measured[0]
            more = [overhead + max(first, wide * s) for s in self._measured[1:]]
            self._table = [overhead, overhead + first, *more]
            self._further.clear()
        return self._table

    def further(self, conditional_rate: float, token_s: float) -> FurtherTokens:
        """Return the worth of further tokens at the costs that `target` returned last.

        conditional_rate: acceptance rate of a token behind one that was accepted, rounded to
        steps of 0.04.
        """
        steps = max(1, round(25 * conditional_rate))
        key = steps, token_s
        found = self._further.get(key)
        if found is None:
            found = self._further[key] = FurtherTokens(token_s, steps / 25, self._table)
        return found

    def _settle(self) -> None:
        """Adopt the three ratios for tables all at once, for their differences decide."""
        now = plain, wide, draft = self.plain.value, self._wide.value, self._draft.value
        last_plain, last_wide, last_draft = self._settled
        changes = plain / last_plain, wide / plain * last_plain / last_wide, draft / last_draft
        if not all(1 - _TOLERANCE < change < 1 + _TOLERANCE for change in changes):
            self._settled, self._table = now, []
