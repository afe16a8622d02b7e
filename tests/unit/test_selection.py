"""What the quick command leaves out of the tests."""

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import selection
from tests.helpers.selection import Selection, every, first, sample, superfluous

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


@given(st.integers())
def guess(number):
    """Take random examples."""


def cases():
    """Return a case of every kind by its name."""
    long, plain = {"long": pytest.mark.long("why")}, SimpleNamespace()
    kinds = {
        "quick": ({}, plain, test_every_pair_of_values_stays),
        "long": (long, plain, test_every_pair_of_values_stays),
        "fewer examples": ({}, SimpleNamespace(sample=sample), test_every_pair_of_values_stays),
        "other sample": ({}, SimpleNamespace(sample=len), test_every_pair_of_values_stays),
        "random": ({}, plain, guess),
    }
    return [
        Case(nodeid=name, get_closest_marker=marks.get, module=module, obj=function)
        for name, (marks, module, function) in kinds.items()
    ]


@pytest.mark.parametrize(("option", "expected"), [
    ("", ["quick", "fewer examples", "other sample", "random"]),
    ("--rest", ["long", "fewer examples", "random"]),
    ("--all", ["quick", "long", "fewer examples", "other sample", "random"]),
])  # fmt: skip
def test_the_rest_is_what_the_quick_command_leaves(monkeypatch, option, expected):
    monkeypatch.setattr(selection, "_everything", None)
    left = []
    config = SimpleNamespace(
        args=[], getoption=lambda name: name == option,
        hook=SimpleNamespace(pytest_deselected=lambda items: left.extend(items)),
    )  # fmt: skip
    items = cases()
    Selection(config).pytest_collection_modifyitems(config, items)
    assert [item.nodeid for item in items] == expected
    assert len(items) + len(left) == 5
    assert sample(range(20)) == (list(range(20)) if option else [0, 13])


def test_values_that_are_left():
    def is_long(value):
        return [mark.name for mark in getattr(value, "marks", ())] == ["long"]

    assert list(map(is_long, first(2, "abc", "why"))) == [False, False, True]
    assert list(map(is_long, every(2, "abcd", "why"))) == [False, True, False, True]
