"""Models whose threads a governor chooses, beside other programs."""

import math

import numpy as np
import pytest

from edgespec import Aborted, ToyModel
from edgespec.backends import base
from edgespec.backends.base import BatchedModel, BatchItem
from edgespec.costs.governed import GovernedModel, GovernedSlots
from edgespec.costs.threads import WIDEST, ThreadGovernor
from tests.helpers.neighbours import Limitable, Machine


def governor_on(machine, model, **options):
    return ThreadGovernor(
        [model], 2, n_cpus=2, meter=machine.meter(), clock=lambda: machine.now, **options
    )


class Recorded(ToyModel):
    """A slot that notes what it is asked."""

    def __init__(self, calls, slot):
        super().__init__(np.full((9, 9), 1 / 9), n_ctx=64)
        self._calls, self._slot = calls, slot

    def keep(self, path):
        self._calls.append(("keep", self._slot, path))

    def truncate(self, n_past):
        self._calls.append(("truncate", self._slot, n_past))


class Slots(Limitable, BatchedModel):
    """Slots whose evaluations take the time of a machine, and return what they were asked."""

    max_rows, max_batch, n_parked, shares_prefixes = 64, 512, 0, True

    def __init__(self, machine):
        self.machine, self.calls = machine, []
        self.models = [Recorded(self.calls, slot) for slot in range(3)]

    def add(self, n_slots, n_ctx=0, *, together=False):
        self.calls.append(("add", n_slots, n_ctx, together))

    def decode(self, items):
        n = sum(len(item.tokens) for item in items)
        self.machine.step(self.thread_limit or self.machine.cpus, n)
        return list(items)

    def copy(self, source, target, n_past):
        self.calls.append(("copy", source, target, n_past))

    def close(self):
        self.calls.append(("close",))


def test_threads_follow_what_others_leave():
    machine = Machine()
    slots = Slots(machine)

    model = GovernedSlots(slots, governor_on(machine, slots))
    items = [BatchItem(0, [1, 2], 1), BatchItem(2, [3], 1)]

    def run(seconds):
        end = machine.now + seconds
        while machine.now < end:
            assert model.decode(items) == items

    run(3)
    assert slots.thread_limit == 0
    machine.loops = 2
    run(1.1)
    assert slots.thread_limit == 1
    machine.loops = 0
    run(2)
    assert slots.thread_limit == 0


def test_no_other_number_of_threads_is_tried_while_prompts_are_read():
    machine = Machine()
    slots = Slots(machine)
    governor = governor_on(machine, slots)
    model = GovernedSlots(slots, governor)
    for machine.slower in (1, 4):  # a token of a prompt takes longer, the more there are before it
        for _ in range(60):
            model.decode([BatchItem(0, [1]), BatchItem(1, [2] * 16)])
    assert governor.n_trials == 0


def test_the_end_of_a_prompt_is_not_read_with_a_number_on_trial():
    machine = Machine()
    slots = Slots(machine)
    governor = governor_on(machine, slots)
    model = GovernedSlots(slots, governor)
    while machine.now < 3:
        model.decode([BatchItem(0, [1], 1)])
    machine.slower = 3
    while not governor._trial:
        assert machine.now < 60, "nothing is tried"
        model.decode([BatchItem(0, [1], 1)])
    model.decode([BatchItem(0, [1], 1), BatchItem(1, [2] * 16, 1)])
    assert slots.thread_limit == 0


def test_everything_else_is_the_models_own():
    slots = Slots(Machine())
    model = GovernedSlots(slots, ThreadGovernor([], 1))
    model.keep(1, (0, 2))
    model.truncate(1, 5)
    model.copy(0, 2, 7)
    model.close()
    assert slots.calls == [("keep", 1, (0, 2)), ("truncate", 1, 5), ("copy", 0, 2, 7), ("close",)]
    names = ["vocab_size", "n_ctx", "n_slots", "max_rows", "max_draft_rows", "max_batch"]
    names += ["shares_prefixes", "max_leaves", "n_parked"]
    assert all(getattr(model, name) == getattr(slots, name) for name in names)


class Alone(Limitable, ToyModel):
    """A model whose evaluations take the time of a machine. left: tokens that one leaves which was
    stopped.
    """

    left = 0

    def __init__(self, machine):
        super().__init__(np.full((9, 9), 1 / 9), n_ctx=4096)
        self.machine, self.stops = machine, 0

    def decode(self, tokens, n_logits=1, abort=None):
        end = self.machine.now + 0.002 * len(tokens) * (1 + 400 * self.is_stuck)
        while self.machine.now < end:
            self.machine.pass_time(0.001, self.thread_limit or 2)
            if abort and abort():
                self.stops += 1
                super().decode(tokens[: self.left], self.left)
                raise Aborted("stopped")
        return super().decode(tokens, n_logits)

    @property
    def is_stuck(self):
        return self.machine.loops and self.thread_limit != 1


def test_a_short_part_of_a_prompt_is_no_step():
    model = Alone(Machine())
    governor, widths = governor_on(model.machine, model), []
    governor.observe = lambda n, n_past, seconds: widths.append(n)
    decorated = GovernedModel(model, governor)
    decorated.decode([1] * 16, 0)
    decorated.decode([1] * 16, 1)
    assert widths == [WIDEST + 1, 16]


class GoesBack(Alone):
    """Trees are evaluated as their tokens."""

    def decode_tree(self, tokens, parents, abort=None):
        return self.decode(tokens, len(parents) + 1, abort)


def until_stopped(model, evaluate):
    """Evaluate beside loops until an evaluation was stopped."""
    model.machine.loops = 2
    while not model.stops:
        assert model.machine.now < 300, "nothing was tried"
        evaluate()


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("tree", [False, True])
def test_a_stopped_evaluation_is_done_again_whole_and_does_not_count(left, tree):
    model = GoesBack(Machine())
    model.left = left
    decorated = GovernedModel(model, governor_on(model.machine, model))
    costs = []

    def evaluate():
        decorated.truncate(2)
        began = decorated.clock()
        if tree:
            outputs = decorated.decode_tree([1, 2, 3], [-1, 0])
        else:
            outputs = decorated.decode([1, 2, 3], 3)
        costs.append(decorated.clock() - began)
        assert (len(outputs.logits), decorated.n_past) == (3, 5)

    decorated.decode([0, 0])
    for _ in range(800):
        evaluate()
    costs.clear()
    until_stopped(model, evaluate)
    assert costs[-1] == pytest.approx(0.006, abs=0.002)  # and not the 0.1 s of the one before


def test_who_asks_may_stop_an_evaluation_on_trial():
    model = Alone(Machine())
    decorated = GovernedModel(model, governor_on(model.machine, model))
    decorated.decode([0])
    with pytest.raises(Aborted):
        decorated.decode([1], 1, lambda: "cancelled")
    assert decorated.n_past == 1


def test_requests_tell_how_much_time_is_left():
    machine = Machine()
    model = Alone(machine)
    seen = []
    governor = governor_on(machine, model)
    before, begin = governor.before, governor.begin
    governor.before = lambda n, left_s: seen.append(left_s) or before(n, left_s)
    governor.begin = lambda left_s: seen.append(left_s) or begin(left_s)
    decorated = GovernedModel(model, governor)
    decorated.decode([1])
    decorated.begin(lambda: 3.0)
    decorated.decode([1])
    assert seen == [math.inf, 3.0, 3.0]


class Special(ToyModel):
    """A model of an engine with more to tell it."""

    def __init__(self):
        super().__init__(np.full((9, 9), 1 / 9))
        self.placement, self.told = {"layers": "offloaded 3/3 layers"}, []

    def restrict(self, top):
        self.told.append(top)

    def expect_drafts(self, expected):
        self.told.append(expected)


def test_what_a_model_can_do_it_can_do_governed():
    model = Special()
    decorated = GovernedModel(model, ThreadGovernor([], 1))
    decorated.restrict(5)
    decorated.expect_drafts(True)
    decorated.tap((1, 2))
    assert model.told == [5, True]
    assert decorated.decode([1]).hidden.shape == (1, 2, decorated.hidden_size)
    assert base.share_on_gpu(decorated.placement) == 1
    assert decorated.grow([2, 3], [-1, -1]).logits.shape == (2, 9)
    decorated.keep([1])
    assert decorated.n_past == model.n_past == 2
    state = decorated.checkpoint()
    decorated.truncate(0)
    decorated.restore(state)
    assert model.n_past == 2
    assert decorated.capabilities == model.capabilities
