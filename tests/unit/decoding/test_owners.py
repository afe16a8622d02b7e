"""What is learned from one owner's texts changes nothing that another can see."""

import dataclasses

import pytest

from edgespec.bench.replay import Replay, shipped_profiles, shipped_traces
from edgespec.bench.trace_head import HeadQuality
from edgespec.decoding import owners
from edgespec.decoding.owners import OwnRates
from tests.helpers.selection import every

TRACES = shipped_traces()[:4]
HEAD = HeadQuality((0.75, 0.7, 0.68))
SETUPS = [(name, None) for name in shipped_profiles()] + [("gpu-flat", HEAD), ("cpu-q4", HEAD)]


def device(name):
    """Return a device that takes exactly what its profile says: costs are no text, and shared."""
    return dataclasses.replace(shipped_profiles()[name], overhead=0.0)


def seen(replay, owner):
    """Return what an owner sees of its answers, without seconds: rounding errors of sums differ."""
    return [
        {k: v for k, v in dataclasses.asdict(replay.run(trace, owner)).items() if k[-2:] != "_s"}
        for trace in TRACES[:2]
    ]


@pytest.mark.parametrize(
    "setup",
    every(3, SETUPS, "more devices"),
    ids=lambda setup: setup[0] + ("-head" if setup[1] else ""),
)
def test_another_owners_texts_change_nothing(setup):
    profile, head = setup

    def replay(before=()):
        made = Replay(device(profile), "auto", head=head)
        for owner in ("first", *before):
            for trace in TRACES[2:]:
                made.run(trace, owner)
        return made

    alone = seen(replay(), "one")
    assert seen(replay(["another"]), "one") == alone
    assert seen(replay(["another", "third", "another"]), "one") == alone
    assert seen(replay(["one"]), "one") != alone  # of its own it learns


class Counter:
    """Learns how many answers it has seen."""

    def __init__(self):
        self.n = 0

    def learned(self):
        return {"n": self.n}

    def relearn(self, state):
        self.n = state["n"]


def test_only_the_rates_of_no_owner_go_on_in_another_process():
    counter = Counter()
    rates = OwnRates([counter])
    for owner, n in [("", 1), ("one", 10), ("", 2), ("two", 20), ("one", 11)]:
        rates.begin(owner)
        counter.n += n
        assert rates.learned() == {"n": 1 if owner and n == 10 else 3 if n != 1 else 1}
    assert counter.n == 21


def test_the_rates_of_many_owners_are_bounded(monkeypatch):
    monkeypatch.setattr(owners, "_MOST", 3)
    counter = Counter()
    rates = OwnRates([counter])
    for owner in "abcdef":
        rates.begin(owner)
        counter.n += 1
    assert len(rates._kept) == 3
    rates.begin("a")
    assert counter.n == 0  # it begins anew
    rates.begin("f")
    assert counter.n == 1
