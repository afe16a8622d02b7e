"""Times of several values of a setting, measured in turns, and which value they speak for."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from .results import Candidate, Choice

WORTHWHILE = 0.03  # a value that is not faster by more than this share is not chosen
MIN_REPETITIONS, MAX_ROUNDS = 5, 7  # before a value may be chosen, and at all
MIN_ROUNDS = 3  # after them, a value that is not ahead of the default is given up
_FAR_AHEAD, _FEW = 3, 2  # so many times as fast as the default, so few repetitions are enough
_FAR_BEHIND = (1.5, 1.25)  # given up after 1, 2 rounds: so many times the default's time

Clock = Callable[[], float]


def interleave(
    tries: Sequence[Callable[[], float]], budget_s: float, clock: Clock = time.perf_counter
) -> list[list[float]]:
    """Run each try once a round, and return the seconds that each of them reported.

    In turns, so that a device that slows down does so for all of them. The first try is the
    default. Another one is given up when it is far behind, or not ahead after three rounds.
    Measuring ends when only the default is left, after MAX_ROUNDS, or when another round does
    not fit the budget.
    """
    now = clock()
    end, expected = now + budget_s, 0.0
    times: list[list[float]] = [[] for _ in tries]
    left = list(range(len(tries)))
    while len(left) > 1 and len(times[0]) < MAX_ROUNDS and (not times[0] or now + expected <= end):
        for i in left:
            times[i].append(tries[i]())
        before, now = now, clock()
        each = (now - before) / len(left)
        n, default = len(times[0]), statistics.median(times[0])
        limit = (1 - WORTHWHILE if n >= MIN_ROUNDS else _FAR_BEHIND[n - 1]) * default
        left = [i for i in left if not i or statistics.median(times[i]) < limit]
        expected = each * len(left)
    return times


def decide(
    setting: str,
    measured: str,
    known: Sequence[tuple[Any, str]],
    times: Sequence[Sequence[float]],
) -> Choice:
    """Choose the default, unless another is faster by more than 3% and more than the noise.

    known: (value, label) of every candidate, the default first. times: seconds of each of them.
    """
    candidates = tuple(candidate(k, t) for k, t in zip(known, times, strict=True))
    default, *others = candidates
    better = [c for c in others if _is_enough(c, default) and _is_better(c, default)]
    best = min(better, key=lambda c: c.ms, default=default)
    if best is not default:
        why = f"{default.ms / best.ms - 1:.0%} faster than the default"
    elif not others:
        why = "there is no other"
    elif any(_is_better(c, default) for c in others):
        why = "the default; another looked faster, but there was no time to be sure"
    elif any(c.ms < default.ms for c in others):
        why = "the default; no other is faster by more than 3% and the noise"
    else:
        why = "the default is the fastest"
    return Choice(setting, measured, candidates, best.value, why)


def _is_enough(one: Candidate, default: Candidate) -> bool:
    is_far_ahead = _FAR_AHEAD * one.ms < default.ms
    return one.n_repetitions >= (_FEW if is_far_ahead else MIN_REPETITIONS)


def _is_better(one: Candidate, default: Candidate) -> bool:
    least = max(WORTHWHILE * default.ms, one.spread_ms, default.spread_ms)
    return bool(one.n_repetitions) and default.ms - one.ms > least


def candidate(known: tuple[Any, str], times: Sequence[float] = ()) -> Candidate:
    """Return the candidate `known`, (value, label), with its times, which are in seconds."""
    ms = sorted(1e3 * seconds for seconds in times)
    n = len(ms)
    spread = ms[-1 - n // 4] - ms[n // 4] if n else 0.0
    median = round(statistics.median(ms), 3) if n else 0.0
    return Candidate(*known, median, round(spread, 3), n)
