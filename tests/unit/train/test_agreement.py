"""The acceptance that was simulated, compared with the one that was served."""

import pytest

from edgespec.train.comparisons import agreement
from edgespec.train.formats import acceptance
from edgespec.train.serving import ServedHead

COUNTS = [(10, 4, 2, 0), (20, 10, 3, 0), (30, 6, 1, 0)]


def served(counts, equal):
    return ServedHead(3, 0, *acceptance(counts), 1.0, 1.0, 1.0, 1.0, tuple(counts), equal)


def test_equal_counts_agree_exactly_and_other_texts_do_not_count():
    changed = [*COUNTS[:2], (5, 5, 5, 5)]
    compared = agreement(COUNTS, served(changed, (True, True, False)))
    assert (compared.n_answers, compared.ratio, compared.low, compared.high) == (2, 1, 1, 1)
    assert compared.by_place == (1, 1, None)


def test_a_ratio_is_that_of_tokens_a_step():
    more = [(5, 4, 2, 0), (10, 10, 3, 0), (15, 6, 1, 0)]  # as many in half as many steps
    compared = agreement(COUNTS, served(more, (True,) * 3))
    assert compared.ratio == pytest.approx(2)
    assert compared.low == pytest.approx(2)
    assert acceptance(COUNTS) == (1 + 26 / 60, (20 / 60, 6 / 60, 0))


@pytest.mark.parametrize("equal", [(False,) * 3, (True, False, False)])
def test_nothing_to_compare(equal):
    assert agreement([(10, 0, 0, 0)] * 3, served(COUNTS, equal)) is None
