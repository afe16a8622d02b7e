"""A device profile that is corrected by the times of real steps."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..types import StepStats
from .profiles import Profile
from .threads import ThreadGovernor

MEMORY = 1 / 24  # weight of a new step in running means
BEYOND = 8  # tokens by which tables are longer than the longest draft
_TOLERANCE = 0.03  # tables are made anew only if a ratio has changed by more than this share
_BLOCK = 128  # cached tokens of a block, for which one table is made
_READING = 8  # tokens: a draft model's evaluation of this many or more is reading, not drafting
_SEEN = 4  # plain steps: fewer say little about the next ones
_SNAPSHOT = 16  # when other programs arrive, corrections by the last 16 to 32 steps are dropped
_SAVING = 0.97  # rows are filled if that takes at most this share of the time
_UNKNOWN_S = 1e9  # assumed seconds of an evaluation by a draft model that was not measured


class _Ratio:
    """The ratio of measured to expected times: at first their mean, later a slow running mean.

    At first it follows lower values quickly, since other programs can only add to a time. A
    `steady` ratio rises slowly from the beginning, because there are many measurements of it.
    """

    def __init__(self, steady: bool = True) -> None:
        self.value, self.n, self._steady = 1.0, 0, steady

    def is_off(self, *, slower_counts: bool) -> bool:
        """Return whether the ratio is known to be far from 1: far below, or, if `slower_counts`,
        far above.
        """
        return self.n > 16 and (self.value <= 0.6 or (slower_counts and self.value >= 1.7))

    def follow(self, ratio: float) -> None:
        """Update the ratio with one measurement."""
        self.n += 1
        weight = MEMORY if self._steady else max(MEMORY, 1 / (self.n + 1))
        if self.n <= 8 and ratio < self.value:
            weight = 0.5
        elif not self.value / 2 < ratio < 2 * self.value:
            ratio = self.value * (2 if ratio > self.value else 0.5)
        self.value += weight * (ratio - self.value)


class _Ratios:
    """The corrections of one regime (see `Costs.follow`).

    settled: the values of `plain`, `wide` and `draft` that tables are made with. like: the
    corrections of another regime, whose values these begin with. Such ratios follow measurements
    quickly in both directions.
    """

    def __init__(self, like: _Ratios | None = None) -> None:
        self._new = like is not None
        self.plain = _Ratio(steady=not self._new)
        self.wide = _Ratio(steady=False)
        self.draft = _Ratio(steady=False)  # the correction is this ratio times that of plain steps
        self.plain_seen = _Ratio(steady=False)  # for statistics: quick in both directions
        if like:
            self.plain.value, self.wide.value = like.plain.value, like.wide.value
            self.draft.value = like.draft.value
        self.settled = self.values

    @property
    def values(self) -> tuple[float, float, float]:
        """The present ratios of plain steps, of wider ones and of the draft model."""
        return self.plain.value, self.wide.value, self.draft.value

    def follow(self, n: int, ratio: float) -> None:
        """Update the ratios with one evaluation of n tokens by the target."""
        if n > 1:
            self.wide.follow(ratio)
            return
        before = self.plain.value
        self.plain.follow(ratio)
        self.plain_seen.follow(ratio)
        change = self.plain.value / before
        self.wide.value *= change if self._new and not self.wide.n else math.sqrt(change)

    def copy(self) -> _Ratios:
        """Return an independent copy."""
        other = copy.copy(self)
        other.plain, other.wide = copy.copy(self.plain), copy.copy(self.wide)
        other.draft, other.plain_seen = copy.copy(self.draft), copy.copy(self.plain_seen)
        return other


class Costs:
    """The seconds of evaluations on this device, as in the profile but corrected after each step.

    A profile may have been measured in a bad moment, so its times are corrected. Plain steps, wider
    steps and a draft model have separate corrections: other programs slow the reading of weights,
    heat slows arithmetic. Each number of threads, with and without other programs, has its own
    corrections (`follow`), so the old ones apply again as soon as other programs have left.

    profile: None until `learn` is called; before that only `known` may be used. max_depth: most
    tokens of a draft; raises ValueError below 1. fills: more rows than needed may be evaluated
    where that takes less time (see `target`). of_table: a cache for values that callers derive from
    the present table of `target`; it is cleared when the table changes.
    """

    def __init__(self, profile: Profile | None, max_depth: int = 31) -> None:
        if max_depth < 1:
            raise ValueError(f"max_depth must be at least 1, not {max_depth}")
        self.max_depth = max_depth
        self.fills = False
        self.known = profile is not None
        self.regime: tuple[int, bool] | None = None  # (threads, disturbed); None: normal
        self._governor: ThreadGovernor | None = None
        if profile:
            self.learn(profile)

    def follow(self, governor: ThreadGovernor | None) -> None:
        """Use separate corrections for each regime of `governor`; tell it the target's costs."""
        self._governor = governor
        if governor and self.known:
            governor.expect(self.profile.target)

    def learn(self, profile: Profile) -> None:
        """Adopt a newly measured profile, from the next step on."""
        self.known = True
        self.profile = profile
        self.regime = None
        self._wide: tuple[int, float, float] | None = None  # a step not yet counted: see `_follow`
        self._normal = self._now = _Ratios()
        self._disturbed: dict[tuple[int, bool], _Ratios] = {}
        self._snapshots = (self._now.copy(), self._now.copy())
        self._n_normal = 0  # steps
        self.follow(self._governor)
        self._block = self._drafting_block = -1
        self._measured: list[float] = []  # seconds of 1, 2, … tokens in the profile
        self._drafting: list[float] = []  # the draft model's seconds of 0, 1, 2, … tokens there
        self._table: list[float] = []  # seconds of 0, 1, 2, … tokens, corrected by settled ratios
        self._rows: list[int] = []  # rows that are evaluated for 0, 1, 2, … tokens
        self._least: list[float] = []
        self.of_table: dict[Any, Any] = {}

    def observe(self, stats: StepStats, n_past: int) -> None:
        """Correct the costs with the times of one step after n_past cached tokens."""
        self._change_regime()
        now = self._now
        self._follow(stats.n_evaluated, stats.verify_s, n_past)
        if stats.draft_evaluated and stats.draft_evaluated[0].n_tokens < _READING:
            first, *more = (self.draft(*work) or _UNKNOWN_S for work in stats.draft_evaluated)
            expected = first + self.profile.growing * sum(more)
            now.draft.follow(now.draft.value * stats.draft_s / expected)
        if self.regime is None:
            self._n_normal += 1
            if self._n_normal % _SNAPSHOT == 0:
                self._snapshots = self._snapshots[1], now.copy()
        self._settle()

    def observe_rows(self, n: int, seconds: float, n_past: int) -> None:
        """Correct the costs with the time of an evaluation of n rows, of several streams."""
        self._change_regime()
        self._follow(n, seconds, n_past)
        self._settle()

    @property
    def stale(self) -> bool:
        """True if steps differ so much from the profile that it should be measured anew.

        Slower steps do not count if other programs might be the cause.
        """
        seen = self._governor.regime if self._governor else None
        alone = seen is None or (seen.visible and not seen.disturbed)
        ratios = self._normal.plain, self._normal.wide
        return any(ratio.is_off(slower_counts=alone) for ratio in ratios)

    @property
    def plain(self) -> _Ratio:
        """The correction of plain steps in this regime."""
        return self._now.plain

    @property
    def tapping_s(self) -> float:
        """The seconds that the target spends in each step on hidden states for a head."""
        return self.plain.value * self.profile.tapping

    def plain_s(self, n_past: int) -> float:
        """Return the seconds of a plain step, including Python's share."""
        return self.plain.value * self.profile.target(1, n_past) + self.profile.overhead

    def seen_plain_s(self, n_past: int) -> float | None:
        """Return the seconds of a plain step as measured lately, None before four plain steps."""
        if not self.known or self._now.plain_seen.n < _SEEN:
            return None
        measured: float = self._now.plain_seen.value * self.profile.target(1, n_past)
        return measured + self.profile.overhead

    def draft(self, n_tokens: int, n_cached: int) -> float:
        """Return the seconds in which the draft model evaluates tokens after `n_cached` others."""
        if not self.known or not self.profile.draft:
            return _UNKNOWN_S
        now = self._now
        seconds = self.profile.draft(n_tokens, n_cached)
        if n_tokens < _READING:
            seconds = self._few_drafted(n_cached)[n_tokens]
        return now.plain.value * now.draft.value * seconds

    def draft_s(self, n_tokens: int, n_cached: int) -> float | None:
        """Return the same as `draft`, but None if the draft model was not measured."""
        known = self.known and self.profile.draft
        return self.draft(n_tokens, n_cached) if known else None

    def draft_token_s(self, n_cached: int) -> float:
        """Return the seconds in which the draft model evaluates one token, by settled ratios."""
        if not self.known or not self.profile.draft:
            return _UNKNOWN_S
        plain, _, draft = self._now.settled
        return plain * draft * self._few_drafted(n_cached)[1]

    def _few_drafted(self, n_cached: int) -> list[float]:
        """Return the draft model's seconds for 0, 1, 2, … tokens, as they are in the profile."""
        block, curve = n_cached // _BLOCK, self.profile.draft
        if self._drafting_block != block and curve:
            self._drafting_block, middle = block, block * _BLOCK + _BLOCK // 2
            self._drafting = [curve(n, middle) for n in range(_READING)]
        return self._drafting

    def target(self, n_past: int) -> list[float]:
        """Return the seconds of steps of 0, 1, 2, … tokens, including Python's share.

        Kernels that work in fours evaluate three rows in more time than four. If `fills`, the time
        of three is then that of four, and `n_filled` returns 1; a single token is never filled.
        The table is made for a block of cached tokens. It is made anew if a ratio has changed by
        more than the tolerance.
        """
        self._change_regime()
        if self._block != n_past // _BLOCK:
            self._block, self._table = n_past // _BLOCK, []
            curve, middle = self.profile.target, n_past // _BLOCK * _BLOCK + _BLOCK // 2
            self._measured = [curve(n, middle) for n in range(1, self.max_depth + BEYOND + 1)]
        if not self._table:
            plain, wide, _ = self._now.settled
            overhead, first = self.profile.overhead, plain * self._measured[0]
            more = [overhead + max(first, wide * s) for s in self._measured[1:]]
            self._table = [overhead, overhead + first, *more]
            self._rows = list(range(len(self._table)))
            if self.fills:
                self._fill()
            self._least = []
            self.of_table.clear()
        return self._table

    def n_filled(self, n: int) -> int:
        """Return how many rows to add to n tokens, by the table that `target` returned last."""
        return self._rows[n] - n

    def _fill(self) -> None:
        """Lower the times of 2, 3, … tokens to those of more rows that take less time."""
        rows, table = self._rows, self._table
        for n in reversed(range(2, self.max_depth + 1)):
            if table[n + 1] < _SAVING * table[n]:
                rows[n], table[n] = rows[n + 1], table[n + 1]

    def least(self, n_past: int) -> list[float]:
        """Return the least acceptance probability at which the 1st, 2nd, … token of a draft can be
        worth its time.

        A less likely token is not worth its time, whatever number of no likelier tokens follow it:
        plain decoding wins the same expected tokens in less time.
        """
        table = self.target(n_past)
        if not self._least:
            self._least = least_slopes(table[1 : self.max_depth + 2], 1 / table[1])
        return self._least

    def _follow(self, n: int, seconds: float, n_past: int) -> None:
        """Correct the costs with an evaluation of n tokens.

        If the target replans, a single token takes longer directly after an evaluation of several
        tokens. That evaluation is the cause, so the lost time is added to it: it is counted only
        when the next one is known. The single token then does not count as plain decoding.
        """
        expected, wide = self.profile.target(n, n_past), self._wide
        if not self.profile.replans:
            self._now.follow(n, seconds / expected)
            return
        if wide:
            n_wide, wide_s, wide_expected = wide
            lost = max(0.0, seconds - self._now.plain.value * expected) if n == 1 else 0.0
            self._now.follow(n_wide, (wide_s + lost) / wide_expected)
        elif n == 1:
            self._now.follow(n, seconds / expected)
        self._wide = (n, seconds, expected) if n > 1 else None

    def _settle(self) -> None:
        """Adopt the ratios for tables if one of them has changed by more than the tolerance. All
        three are adopted at once, because decisions depend on their differences.
        """
        now = plain, wide, draft = self._now.values
        last_plain, last_wide, last_draft = self._now.settled
        changes = plain / last_plain, wide / plain * last_plain / last_wide, draft / last_draft
        if not all(1 - _TOLERANCE < change < 1 + _TOLERANCE for change in changes):
            self._now.settled, self._table = now, []

    def _change_regime(self) -> None:
        """Switch to the corrections of the governor's present regime."""
        if self._governor is None:
            return
        key = self._governor.key
        if key == self.regime:
            return
        if self.regime is None:  # other programs had come already: drop the last normal steps
            self._normal = self._snapshots[0]
            self._snapshots = (self._normal.copy(), self._normal.copy())
        self.regime = key
        if key is None:
            self._now = self._normal
        else:  # the other programs may not be the same as last time
            self._now = self._disturbed[key] = _Ratios(self._disturbed.get(key, self._normal))
        self._table = []


class Beside(Costs):
    """The costs of one stream's rows, in an evaluation that also has rows of others.

    costs: the costs of the target and the draft model. seconds: the seconds of evaluations of 0, 1,
    2, … rows. n_others: the rows of others. price: the tokens that a second is worth to all.
    """

    def __init__(self, costs: Costs, seconds: Sequence[float], n_others: int, price: float) -> None:
        self._costs, self._own = costs, list(seconds[n_others:])
        self.max_depth = len(self._own) - 1 - BEYOND
        self.known, self.fills, self.regime = True, False, costs.regime
        self.profile = costs.profile
        self.of_table = {}
        self._price = price

    def target(self, n_past: int) -> list[float]:
        """Return the seconds of evaluations with 0, 1, 2, … rows of this stream."""
        return self._own

    def least(self, n_past: int) -> list[float]:
        """Return the least acceptance probabilities, as `Costs.least` does."""
        return least_slopes(self._own[1 : self.max_depth + 2], self._price)

    def n_filled(self, n: int) -> int:
        """Return 0: rows are filled for all streams together."""
        return 0

    def draft(self, n_tokens: int, n_cached: int) -> float:
        """Return the draft model's seconds, as `Costs.draft` does."""
        return self._costs.draft(n_tokens, n_cached)

    def draft_token_s(self, n_cached: int) -> float:
        """Return the draft model's seconds, as `Costs.draft_token_s` does."""
        return self._costs.draft_token_s(n_cached)


def least_slopes(seconds: Sequence[float], price: float) -> list[float]:
    """Return, for each number of rows, the least cost of a further row, in tokens, over all numbers
    of rows that may be added. seconds: of 1, 2, 3, … rows. price: tokens a second.
    """
    table = np.array(seconds)
    n = np.arange(len(table))
    later = n > n[:, None]
    slopes = (table - table[:, None]) / np.where(later, n - n[:, None], 1)
    least: list[float] = (price * np.where(later, slopes, np.inf)[:-1].min(axis=1)).tolist()
    return least
