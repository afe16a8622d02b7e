"""Costs beside other programs: corrections of their own, and the old ones when they have left."""

import pytest

from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile, store, stored
from edgespec.policies.adaptive import Adaptive
from edgespec.types import StepStats
from tests.helpers.neighbours import Decoding, Machine
from tests.helpers.policies import emitted

WIDTHS = tuple(range(1, 40))


def profile(machine, **options):
    """Return the costs of a machine without neighbours, all threads."""
    alone = 1 / machine.rate(machine.cpus)
    seconds = tuple((0.75 + 0.25 * n) * alone for n in WIDTHS)
    return Profile(Curve((64,), WIDTHS, (seconds,)), overhead=0.0, **options)


class Stepping:
    """Plain steps and some wider ones, observed by costs."""

    def __init__(self, machine, costs, observe=None):
        self.machine, self.costs = machine, costs
        self.decoding = Decoding(machine)
        costs.follow(self.decoding.governor)
        self.observe = observe or (lambda step: costs.observe(step, 64))

    def run(self, seconds, widths=(1, 1, 1, 4)):
        end, i = self.machine.now + seconds, 0
        while self.machine.now < end:
            self.step(widths[i % len(widths)])
            i += 1

    def step(self, n):
        self.costs.target(64)
        taken = self.decoding.step(n)
        self.observe(StepStats(
            n_drafted=n - 1, n_accepted=n - 1, n_emitted=n, n_evaluated=n, n_past=64 + n,
            draft_s=0.0, verify_s=taken, total_s=taken, source="suffix" if n > 1 else "",
        ))  # fmt: skip

    def is_known(self, tolerance):
        """Compare the costs of a plain step and of a wider one with those of the machine."""
        rate = self.machine.rate(self.decoding.n_threads)
        target = self.costs.target(64)
        assert target[1] == pytest.approx(1 / rate, rel=tolerance)
        assert target[4] == pytest.approx(1.75 / rate, rel=tolerance)
        return True


def observing(policy):
    """Return what lets a policy see a step."""
    return lambda step: policy.observe(step, emitted(*range(step.n_emitted)), None)


@pytest.mark.parametrize("visible", [True, False])
@pytest.mark.parametrize("loops", [1, 2, 4])
def test_costs_are_those_of_the_regime_and_return_at_once(loops, visible):
    machine = Machine(visible=visible)
    stepping = Stepping(machine, Costs(profile(machine)))
    stepping.run(5)
    assert stepping.costs.regime is None
    assert stepping.is_known(0.05)
    machine.loops = loops
    stepping.run(6)
    assert stepping.costs.regime == (1, True)
    assert stepping.is_known(0.15)
    assert not stepping.costs.stale
    machine.loops = 0
    while stepping.costs.regime is not None:
        stepping.step(1)
    assert stepping.is_known(0.05)
    machine.loops = loops
    while stepping.costs.regime != (1, True):
        stepping.step(1)
    stepping.run(0.7)
    assert stepping.is_known(0.25)


@pytest.mark.parametrize("visible", [True, False])
def test_a_kept_profile_is_not_deleted_because_of_neighbours(tmp_path, monkeypatch, visible):
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path))
    machine = Machine(visible=visible)
    kept = profile(machine, kept_as=({"file": "m.gguf"},))
    store(*kept.kept_as, kept.target)
    policy = Adaptive(Costs(kept))
    stepping = Stepping(machine, policy.costs, observing(policy))
    for loops in (4, 0, 2, 1, 0, 4):
        machine.loops = loops
        stepping.run(8)
    assert stored(*kept.kept_as) == kept.target
    assert not policy.stale


def test_a_profile_that_was_measured_in_a_bad_moment_is_deleted(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path))
    machine = Machine()
    machine.slower = 3.0
    kept = profile(machine, kept_as=({"file": "m.gguf"},))
    store(*kept.kept_as, kept.target)
    machine.slower = 1.0
    policy = Adaptive(Costs(kept))
    Stepping(machine, policy.costs, observing(policy)).run(8)
    assert policy.stale
    assert stored(*kept.kept_as) is None


def test_a_device_that_became_slower_is_measured_anew():
    machine = Machine()
    costs = Costs(profile(machine))
    machine.slower = 3.0
    Stepping(machine, costs).run(20)
    assert costs.stale


def test_where_nothing_is_seen_slower_steps_may_be_others_and_do_not_count():
    machine = Machine(visible=False)
    costs = Costs(profile(machine))
    machine.slower = 3.0
    Stepping(machine, costs).run(20)
    assert not costs.stale
