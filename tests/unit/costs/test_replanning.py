"""On a GPU an evaluation is planned anew where its number of tokens changes: who pays for that."""

import pytest

from edgespec import EngineConfig
from edgespec.costs.curves import Curve
from edgespec.costs.measuring import Measurement, plans_anew
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.types import StepStats
from tests.helpers.slow_machine import SlowMachine, SlowModel

ON_GPU = {"layers": "offloaded 31/31 layers to GPU"}
STEADY, WIDE, PLANNING = 0.02, 0.03, 0.03  # seconds: of one token, of several, of a new plan


def model(tmp_path, placement):
    last = [0]

    def seconds(n_threads, n_tokens):
        changed, last[0] = last[0] != n_tokens, n_tokens
        return (STEADY if n_tokens == 1 else WIDE) + PLANNING * changed

    machine = SlowMachine(seconds)
    made = SlowModel(machine, tmp_path / "a.gguf", EngineConfig())
    made.placement = placement
    return machine, made


@pytest.mark.parametrize(("placement", "one", "several"), [
    (ON_GPU, STEADY, WIDE + 2 * PLANNING), ({}, STEADY + PLANNING, WIDE + PLANNING),
])  # fmt: skip
def test_several_tokens_take_what_the_next_one_loses_by_them(tmp_path, placement, one, several):
    machine, made = model(tmp_path, placement)
    made.decode([0], 1)
    measurement = Measurement(made, (1, 2, 8), clock=machine.clock)
    assert measurement.run()
    first, *others = measurement.curve().seconds[0]
    assert first == pytest.approx(one)
    assert others == pytest.approx([several, several])
    assert plans_anew(made) == bool(placement)


def costs(replans):
    several = WIDE + 2 * PLANNING
    curve = Curve((64,), (1, 2, 8), ((STEADY, several, several),))
    return Costs(Profile(curve, replans=replans))


def step(n, seconds):
    return StepStats("suffix", n - 1, 0, 1, n, 64, 0.0, seconds, seconds)


@pytest.mark.parametrize("replans", [True, False])
def test_a_token_after_several_says_nothing_of_plain_decoding(replans):
    found = costs(replans)
    for _ in range(40):
        found.observe(step(8, WIDE + PLANNING), 64)
        found.observe(step(1, STEADY + PLANNING), 64)
    assert (found.plain.value > 1.2) == (not replans)
    if replans:
        table = found.target(64)
        assert table[1] == pytest.approx(STEADY, rel=0.1)
        assert table[8] == pytest.approx(WIDE + 2 * PLANNING, rel=0.1)


def test_several_after_several_become_cheaper():
    found = costs(True)
    for _ in range(40):
        found.observe(step(8, WIDE), 64)
    assert found.target(64)[8] < WIDE + PLANNING
    assert found.plain.value == 1
