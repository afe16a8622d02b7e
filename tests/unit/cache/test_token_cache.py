"""A model and the tokens of its cache: engines that cannot drop a tail."""

import numpy as np
import pytest

from edgespec import ToyModel
from edgespec.cache.token_cache import TokenCache

ONE, OTHER = [0, 1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("truncate", [True, False])
def test_a_checkpoint_of_a_text_that_is_gone_is_not_gone_back_to(truncate):
    cache = TokenCache(ToyModel(np.full((8, 8), 1 / 8), truncate=truncate))
    cache.decode(ONE[:5])
    cache.protect()
    cache.decode(ONE[5:])
    cache.align([*OTHER, 0])  # nothing in common: every engine can drop everything
    cache.decode(OTHER)
    cache.truncate(6)
    assert cache.tokens == list(cache.model.checkpoint()) == OTHER[:6]


def test_a_checkpoint_is_not_gone_back_to_once_somebody_else_has_used_the_model():
    cache = TokenCache(ToyModel(np.full((8, 8), 1 / 8), truncate=False))
    cache.decode(ONE[:5])
    cache.protect()
    cache.decode(ONE[5:])
    cache.model.truncate(0)
    cache.align([*OTHER, 0])
    cache.decode(OTHER)
    cache.truncate(6)
    assert cache.tokens == list(cache.model.checkpoint()) == OTHER[:6]


@pytest.mark.parametrize("truncate", [True, False])
def test_nothing_of_another_owner_stays(truncate):
    cache = TokenCache(ToyModel(np.full((8, 8), 1 / 8), truncate=truncate))
    for owner, n_reused in (("", 0), ("", 6), ("one", 0), ("one", 6), ("two", 0), ("one", 0)):
        cache.begin(owner)
        assert cache.align(ONE) == cache.model.n_past == n_reused
        cache.decode(ONE[n_reused:])


def test_going_back_evaluates_only_what_is_behind_the_checkpoint():
    cache = TokenCache(ToyModel(np.full((8, 8), 1 / 8), truncate=False))
    cache.decode(ONE[:5])
    cache.protect()
    cache.decode(ONE[5:])
    before = cache.model.n_evaluated
    cache.truncate(6)
    assert cache.tokens == list(cache.model.checkpoint()) == ONE[:6]
    assert cache.model.n_evaluated == before + 1


@pytest.mark.parametrize("cut", [None, 2])
def test_a_tree_that_was_left_is_dropped_whoever_has_used_the_model_since(cut):
    model = ToyModel(np.full((4, 4), 0.25))
    cache = TokenCache(model)
    cache.decode_tree([0, 1, 2, 3], (-1, -1))
    if cut is not None:
        model.truncate(cut)
    assert cache.align([0, 1, 3, 2]) == 2
    assert model.n_past == len(cache.tokens) == 2


def test_what_the_model_holds_beyond_the_text_is_cut():
    model = ToyModel(np.full((4, 4), 0.25))
    cache = TokenCache(model)
    cache.decode([0, 1])
    model.decode([2])  # something failed in between
    assert cache.align([0, 1, 3, 2]) == 2
    assert model.n_past == len(cache.tokens) == 2
