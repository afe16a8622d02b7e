"""Evaluations that cannot be stopped half-way are short."""

import pytest

from edgespec.backends.base import share_on_gpu
from edgespec.backends.chunks import Pace


def test_evaluations_grow_until_they_take_a_tenth_of_a_second():
    pace, a_token_s, sizes = Pace(), 0.0005, []
    for _ in range(6):
        sizes.append(pace.most)
        pace.took(pace.most, pace.most * a_token_s)
    assert sizes == [32, 64, 128, 200, 200, 200]


def test_they_become_short_again_and_short_ones_say_nothing():
    pace = Pace()
    for _ in range(4):
        pace.took(pace.most, 0.001)
    assert pace.most == 512
    pace.took(1, 9.0)
    assert pace.most == 512
    pace.took(512, 1.0)
    assert pace.most == 51
    pace.took(51, 9.0)  # a kernel was compiled
    assert pace.most == 32


@pytest.mark.parametrize(("placement", "share"), [
    ({}, 0), ({"layers": "offloaded 0/29 layers to GPU"}, 0),
    ({"layers": "offloaded 29/29 layers to GPU"}, 1),
    ({"layers": "offloaded 7/28 layers to GPU"}, 0.25),
    ({"layers": "spoiled"}, 0), ({"layers": "offloaded 0/0 layers to GPU"}, 0),
    ({"provider": "CPU"}, 0), ({"provider": "CUDA"}, 1),
])  # fmt: skip
def test_the_share_of_a_model_on_gpus(placement, share):
    assert share_on_gpu(placement) == share
