"""What the quick command leaves out of the tests."""

import itertools
from types import SimpleNamespace

from tests.helpers.selection import every, first, superfluous

VALUES = {"kind": ["a", "b", "c", "d"], "rule": ["x", "y", "z"], "seed": ["p", "q"]}


class Case(SimpleNamespace):
    __hash__ = object.__hash__


def pairs(cases):
    return {
        pair
        for each in cases
        for pair in itertools.combinations(sorted(each.callspec.params.items()), 2)
    }


def test_every_pair_of_values_stays():
    whole = [
        Case(callspec=SimpleNamespace(params=dict(zip(VALUES, values, strict=True))))
        for values in itertools.product(*VALUES.values())
    ]
    left_out = {id(each) for each in superfluous(whole)}
    kept = [each for each in whole if id(each) not in left_out]
    assert pairs(kept) == pairs(whole)
    assert len(kept) == 12  # as many as the two longest parameters have pairs; there are 24 cases


def test_values_that_are_left():
    def is_long(value):
        return [mark.name for mark in getattr(value, "marks", ())] == ["long"]

    assert list(map(is_long, first(2, "abc", "why"))) == [False, False, True]
    assert list(map(is_long, every(2, "abcd", "why"))) == [False, True, False, True]
