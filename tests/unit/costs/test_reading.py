"""How many tokens of a prompt are evaluated together, learned from the times that it took."""

from __future__ import annotations

import itertools

import pytest

from edgespec.costs.reading import FEWEST, MOST, ReadingTimes


def stepped(n: int, token_s: float = 0.008) -> float:
    """Return the time in a kernel that takes less for each token if there are at least 64."""
    return n * token_s * (0.6 if n >= 64 else 1.0)


def read(times: ReadingTimes, longest_s: float, n_rounds: int, token_s: float = 0.008) -> list[int]:
    """Evaluate as many tokens as `times` says, again and again; return the numbers."""
    sizes = []
    for _ in range(n_rounds):
        sizes.append(times.most(longest_s))
        times.observe(sizes[-1], stepped(sizes[-1], token_s))
    return sizes


def test_nothing_is_known_at_first():
    times = ReadingTimes()
    assert times.most(1.0) == FEWEST
    assert times.token_s == times.expected_s(100) == 0.0


def test_it_finds_the_size_from_which_tokens_take_less_time():
    sizes = read(ReadingTimes(), 0.4, 12)
    assert sizes[-1] == 64  # 32 take 0.26 s, 64 take 0.31 s, 96 would take 0.46 s
    assert max(stepped(n) for n in sizes) <= 0.4 / 0.7


def test_a_size_that_reads_much_faster_may_take_a_tenth_longer():
    times = ReadingTimes()
    read(times, 0.4, 12)
    assert read(times, 0.4, 12, token_s=0.0112)[-1] == 64  # 32 take 0.36 s, 64 take 0.43 s
    assert read(times, 0.4, 12, token_s=0.0140)[-1] == FEWEST  # 16 take 0.22 s, 64 take 0.54 s


def test_longer_texts_make_evaluations_shorter_and_a_new_text_longer_again():
    times = ReadingTimes()
    read(times, 0.4, 12)
    assert read(times, 0.4, 8, token_s=0.02)[-1] == FEWEST
    assert read(times, 0.4, 20)[-1] == 64


def test_a_machine_that_is_fast_reads_the_most():
    assert read(ReadingTimes(), 0.4, 8, token_s=1e-5)[-1] == MOST


def test_one_that_is_too_slow_for_any_reads_the_fewest():
    assert set(read(ReadingTimes(), 0.01, 8)) == {FEWEST}


def test_steps_of_few_tokens_teach_nothing():
    times = ReadingTimes()
    times.observe(FEWEST - 1, 1.0)
    times.observe_stopped(FEWEST - 1, 1.0)
    assert times.token_s == 0.0


def test_a_stopped_evaluation_would_have_taken_longer():
    times = ReadingTimes()
    times.observe(32, 0.32)
    times.observe_stopped(32, 0.16)
    assert times.token_s == pytest.approx(0.01)
    times.observe_stopped(32, 0.64)
    assert times.token_s == pytest.approx(0.02)


@pytest.mark.parametrize("seconds", [0.0, 1e-12, 1e6])
def test_extreme_times_leave_a_usable_size(seconds: float):
    times = ReadingTimes()
    for n in itertools.chain(range(0, 600, 7), [10**6]):
        times.observe(n, seconds)
        assert FEWEST <= times.most(0.4) <= MOST
