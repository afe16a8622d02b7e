"""The suffix automaton against brute force."""

import random

import pytest

from edgespec import SamplingParams
from edgespec.drafters.suffix import SEPARATOR, SuffixAutomaton, SuffixDrafter
from edgespec.interfaces import Request


def longest_repeated_ending(text):
    for n in range(len(text) - 1, 0, -1):
        ending = text[-n:]
        ends = [i + n for i in range(len(text) - n) if text[i : i + n] == ending]
        if ends:
            return n, max(ends), ends
    return 0, None, []


@pytest.mark.parametrize("vocab", [2, 3, 8])
@pytest.mark.parametrize("seed", range(6))
def test_against_brute_force(vocab, seed):
    rng = random.Random(seed)
    automaton, text = SuffixAutomaton(), []
    for _ in range(120):
        token = rng.randrange(vocab)
        automaton.append(token)
        text.append(token)
        state, length = automaton.suffix()
        n, end, ends = longest_repeated_ending(text)
        assert length == n
        if n:
            found = automaton.follow(state, 3)
            assert [t for t, _, _ in found] == text[end : end + 3]
            assert found[0][1:] == (sum(text[e] == text[end] for e in ends), len(ends))


def test_periodic_text_stays_cheap_and_sure():
    automaton = SuffixAutomaton()
    for _ in range(3000):
        automaton.append(7)
    state, length = automaton.suffix()
    assert length == 2999
    (token, hits, times), *_ = automaton.follow(state, 1)
    assert token == 7
    assert 0 < hits == times


def request(prompt, earlier=()):
    return Request(prompt, SamplingParams(), None, earlier)


def test_takes_the_latest_match_and_knows_the_counts():
    drafter = SuffixDrafter(2)
    drafter.begin(request([1, 2, 3, 9, 1, 2, 4, 9, 1, 2]))
    assert drafter.propose([], 1).tokens == (4,)
    (survival,) = drafter.offer([], 1).survival
    drafter.begin(request([1, 2, 4, 9, 1, 2, 4, 9, 1, 2]))
    assert drafter.offer([], 1).survival[0] > survival


def test_no_match_no_offer():
    drafter = SuffixDrafter(2)
    drafter.begin(request([1, 2, 3, 4]))
    assert drafter.offer([], 4).survival == ()
    assert drafter.propose([], 4).tokens == ()


def test_min_match():
    prompt = [5, 1, 6, 1]
    for minimum, expected in ((1, (6,)), (2, ())):
        drafter = SuffixDrafter(minimum)
        drafter.begin(request(prompt))
        assert drafter.propose([], 1).tokens == expected


def test_reads_only_what_is_new_of_a_continued_chat():
    drafter = SuffixDrafter(2)
    drafter.begin(request([1, 2, 3]))
    drafter.accept([4, 5], None)
    automaton = drafter._automaton
    drafter.begin(request([1, 2, 3, 4, 5, 6, 1, 2]))
    assert drafter._automaton is automaton
    assert drafter.propose([], 4).tokens == (3, 4, 5, 6)


def test_earlier_turns_are_looked_up_but_no_separator_is_drafted():
    drafter = SuffixDrafter(2)
    drafter.begin(request([7, 1, 2], earlier=[1, 2, 8]))
    assert drafter.propose([], 4).tokens == (8,)
    assert SEPARATOR not in drafter.propose([], 4).tokens


def test_p_min_ends_a_draft():
    drafter = SuffixDrafter(1, p_min=0.9)
    drafter.begin(request([1, 2, 3, 1, 2]))
    assert drafter.offer([], 3).survival == ()
