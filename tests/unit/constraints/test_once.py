"""Results that are made once, whoever asks."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgespec.constraints.once import Once


def test_those_who_ask_for_the_same_at_the_same_time_wait_for_one():
    made, go = [], threading.Event()

    def make(name):
        assert go.wait(20)
        made.append(name)
        return [name]

    once = Once(make, 4)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(once, "a") for _ in range(8)]
        go.set()
        results = [each.result(20) for each in asked]
    assert made == ["a"]
    assert all(result is results[0] for result in results)


def test_who_asks_for_something_else_does_not_wait():
    begun, go = threading.Event(), threading.Event()

    def make(name):
        if name == "slow":
            begun.set()
            assert go.wait(20)
        return name

    once = Once(make, 4)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(once, "slow")
        assert begun.wait(20)
        assert once("quick") == "quick"
        assert not slow.done()
        go.set()
        assert slow.result(20) == "slow"


def test_the_last_ones_are_kept():
    made = []
    once = Once(lambda name: made.append(name) or name, 2)
    for name in "aabacab":
        assert once(name) == name
    assert made == ["a", "b", "c", "b"]


def test_errors_are_told_to_all_who_wait_and_not_kept():
    outcomes = [ValueError("first"), "second"]

    def make(name):
        outcome = outcomes.pop(0)
        if isinstance(outcome, ValueError):
            raise outcome
        return outcome

    once = Once(make, 2)
    with pytest.raises(ValueError, match="first"):
        once("a")
    assert once("a") == "second"
