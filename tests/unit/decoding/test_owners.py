"""What is learned from one owner's texts changes nothing that another can see."""

import dataclasses

import pytest

from edgespec.bench.replay import Replay, shipped_profiles, shipped_traces
from edgespec.bench.trace_head import HeadQuality
from edgespec.decoding import owners
from edgespec.decoding.owners import OwnRates, RatesStore
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
    assert len(rates._store._stored) == 4
    rates.begin("a")
    assert counter.n == 0  # it begins anew
    rates.begin("f")
    assert counter.n == 1


class Shared(Counter):
    """Learns how many answers of all owners it has seen."""

    def learned(self):
        return {"shared": self.n}

    def relearn(self, state):
        self.n = state["shared"]


def sessions(n):
    """Return the counters of `n` sessions with one store, with their rates."""
    store, made = RatesStore(), []
    for _ in range(n):
        counter, shared = Counter(), Shared()
        made.append((counter, shared, OwnRates([counter], [shared], store)))
    return made


def answer(session, owner, n=1):
    counter, shared, rates = session
    rates.begin(owner)
    counter.n += n
    shared.n += n
    rates.end()
    return counter.n, shared.n


def test_what_one_session_learns_from_an_owner_another_one_knows():
    one, two = sessions(2)
    assert answer(one, "a") == (1, 1)
    assert answer(two, "a") == (2, 2)
    assert answer(one, "b", 10) == (10, 12)
    assert answer(two, "a") == (3, 13)
    assert answer(one, "a") == (4, 14)
    assert answer(two, "") == (1, 15)
    assert answer(one, "") == (2, 16)
    for _, _, rates in (one, two):
        assert rates.learned() == {"n": 2, "shared": 16}


def test_of_two_requests_at_once_the_last_one_to_end_is_handed_on():
    one, two = sessions(2)
    for counter, _, rates in (one, two):
        rates.begin("a")
        counter.n += 1
    two[0].n += 5
    two[2].end()
    one[2].end()
    assert answer(two, "a", 0)[0] == 1


def test_a_session_that_has_learned_last_keeps_what_it_has(monkeypatch):
    one, two = sessions(2)
    answer(one, "a")
    monkeypatch.setattr(one[0], "relearn", None)  # what it would forget of the last answer stays
    assert answer(one, "a")[0] == 2
    del two


def test_rates_are_written_by_which_session_ever_has_learned_them():
    one, two = sessions(2)
    answer(two, "", 7)
    answer(one, "a", 100)
    assert one[2].learned() == {"n": 7, "shared": 107}
