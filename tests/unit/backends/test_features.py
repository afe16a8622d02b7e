"""Hidden states by position: gaps, windows, and what is cut."""

import random

import numpy as np
import pytest

from edgespec import ToyModel
from edgespec.backends.features import Blank, Features, OfLayers
from edgespec.cache.token_cache import TokenCache


def states(positions):
    return np.array([[[position, layer] for layer in range(2)] for position in positions], "f4")


def positions(features):
    return features.of(features.start, features.end)[:, 0, 0].tolist()


def test_states_are_found_by_position():
    features = Features()
    features.append(0, states(range(5)))
    features.append(5, states([5]))
    assert positions(features) == [0, 1, 2, 3, 4, 5]
    assert features.of(2, 4)[:, 1].tolist() == [[2, 1], [3, 1]]


def test_what_is_before_a_gap_is_forgotten():
    features = Features()
    features.append(0, states(range(3)))
    features.append(7, states([7, 8]))
    assert (features.start, features.end) == (7, 9)
    features.append(9, None)  # a model that gave none
    features.append(10, states([10]))
    assert positions(features) == [10]


def test_cut_states_are_replaced():
    features = Features()
    features.append(0, states(range(6)))
    features.truncate(2)
    features.append(2, states([2]) + 100)
    assert positions(features) == [0, 1, 102]
    features.truncate(0)
    assert (features.start, features.end) == (0, 0)


def test_no_state_of_a_picture_is_seen_by_a_head():
    features = Features()  # without a gap, as keys and values in a target's cache
    features.append(0, states(range(12)))
    seen = OfLayers(features, (), features)
    assert positions(seen) == [*range(12)]
    seen.n_unseen, seen.first = 6, 3  # three words, a picture of six tokens, three words
    assert positions(seen) == [9, 10, 11]
    assert seen.of(4, 5)[0, 0, 0] == 10
    features.truncate(9)
    assert positions(seen) == []
    with pytest.raises(ValueError, match="hidden states of the tokens"):
        seen.of(2, 3)


@pytest.mark.parametrize("asked", [(0, 2), (3, 6), (4, 3)])
def test_states_that_are_not_there_are_an_error(asked):
    features = Features()
    features.append(1, states(range(1, 5)))
    with pytest.raises(ValueError, match="hidden states of the tokens"):
        features.of(*asked)


def test_more_than_fits_at_once_leaves_the_latest():
    features = Features(most=4)
    features.append(0, states(range(11)))
    assert positions(features) == [7, 8, 9, 10]


def test_the_latest_stay_whatever_comes():
    rng = random.Random(1)
    features = Features(most=8)
    end = 0
    for _ in range(2000):
        if rng.random() < 0.3:
            end = rng.randrange(max(0, end - 5), end + 1)
            features.truncate(end)
        n = rng.choice([1, 1, 2, 5, 20])
        features.append(end, states(range(end, end + n)))
        end += n
        assert features.end == end
        assert positions(features) == list(range(features.start, end))
        assert end - features.start <= 16
    features.append(end, states(range(end, end + 8)))
    assert features.end - features.start >= 8


def test_the_states_of_a_kept_path_are_its_own():
    model, found = ToyModel(np.full((8, 8), 1 / 8)), Features()
    model.tap((1,))
    found.layers = (1,)
    cache = TokenCache(model, found)
    cache.decode([0, 1])
    cache.decode_tree([2, 3, 4, 5, 6], (-1, 0, -1, 2))  # nodes 3 4 and 5 6 after token 2
    cache.keep((2, 3))
    assert found.of(0, 5)[:, 0].tolist() == [
        [i, token, 1] for i, token in enumerate([0, 1, 2, 5, 6])
    ]
    cache.truncate(4)
    assert (found.start, found.end) == (0, 4)


def test_blank_states_are_as_wide_as_others_and_everywhere():
    known = Features(4, shape=(3, 8))
    blank = Blank(known)
    assert blank.size
    for start, end in ((0, 1), (5, 5), (1000, 1300), (7, 9)):
        states = blank.of(start, end)
        assert states.shape == (end - start, 3, 8)
        assert not states.any()
    assert Blank(Features()).size == 0
    known.append(2, np.ones((5, 2, 6), np.float32))
    assert Blank(known).of(0, 2).shape == (2, 2, 6)
    assert not Blank(known).of(2, 4).any()


def test_a_shape_that_is_known_before_does_not_change_what_is_kept():
    for shape in ((0, 0), (2, 3), (1, 4)):
        known = Features(3, shape=shape)
        rows = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
        known.append(0, rows)
        assert (known.start, known.end) == (2, 5)
        assert np.array_equal(known.of(3, 5), rows[3:])
