"""Shares of hits, learned."""

import pytest

from edgespec.drafters.calibration import Calibration


def test_what_is_assumed_weighs_like_so_many_observations():
    learned = Calibration(strength=4, memory=1e12)
    assert learned.estimate("a", 0.25) == 0.25
    for n_hits in range(1, 4):
        learned.observe("a", True)
        assert learned.estimate("a", 0.25) == pytest.approx((1 + n_hits) / (4 + n_hits))
    learned.observe("a", False)
    assert learned.estimate("a", 0.25) == pytest.approx(4 / 8)
    assert learned.estimate("a", 0.75) == pytest.approx(6 / 8)


def test_kinds_do_not_mix():
    learned = Calibration()
    learned.observe((1, 2), True)
    assert learned.estimate((1, 3), 0.4) == 0.4
    assert learned.estimate((1, 2), 0.4) > 0.4


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("prior", [0.02, 0.98])
def test_finds_the_share(share, prior):
    learned = Calibration()
    for i in range(400):
        learned.observe("a", i % 4 < 4 * share)
        assert 0 < learned.estimate("a", prior) < 1
    assert learned.estimate("a", prior) == pytest.approx(share, abs=0.06)


def test_an_observation_fades():
    one = Calibration(strength=0, memory=150)
    one.observe("a", True)
    for _ in range(104):
        one.observe("a", False)
    new = Calibration(strength=0, memory=150)
    for _ in range(105):
        new.observe("a", False)
    new.observe("a", True)
    weight = one.estimate("a", 0) / new.estimate("a", 0)
    assert weight == pytest.approx(0.5, abs=0.01)


def test_a_change_is_noticed_however_long_it_went_well():
    learned = Calibration(memory=150)
    for _ in range(100_000):
        learned.observe("a", True)
    for _ in range(150):
        learned.observe("a", False)
    assert learned.estimate("a", 0.9) < 0.45
