"""The target of several devices beside other programs."""

from edgespec.backends.base import BatchItem
from edgespec.costs.threads import ThreadGovernor
from edgespec.server.verification.governed import GovernedModel
from tests.helpers.neighbours import Limitable, Machine


class Slots(Limitable):
    """Slots whose evaluations take the time of a machine, and return what they were asked."""

    vocab_size, n_ctx, n_slots, max_rows, max_draft_rows, max_batch = 9, 64, 3, 64, 32, 512
    max_leaves, n_parked, shares_prefixes = 1, 0, True

    def __init__(self, machine):
        self.machine, self.calls = machine, []

    def decode(self, items):
        n = sum(len(item.tokens) for item in items)
        self.machine.step(self.thread_limit or self.machine.cpus, n)
        return list(items)

    def keep(self, slot, path):
        self.calls.append(("keep", slot, path))

    def truncate(self, slot, n_past):
        self.calls.append(("truncate", slot, n_past))

    def copy(self, source, target, n_past):
        self.calls.append(("copy", source, target, n_past))

    def close(self):
        self.calls.append(("close",))


def test_threads_follow_what_others_leave():
    machine = Machine()
    slots = Slots(machine)

    def clock():
        return machine.now

    governor = ThreadGovernor([slots], 2, n_cpus=2, meter=machine.meter(), clock=clock)
    model = GovernedModel(slots, governor, clock)
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


def test_everything_else_is_the_models_own():
    slots = Slots(Machine())
    model = GovernedModel(slots, ThreadGovernor([], 1))
    model.keep(1, (0, 2))
    model.truncate(1, 5)
    model.copy(0, 2, 7)
    model.close()
    assert slots.calls == [("keep", 1, (0, 2)), ("truncate", 1, 5), ("copy", 0, 2, 7), ("close",)]
    names = ["vocab_size", "n_ctx", "n_slots", "max_rows", "max_draft_rows", "max_batch"]
    names += ["shares_prefixes", "max_leaves", "n_parked"]
    assert all(getattr(model, name) == getattr(slots, name) for name in names)
