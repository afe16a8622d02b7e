"""Comparison of the values of a setting: their times are measured in turns, and one is chosen."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import Aborted
from ..types import Abort
from .budget import Budget
from .results import Candidate, Choice

WORTHWHILE = 0.03  # a value that is not faster by more than this share is not chosen
MIN_REPETITIONS, MAX_ROUNDS = 5, 7  # least repetitions of a chosen value; most rounds of all
MIN_ROUNDS = 3  # rounds after which a value that is not faster than the default is given up
_FAR_AHEAD, _FEW = 3, 2  # a value 3 times as fast as the default needs only 2 repetitions
_FEW_BUSY = 3  # repetitions that it needs while other programs run
_FAR_BEHIND = (1.5, 1.25)  # a value this many times as slow is given up after 1, 2 rounds
_HOPELESS = 12  # a try is ended after 12 times the seconds of the fastest one
_LEAST_LIMIT_S = 0.25  # seconds that every try may take, because the system may have paused

Try = Callable[[Abort], float]


def interleave(tries: Sequence[Try], budget: Budget) -> list[list[float]]:
    """Run each try once per round, and return the seconds that each of them reported.

    The tries take turns, so that all of them are affected if the device slows down. The first try
    is the default. It comes last in each round, so that it can be stopped if it takes far longer
    than the others. (With more threads than free cores an evaluation can take seconds.) Any other
    try is given up when it is far slower than the default, or not faster after three rounds.
    Measuring ends when only the default is left, after MAX_ROUNDS, or when a further round does not
    fit the budget.
    """
    now, expected = budget.clock(), 0.0
    times: list[list[float]] = [[] for _ in tries]
    left = list(range(len(tries)))
    while len(left) > 1 and len(times[0]) < MAX_ROUNDS and budget.left > expected:
        for i in reversed(left):
            fastest = min(map(min, filter(None, times)), default=None)
            seconds = _bounded(tries[i], fastest, budget)
            told = i == 0 and fastest is not None and seconds > fastest  # even if stopped
            if budget.left or told:
                times[i].append(seconds)
            if not budget.left:
                return times
        before, now = now, budget.clock()
        each = (now - before) / len(left)
        n, default = len(times[0]), statistics.median(times[0])
        limit = (1 - WORTHWHILE if n >= MIN_ROUNDS else _FAR_BEHIND[n - 1]) * default
        left = [i for i in left if not i or statistics.median(times[i]) < limit]
        expected = each * len(left)
    return times


def _bounded(one: Try, fastest: float | None, budget: Budget) -> float:
    """Return the seconds of a try. A try is stopped if it is hopeless or the budget is used up. The
    result is then half of its time so far: a lower bound for one evaluation, because the second of
    two may have been running.
    """
    part = budget if fastest is None else budget.part(max(_HOPELESS * fastest, _LEAST_LIMIT_S))
    start = budget.spent
    try:
        return one(part.abort)
    except Aborted:
        return (budget.spent - start) / 2


def decide(
    setting: str,
    measured: str,
    known: Sequence[tuple[Any, str]],
    times: Sequence[Sequence[float]],
    *,
    busy: bool = False,
) -> Choice:
    """Choose the default, unless a different value is faster by more than 3% and by more than the
    noise.

    known: (value, label) of every candidate, the default first. times: the seconds of each
    candidate in each turn. busy: other programs used the CPUs. Then the slowest turn of a chosen
    value must be faster than the default's fastest turn, and three times as fast after only three
    turns. Four turns are enough for a value whose median is three times as fast.
    """
    candidates = tuple(candidate(k, t) for k, t in zip(known, times, strict=True))
    default, *others = candidates
    apart = [not busy or _is_apart(own, times[0]) for own in times[1:]]
    better = [
        c for c, clear in zip(others, apart, strict=True)
        if clear and _is_enough(c, default) and (_leads if busy else _is_better)(c, default)
    ]  # fmt: skip
    best = min(better, key=lambda c: c.ms, default=default)
    if best is not default:
        why = f"{_lead(default.ms / best.ms)} the default"
    elif not others:
        why = "there is no other"
    elif not default.n_repetitions:
        why = "the default; there was no time to try another"
    elif busy and any(_leads(c, default) and _is_enough(c, default) for c in others):
        why = "the default; while other programs run, every turn with another has to be faster"
    elif any(_is_better(c, default) for c in others):
        why = "the default; another looked faster, but there was no time to be sure"
    elif any(c.ms < default.ms for c in others if c.n_repetitions):
        why = "the default; no other is faster by more than 3% and the noise"
    else:
        why = "the default is the fastest"
    return Choice(setting, measured, candidates, best.value, why)


def _lead(ratio: float) -> str:
    return f"{ratio - 1:.0%} faster than" if ratio < 2 else f"{ratio:.1f} times as fast as"


def is_far_ahead(one: Candidate, other: Candidate) -> bool:
    """Return whether a candidate is so much faster that few repetitions are enough to be sure."""
    repeated = min(one.n_repetitions, other.n_repetitions) >= _FEW
    return repeated and _FAR_AHEAD * one.ms < other.ms


def _is_apart(times: Sequence[float], default: Sequence[float]) -> bool:
    """Return whether the slowest time is below the default's fastest. After only three turns it
    must be below a third of that.
    """
    n = min(len(times), len(default))
    if n < _FEW_BUSY:
        return False
    return (1 if n > _FEW_BUSY else _FAR_AHEAD) * max(times) < min(default)


def _is_enough(one: Candidate, default: Candidate) -> bool:
    return is_far_ahead(one, default) or one.n_repetitions >= MIN_REPETITIONS


def _leads(one: Candidate, default: Candidate) -> bool:
    """Return whether a candidate's median is lower by more than 3%. That is enough if every turn
    with it was faster.
    """
    return one.ms < (1 - WORTHWHILE) * default.ms


def _is_better(one: Candidate, default: Candidate) -> bool:
    least = max(WORTHWHILE * default.ms, one.spread_ms, default.spread_ms)
    return bool(one.n_repetitions) and default.ms - one.ms > least


def candidate(known: tuple[Any, str], times: Sequence[float] = ()) -> Candidate:
    """Return a candidate from `known`, which is (value, label), and its times in seconds."""
    ms = sorted(1e3 * seconds for seconds in times)
    n = len(ms)
    spread = ms[-1 - n // 4] - ms[n // 4] if n else 0.0
    median = round(statistics.median(ms), 3) if n else 0.0
    return Candidate(*known, median, round(spread, 3), n)
