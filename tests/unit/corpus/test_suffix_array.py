"""Lookup in a suffix array, against looking at every place."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edgespec.corpus import suffix_array
from edgespec.corpus.suffix_array import (
    LARGEST,
    MIN_MATCH,
    NO_MATCH,
    SEPARATOR,
    indexed,
    suffix_order,
)

LENGTHS = (3, 4, 5, 6, 8, 11, 16)
texts = st.lists(st.lists(st.integers(0, 3), max_size=60), min_size=1, max_size=4)


def places(text, wanted):
    """Return every place in a text where these tokens stand."""
    n = len(wanted)
    return [i for i in range(len(text) - n + 1) if text[i : i + n] == wanted]


def joined(found):
    return [token for text in found for token in [*text, SEPARATOR]]


def array_of(found):
    return indexed([np.array(text, np.int32) for text in found])


@given(texts)
def test_places_are_sorted_by_what_stands_there(found):
    tokens = np.array(joined(found), np.int32)
    padded = [*tokens.tolist(), *[SEPARATOR] * 16]
    order = suffix_order(tokens).tolist()
    assert sorted(order) == list(range(len(tokens)))
    assert order == sorted(range(len(tokens)), key=lambda place: padded[place : place + 16])


@given(texts)
def test_a_text_in_pieces_is_sorted_like_a_whole(found):
    tokens = np.array(joined(found), np.int32)
    whole = suffix_order(tokens)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(suffix_array, "_CHUNK", 7)
        assert np.array_equal(suffix_order(tokens), whole)


@given(texts, st.lists(st.integers(0, 3), max_size=20))
def test_the_longest_ending_is_found(found, ending):
    array, text = array_of(found), joined(found)
    match = array.find(ending)
    there = [n for n in LENGTHS if n <= len(ending) and places(text, ending[len(ending) - n :])]
    if not there:
        assert match == NO_MATCH
        return
    assert match.length == max(there)
    assert match.high - match.low == len(places(text, ending[-match.length :]))


@given(texts, st.integers(0, 50), st.integers(1, 25))
def test_one_token_more_at_a_time(found, begin, n):
    """A match that goes on has the places of all its tokens, and what follows them."""
    array, text = array_of(found), joined(found)
    wanted = text[begin : begin + MIN_MATCH]
    assume(SEPARATOR not in wanted)
    match = array.find(wanted)
    for token in text[begin + MIN_MATCH : begin + MIN_MATCH + n]:
        if token == SEPARATOR or not match.length:
            return
        match = array.narrow(match, token)
        wanted.append(token)
        all_places = places(text, wanted)
        if not match.length:  # the latest of several places did not go on
            assert len(wanted) > 16
            assert len(places(text, wanted[:-1])) > 1
            return
        assert match.length == len(wanted)
        if match.length > 16:  # after so many the latest counts
            assert match.high - match.low == 1
            all_places = all_places if len(all_places) == 1 else [None]
        else:
            assert match.high - match.low == len(all_places)
        if len(all_places) <= 60 and match.length < 16:
            following = [text[p + len(wanted)] for p in all_places]
            expected = {(t, following.count(t), len(following)) for t in following} - {
                (SEPARATOR, following.count(SEPARATOR), len(following))
            }
            assert set(array.continuations(match, 9)) == expected


def test_what_is_not_there():
    array = array_of([[1, 2, 3, 4]])
    assert array.find([9, 9, 9]) == NO_MATCH
    assert array.find([1, 2]) == NO_MATCH
    match = array.find([1, 2, 3])
    assert array.narrow(match, 9) == NO_MATCH
    assert array.narrow(NO_MATCH, 1) == NO_MATCH
    assert array.continuations(NO_MATCH, 4) == []
    assert array.continuations(array.find([2, 3, 4]), 4) == []  # the text ends


def test_the_latest_of_long_copies_is_followed():
    copy = list(range(16))
    array = array_of([[*copy, 50], [*copy, 60]])
    match = array.find(copy)
    assert [token for token, _, _ in array.continuations(match, 4)] == [60]
    assert array.narrow(match, 60).length == 17
    assert array.narrow(match, 50) == NO_MATCH


def test_many_places_are_sampled():
    texts = [[1, 2, 3, 4 if i % 4 else 5] for i in range(1000)]
    array = array_of(texts)
    (token, hits, times), second = array.continuations(array.find([1, 2, 3]), 4)
    assert token == 4
    assert hits / times == pytest.approx(0.75, abs=0.05)
    assert second[0] == 5
    assert times <= 64


def test_wrong_values_make_wrong_guesses_and_no_errors():
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 5, 200).astype(np.int32)
    order = rng.integers(-(2**31), 2**31 - 1, 200).astype(np.int32)
    array = suffix_array.SuffixArray(tokens, order)
    for _ in range(200):
        match = array.find(rng.integers(0, 5, 16).tolist())
        for token in range(5):
            array.continuations(array.narrow(match, token), 4)


def test_ids_that_do_not_fit():
    largest = np.array([3, LARGEST, 2, -1, 3, 1, LARGEST, -1], np.int32)
    assert suffix_order(largest).tolist() == [7, 3, 5, 2, 4, 0, 6, 1]
    with pytest.raises(ValueError, match="token id"):
        suffix_order(np.array([LARGEST + 1, -1], np.int32))


def test_an_empty_text():
    assert array_of([]).find([1, 2, 3]) == NO_MATCH
