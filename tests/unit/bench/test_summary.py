"""The rows that `edgespec bench` makes of its answers, from answers made by hand: no clock."""

import sys
from itertools import product
from statistics import mean

import pytest

from edgespec.bench.answers import Answer, whole
from edgespec.bench.summary import summary
from edgespec.types import Stats


def answers(mode, *rates, category="qa"):
    """One of ten tokens for each rate in tokens a second."""
    return [
        Answer(f"{i}.1", category, 0.0, mode, 10, 10 / rate, 0.1, Stats(), [])
        for i, rate in enumerate(rates)
    ]


def row(found, mode="auto", category="qa"):
    return next(r for r in summary(found) if (r["mode"], r["category"]) == (mode, category))


def interval(found, **which):
    chosen = row(found, **which)
    return chosen["speedup_low"], chosen["speedup_high"]


def test_an_answer_stays_beside_its_plain_one():
    plain, auto = answers("plain", 1, 10, 100), answers("auto", 2, 20, 200)
    assert interval(plain + auto) == (2.0, 2.0)
    assert interval(plain + auto, mode="plain") == (None, None)


def test_the_ends_are_speedups_of_answers_drawn_with_replacement():
    slow, fast = (10, 11, 12), (10, 14, 30)
    low, high = interval(answers("plain", *slow) + answers("auto", *fast))
    pairs = list(zip(slow, fast, strict=True))
    possible = sorted(
        round(mean(f for _, f in drawn) / mean(s for s, _ in drawn), 3)
        for drawn in product(pairs, repeat=3)
    )
    assert (low, high) == (possible[0], possible[-1])  # each in one of 27: more than 2.5%
    assert low < row(answers("plain", *slow) + answers("auto", *fast))["speedup"] < high


def test_noise_widens_it_and_more_answers_narrow_it():
    def width(n, *, noise):
        rates = [10 + noise * (-1) ** i for i in range(n)]
        low, high = interval(answers("plain", *[10] * n) + answers("auto", *rates))
        return high - low

    assert width(8, noise=0) == 0 < width(8, noise=1) < width(8, noise=3)
    assert width(80, noise=3) < 0.5 * width(8, noise=3)


def test_a_run_that_was_stopped_compares_answers_to_the_same_questions():
    found = answers("plain", 1, 2, 3, 50) + answers("auto", 2, 4, 6)
    assert row(found)["speedup"] == row(found, category="all")["speedup"] == 2
    assert interval(found) == (2.0, 2.0)
    found += answers("plain", 7, category="rag")
    assert row(found, category="all")["speedup"] == 2
    found += answers("auto", 7, category="math")
    assert row(found, category="math")["speedup"] is None
    assert row(found, category="all")["speedup"] == 2


@pytest.mark.parametrize(("n_plain", "n_auto"), [(2, 2), (4, 2), (0, 3)])
def test_none_where_there_is_too_little(n_plain, n_auto):
    found = answers("plain", *[1] * n_plain) + answers("auto", *[2] * n_auto)
    assert interval(found) == (None, None)
    assert interval(found, category="all") == (None, None)


def test_of_all_categories_the_geometric_mean():
    found = []
    for category, gain in (("qa", 2), ("rag", 8)):
        found += answers("plain", 1, 2, 3, category=category)
        found += answers("auto", gain, 2 * gain, 3 * gain, category=category)
    assert row(found, category="all")["speedup"] == 4
    assert interval(found, category="all") == (4.0, 4.0)
    found += answers("plain", 1, category="math") + answers("auto", 1, category="math")
    assert interval(found, category="all") == (None, None)


def test_categories_are_drawn_apart():
    one = answers("plain", *[10] * 9) + answers("auto", *range(5, 14))
    both = one + answers("plain", *[10] * 9, category="rag")
    both += answers("auto", *range(5, 14), category="rag")
    low, high = interval(both, category="all")
    assert high - low < 0.85 * (interval(one)[1] - interval(one)[0])


def test_without_scipy_there_are_no_intervals_and_a_word_about_them(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    found = answers("plain", 1, 2, 3) + answers("auto", 2, 4, 6)
    assert row(found)["speedup"] == 2
    assert interval(found) == (None, None)
    assert "pip install '.[bench]'" in caplog.text


@pytest.mark.parametrize("n_rest", [0, 1, 2])
def test_a_prompt_that_was_not_answered_in_every_mode_is_left_out(n_rest):
    turns = [
        list(turn)
        for turn in zip(*(answers(m, 1, 2) for m in ("plain", "auto", "peer")), strict=True)
    ]
    assert whole([*turns[0], *turns[1][:n_rest]]) == turns[0]
    assert whole([*turns[0], *turns[1]]) == [*turns[0], *turns[1]]


def test_a_mode_that_stopped_early_takes_nothing_away_from_the_others():
    assert len(whole(answers("plain", 1, 2, 3) + answers("auto", 1, 2, 3))) == 6
    assert whole(answers("plain", 1)) == answers("plain", 1)
    assert whole([]) == []
