"""The acceptance that was simulated, compared with the one that was served."""

import pytest

from edgespec.train.comparisons import agreement
from edgespec.train.formats import acceptance
from edgespec.train.serving import ServedHead, interval, shares_of

COUNTS = [(10, 4, 2, 0), (20, 10, 3, 0), (30, 6, 1, 0)]


def served(counts, equal):
    return ServedHead(3, 0, *acceptance(counts), 1.0, 1.0, 1.0, 1.0, tuple(counts), equal)


def test_equal_counts_agree_exactly_and_other_texts_do_not_count():
    changed = [*COUNTS[:2], (5, 5, 5, 5)]
    compared = agreement(COUNTS, served(changed, (True, True, False)))
    assert (compared.n_answers, compared.ratio, compared.low, compared.high) == (2, 1, 1, 1)
    assert compared.by_place == (1, 1, None)
    assert compared.intervals == ((1, 1), (1, 1), None)


def test_a_ratio_is_that_of_tokens_a_step():
    more = [(5, 4, 2, 0), (10, 10, 3, 0), (15, 6, 1, 0)]  # as many in half as many steps
    compared = agreement(COUNTS, served(more, (True,) * 3))
    assert compared.ratio == pytest.approx(2)
    assert compared.low == pytest.approx(2)
    assert acceptance(COUNTS) == (1 + 26 / 60, (20 / 60, 6 / 60, 0))


def test_each_place_has_an_interval_of_its_own():
    simulated = [(10, 5, 4, 2)] * 8
    half = [(10, 5, 6, 0), (10, 5, 2, 0)] * 4  # the second token varies, the third never comes
    compared = agreement(simulated, served(half, (True,) * 8))
    assert compared.by_place == (1, 1, 0)
    first, second, third = compared.intervals
    assert (first, third) == ((1, 1), (0, 0))
    assert 0.5 < second[0] < 0.9 < 1.1 < second[1] < 1.5


def test_the_served_acceptance_has_intervals():
    shares = shares_of([(10, 5, 4, 2), (10, 7, 4, 0)] * 10)
    assert shares[0] == pytest.approx((0.6, 0.4, 0.1))
    low, high = interval(shares[:, 0])
    assert 0.5 < low < 0.6 < high < 0.7
    assert interval(shares[:, 1]) == pytest.approx((0.4, 0.4))


@pytest.mark.parametrize("equal", [(False,) * 3, (True, False, False)])
def test_nothing_to_compare(equal):
    assert agreement([(10, 0, 0, 0)] * 3, served(COUNTS, equal)) is None
