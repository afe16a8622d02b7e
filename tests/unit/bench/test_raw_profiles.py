"""Devices whose times are as they were measured: more tokens may take less time."""

import pytest

from edgespec.bench.replay import shipped_profiles

RAW = shipped_profiles(raw=True)


@pytest.mark.parametrize("name", RAW)
def test_every_width_to_sixteen_is_there(name):
    assert name.removesuffix("-lookup").endswith("-raw")
    assert RAW[name].target.widths[:16] == tuple(range(1, 17))
    assert (RAW[name].draft is None) == name.endswith("-lookup")


def test_kernels_that_work_on_two_and_four_tokens_are_not_smoothed():
    (row, _) = RAW["cpu-q4-raw"].target.seconds
    assert all(row[n - 1] > row[n] for n in (3, 5, 7, 9, 11, 13, 15))


def test_the_others_rise_and_are_separate():
    smooth = shipped_profiles()
    assert not set(RAW) & set(smooth)
    for profile in smooth.values():
        assert all(list(row) == sorted(row) for row in profile.target.seconds)
