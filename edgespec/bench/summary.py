"""Rows of a report: speedups with their intervals, times and acceptance of answers."""

from __future__ import annotations

import logging
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import product, zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from ..advice import install
from ..types import Stats
from .answers import Answer

logger = logging.getLogger("edgespec.bench.summary")

RESAMPLES = 2000
MIN_ANSWERS = 3  # least number of answers in a category that gives an interval

Pairs = npt.NDArray[np.float64]  # [n, 2]: tokens per second of an answer, and of the plain one
Interval = Callable[[Sequence[Pairs]], tuple[float, float]]


def summary(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """Return a row for every temperature, category and mode, and rows for all categories together.

    speedup is defined as in Spec-Bench: the mean tokens per second of the answers, divided by that
    of the plain answers to the same questions. (A run that was stopped may lack some.) For all
    categories, it is the geometric mean of their speedups. speedup_low and speedup_high: the 95%
    interval of the speedup, from a bootstrap over the answers of each category (Efron & Tibshirani
    1993, percentiles). They are None if a category has fewer than three answers, or if scipy is not
    installed. Times are in milliseconds. Rows are in the order of the categories, and the plain row
    of each category comes first. joules_per_token is left out if no answer has it.
    """
    groups = _groups(answers)
    interval = _interval_function() if any(mode != "plain" for _, _, mode in groups) else None
    pairs = {
        (temperature, category, mode): _pairs(group, groups.get((temperature, category, "plain")))
        for (temperature, category, mode), group in groups.items()
    }
    rows = []
    for key, group in groups.items():
        rows.append(_row(*key, group) | _speedups(key[2], [pairs[key]], interval))
    for temperature, mode in dict.fromkeys((temperature, mode) for temperature, _, mode in groups):
        own = [key for key in groups if (key[0], key[2]) == (temperature, mode)]
        members = [answer for key in own for answer in groups[key]]
        speedups = _speedups(mode, [pairs[key] for key in own], interval)
        rows.append(_row(temperature, "all", mode, members) | speedups)
    if all(row["joules_per_token"] is None for row in rows):
        for row in rows:
            del row["joules_per_token"]
    return rows


def _groups(answers: Iterable[Answer]) -> dict[tuple[float, str, str], list[Answer]]:
    """Return answers grouped by temperature, category and mode. Groups are in the order of their
    first answer, but the mode "plain" comes first, then "auto", then the modes of peers.
    """
    groups: dict[tuple[float, str, str], list[Answer]] = defaultdict(list)
    for answer in answers:
        groups[answer.temperature, answer.category, answer.mode].append(answer)
    temperatures = dict.fromkeys(temperature for temperature, _, _ in groups)
    categories = dict.fromkeys(category for _, category, _ in groups)
    modes = dict.fromkeys(("plain", "auto", *(mode for _, _, mode in groups)))
    ordered = [key for key in product(temperatures, categories, modes) if key in groups]
    return {key: groups[key] for key in ordered}


def _pairs(own: Sequence[Answer], plain: Sequence[Answer] | None) -> Pairs:
    """Return an array [n, 2] with the tokens per second of answers, and of the plain answers to the
    same questions.
    """
    beside: dict[str, list[float]] = defaultdict(list)
    for answer in plain or ():
        beside[answer.id].append(answer.tokens_per_second)
    pairs = [(a.tokens_per_second, beside[a.id].pop(0)) for a in own if beside[a.id]]
    return np.array(pairs).reshape(-1, 2)


def _speedups(
    mode: str, categories: Sequence[Pairs], interval: Interval | None
) -> dict[str, float | None]:
    """Return the speedup over categories and its interval, as fields of a row."""
    known = [pairs for pairs in categories if len(pairs)]
    speedup = low = high = None
    if known:
        speedup = round(float(_geometric_mean(known)), 3)
    if known and interval and mode != "plain" and min(map(len, known)) >= MIN_ANSWERS:
        low, high = (round(float(end), 3) for end in interval(known))
    return {"speedup": speedup, "speedup_low": low, "speedup_high": high}


def _geometric_mean(categories: Sequence[Pairs]) -> npt.NDArray[np.float64]:
    """Return the geometric mean of the speedups of categories, each an array [..., n, 2]."""
    speedups = [np.divide(*pairs.mean(axis=-2).T) for pairs in categories]
    return np.asarray(np.exp(np.mean(np.log(speedups), axis=0)))


def _interval_function() -> Interval | None:
    """Return a function that computes intervals. Without scipy, log a warning and return None."""
    try:
        from scipy.stats import bootstrap
    except ImportError:
        logger.warning(
            "speedups are shown without their intervals, which need scipy; install it with %s",
            install("bench"),
        )
        return None

    def interval(categories: Sequence[Pairs]) -> tuple[float, float]:
        def statistic(*drawn: npt.NDArray[Any], axis: int) -> npt.NDArray[np.float64]:
            rows = zip(categories, drawn, strict=True)
            return _geometric_mean([pairs[indices.astype(int)] for pairs, indices in rows])

        of_ratio = bootstrap(
            [np.arange(len(pairs)) for pairs in categories],  # indices: pairs stay together
            statistic,
            n_resamples=RESAMPLES,
            vectorized=True,
            method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval
        return of_ratio.low, of_ratio.high

    return interval


def _row(temperature: float, category: str, mode: str, answers: Sequence[Answer]) -> dict[str, Any]:
    """Return a row's fields about its answers: tokens, times, acceptance and energy."""
    stats = [answer.stats for answer in answers]
    n_steps = sum(s.num_spec_steps for s in stats)
    n_drafted = sum(s.num_draft_tokens for s in stats)
    n_accepted = sum(s.num_accepted_draft_tokens for s in stats)
    gaps = sorted(gap for answer in answers for gap in answer.gaps)
    seconds = sum(answer.seconds for answer in answers)
    joules = [answer.joules for answer in answers if answer.joules is not None]
    n_tokens = sum(answer.n_tokens for answer in answers)
    histograms = zip_longest(*(s.acceptance_histogram for s in stats), fillvalue=0)
    return {
        "category": category,
        "temperature": temperature,
        "mode": mode,
        "answers": len(answers),
        "tokens": n_tokens,
        "tokens_per_second": round(statistics.mean(a.tokens_per_second for a in answers), 2),
        "mean_acceptance_length": round(1 + n_accepted / max(1, n_steps), 3),
        "draft_acceptance_rate": round(n_accepted / n_drafted, 3) if n_drafted else None,
        "draft_steps_share": round(sum(s.num_draft_steps for s in stats) / max(1, n_steps), 3),
        "ttft_ms": round(1e3 * statistics.median(answer.ttft_s for answer in answers), 1),
        **{f"itl_p{p}_ms": _percentile(gaps, p) for p in (50, 95, 99)},
        "draft_share": round(sum(s.draft_s for s in stats) / seconds, 3),
        "verify_share": round(sum(s.verify_s for s in stats) / seconds, 3),
        "joules_per_token": round(sum(joules) / n_tokens, 3) if len(joules) == len(stats) else None,
        "acceptance_histogram": [sum(counts) for counts in histograms],
        "sources": _sources(stats),
    }


def _percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Return a percentile in ms of seconds in ascending order, None if there are no values."""
    if not ordered:
        return None
    return round(1e3 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 2)


def _sources(stats: Iterable[Stats]) -> dict[str, dict[str, int]]:
    """Return the draft counts of every source, summed over the answers."""
    counters: dict[str, Counter[str]] = defaultdict(Counter)
    for each in stats:
        for name, counts in each.drafts_by_source.items():
            counters[name].update(counts)
    return {name: dict(counts) for name, counts in counters.items()}
