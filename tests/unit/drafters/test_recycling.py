"""Tables of successors: one for each slot, of one owner at a time, and not lost between slots."""

import numpy as np
import pytest

from edgespec.drafters.recycling import RecyclingDrafter, Tables
from edgespec.types import Verified
from tests.helpers.growing import begin

N = 8


def drafters(n, **options):
    tables = Tables()
    return [RecyclingDrafter(N, tables=tables, **options) for _ in range(n)]


def ask(drafter, owner, prompt=(1,), says=()):
    """Answer a request: after each token of `says` the target ranks its successor the highest."""
    begin(drafter, list(prompt), owner=owner)
    for token in says:
        row = np.zeros(N)
        row[token] = 9.0
        drafter.accept(Verified((token,), [row]))
    return drafter


def guess(drafter, token):
    children = drafter.children(token)
    return children[0][0] if children else None


def test_an_owners_successors_are_there_in_every_slot():
    one, two = drafters(2)
    ask(one, "a", says=(2, 3)).end()
    ask(two, "b", says=(4,)).end()
    assert guess(ask(two, "a"), 1) == 2
    assert guess(ask(one, "b"), 1) == 4
    two.end()
    assert guess(ask(two, "a"), 2) == 3


def test_two_requests_of_an_owner_at_once_both_have_its_successors():
    one, two = drafters(2)
    ask(one, "a", says=(2, 3)).end()
    ask(one, "a", says=(5,))  # it still runs
    assert guess(ask(two, "a", says=()), 2) == 3
    assert guess(two, 1) == 5
    ask(two, "a", says=(6,)).end()
    assert guess(one, 1) == 5  # a request's guesses do not change under it
    one.end()
    assert guess(ask(one, "a"), 1) == 6


def test_the_table_used_least_recently_is_emptied_for_another_owner():
    one, two = drafters(2)
    for owner, token in (("a", 2), ("b", 3)):
        ask(one, owner, says=(token,)).end()
    assert guess(ask(one, "c"), 1) is None
    one.end()
    assert guess(ask(two, "b"), 1) == 3
    two.end()
    assert guess(ask(two, "a"), 1) is None


@pytest.mark.parametrize("n", [1, 2])
def test_no_owner_gets_the_successors_of_another(n):
    for drafter in drafters(n):
        ask(drafter, "a", says=(2,)).end()
        assert guess(ask(drafter, "b"), 1) is None
        drafter.end()
        if n == 1:
            assert guess(ask(drafter, "a"), 1) is None


def test_only_a_text_that_goes_on_has_successors_where_nothing_is_shared():
    one, two = drafters(2, shares=False)
    ask(one, "a", [1, 5], says=(2,)).end()
    ask(two, "a", [1, 6], says=(3,)).end()
    assert guess(ask(two, "a", [1, 5, 1]), 5) == 2
    assert guess(ask(one, "a", [1, 6, 1]), 6) == 3


def test_successors_of_no_owner_are_handed_on_from_whichever_slot_learned_them():
    one, two = drafters(2)
    ask(two, "", says=(2,)).end()
    ask(one, "a", says=(3,)).end()
    for drafter in (one, two):
        assert drafter.learned_tokens()["recycling"][:, 0].tolist() == [1]
    three, four = drafters(2)
    four.relearn_tokens(one.learned_tokens())
    assert guess(ask(three, "b"), 1) is None
    assert guess(ask(four, ""), 1) == 2
