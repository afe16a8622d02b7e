"""A draft model's choices and lookups' guesses as one tree."""

import pytest

from edgespec import SamplingParams
from edgespec.drafters.merged import Merged
from edgespec.drafters.trees import TreeDrafter
from edgespec.sampling.base import Request
from edgespec.types import Thresholds
from tests.unit.drafters.test_trees import Table


class Model:
    """A draft model whose guesses are known: by the last token, from a table."""

    name = "model"
    is_chain = False

    def __init__(self, table):
        self._found = Table(table)

    def guess(self, context, limit, thresholds):
        self._found.begin(Request(context, SamplingParams(), None))
        return self._found, (1, 2)


def merged(model, lookups):
    drafter = TreeDrafter({"lookup": Table(lookups)}, 8)
    drafter.begin(Request([1], SamplingParams(), None))
    return Merged(Model(model), drafter)


def test_equal_tokens_are_one_node_and_others_stand_beside():
    made = merged({1: {2: 0.6}, 2: {4: 0.5}}, {1: {2: 0.3, 3: 0.5}, 2: {5: 0.4}, 3: {6: 0.5}})
    draft = made.propose([1], 31)
    assert draft.tokens == (2, 4, 5, 3, 6)
    assert draft.parents == (-1, 0, 0, -1, 3)
    assert draft.source == "model+lookup"
    assert draft.evaluated == (1, 2)


def test_lookups_share_what_the_model_leaves():
    probs = merged({1: {2: 0.6}}, {1: {3: 0.5}}).propose([1], 31).path_probs
    assert probs == pytest.approx((0.6, 0.4 * 0.5))


def test_nodes_that_do_not_pay_are_left_out():
    made = merged({1: {2: 0.6}}, {1: {3: 0.5}})
    assert made.propose([1], 31, Thresholds(price=0.3, seconds=(0, 1, 2, 3))).tokens == (2,)
    assert made.propose([1], 31, Thresholds(price=0.1, seconds=(0, 1, 2, 3))).tokens == (2, 3)


def test_a_model_that_guesses_nothing_leaves_it_to_lookups():
    draft = merged({}, {1: {3: 0.5}}).propose([1], 31)
    assert (draft.tokens, draft.source) == ((3,), "lookup")
