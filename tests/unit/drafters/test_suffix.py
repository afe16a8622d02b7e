"""The suffix automaton against brute force."""

import random

import pytest

from edgespec.drafters.automaton import SEPARATOR, SuffixAutomaton
from edgespec.drafters.matches import assumed
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.types import Verified
from tests.helpers.growing import begin, chances, drafted, state_after


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
            after = [text[e] for e in ends]
            found = automaton.continuations(state, vocab)
            assert found[0][0] == text[end]
            assert sorted(found) == sorted((t, after.count(t), len(ends)) for t in set(after))


def test_periodic_text_stays_cheap_and_sure():
    automaton = SuffixAutomaton()
    for _ in range(3000):
        automaton.append(7)
    state, length = automaton.suffix()
    assert length == 2999
    (token, hits, times), *_ = automaton.continuations(state, 1)
    assert token == 7
    assert 0 < hits == times


def made(prompt, min_match=2, **options):
    drafter = SuffixDrafter(min_match)
    begin(drafter, prompt, **options)
    return drafter


def chain(drafter, n):
    """Return the tokens of a draft that is a chain."""
    return drafted(drafter, n, max_leaves=1).tokens


def test_takes_the_latest_match_and_knows_the_counts():
    drafter = made([1, 2, 3, 9, 1, 2, 4, 9, 1, 2])
    assert chain(drafter, 1) == (4,)
    (prob,) = chances(drafter)
    begin(drafter, [1, 2, 4, 9, 1, 2, 4, 9, 1, 2])
    assert chances(drafter)[0] > prob


def test_no_match_no_draft():
    assert chain(made([1, 2, 3, 4]), 4) == ()


def test_min_match():
    for minimum, expected in ((1, (6,)), (2, ())):
        assert chain(made([5, 1, 6, 1], minimum), 1) == expected


def test_guesses_all_that_followed_the_latest_first():
    draft = drafted(made([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2]), 31)
    pairs = zip(draft.tokens, draft.parents, strict=True)
    assert [token for token, parent in pairs if parent == -1][:2] == [3, 4]


def test_adds_what_followed_shorter_endings():
    drafter = made([5, 1, 2, 3, 6, 1, 2, 4, 5, 1, 2])
    (first, sure), (second, unsure) = drafter.children(drafter.root())
    assert (first, second) == (3, 4)
    assert sure > unsure > 0


def test_reads_only_what_is_new_of_a_continued_chat():
    drafter = made([1, 2, 3])
    drafter.accept(Verified((4, 5)))
    automaton = drafter._automaton
    begin(drafter, [1, 2, 3, 4, 5, 6, 1, 2])
    assert drafter._automaton is automaton
    assert chain(drafter, 4) == (3, 4, 5, 6)


def test_earlier_turns_are_looked_up_but_no_separator_is_drafted():
    drafter = made([7, 1, 2], earlier=[1, 2, 8])
    assert chain(drafter, 4) == (8,)
    assert SEPARATOR not in drafted(drafter, 31).tokens


def test_a_prediction_is_drafted_from_its_first_token_on_and_again_after_a_change():
    drafter = made([1, 2], prediction=[3, 4, 5, 6, 7])
    assert chain(drafter, 9) == (3, 4, 5, 6, 7)
    drafter.accept(Verified((3, 9, 5)))
    assert chain(drafter, 9) == ()
    drafter.accept(Verified((6,)))
    assert chain(drafter, 9) == (7,)


def test_a_prediction_is_forgotten_with_the_next_request():
    drafter = made([1, 2], prediction=[3, 4])
    drafter.accept(Verified((8,)))
    for prompt in ([1, 2], [1, 2, 8, 1, 2], [1, 2, 3, 4, 9, 1, 2, 3]):
        begin(drafter, prompt)
        assert drafter._automaton.tokens == prompt
        begin(drafter, [1, 2], prediction=[3, 4])


ONCE = assumed(2, 1, 1, 0.3)


def learned(prompt, *answers):
    """Return the acceptance probability of the first token after these answers to the prompt."""
    drafter = SuffixDrafter(2)
    for answer in answers:
        begin(drafter, prompt)
        drafter.accept(Verified(tuple(answer)))
    begin(drafter, prompt)
    return chances(drafter)[0]


def test_learns_from_text_that_it_did_not_draft():
    prompt = [1, 2, 3, 9, 1, 2]
    assert learned(prompt) == pytest.approx(ONCE)
    assert learned(prompt, [8]) == pytest.approx(ONCE * 8 / 9)
    assert learned(prompt, [3]) == pytest.approx((ONCE * 8 + 1) / 9)
    falling = [learned(prompt, *[[8]] * n) for n in range(6)]
    rising = [learned(prompt, *[[3]] * n) for n in range(6)]
    assert falling == sorted(set(falling), reverse=True)
    assert rising == sorted(set(rising))
    assert learned(prompt, *[[3], [8]] * 60) == pytest.approx(0.5, abs=0.02)


def test_what_is_assumed():
    assert assumed(2, 1, 1, 0.612) == pytest.approx(4 / 7)
    assert assumed(4, 3, 4, 0.612) == pytest.approx((3 / 4) ** 2 * 7 / 8.5)
    copying = [assumed(4, 1, 1, share / 10) for share in range(11)]
    assert 0 < copying[0] < 0.65
    assert 0.85 < copying[-1] < 1
    assert copying == sorted(set(copying))


def test_an_answer_that_copies_is_expected_to_go_on():
    prompt = list(range(100, 160))
    drafter = made(prompt)
    drafter.accept(Verified(tuple(prompt[5:9])))
    before = chances(drafter, 8)
    drafter.accept(Verified(tuple(prompt[9:30])))
    drafter.accept(Verified((7, *prompt[31:35])))
    after = chances(drafter, 8)
    assert all(a > b for a, b in zip(after, before, strict=True))


def test_learns_by_kinds_of_evidence():
    short, long = [1, 2, 3, 9, 1, 2], [1, 2, 3, 4, 5, 6, 7, 9, 1, 2, 3, 4, 5, 6]
    drafter = made(long)
    before = chances(drafter)
    for _ in range(5):
        begin(drafter, short)
        drafter.accept(Verified((8,)))
    begin(drafter, long)
    assert chances(drafter) == before


def test_acceptance_of_a_depth_includes_those_before_it():
    drafter = made([1, 2, 3, 4, 5, 9, 1, 2])
    each = [assumed(n, 1, 1, 0.3) for n in (2, 3, 4)]  # ever longer matches, seen once
    expected = [each[0], each[0] * each[1], each[0] * each[1] * each[2]]
    assert chances(drafter, 3) == pytest.approx(expected)
    draft = drafted(drafter, 3)
    assert (draft.expected, draft.evaluated) == (pytest.approx(sum(expected)), ())


def test_guesses_that_another_made_are_followed():
    prompt = [1, 2, 3, 4, 5, 6, 9, 4, 5, 7, 9, 1, 2]
    drafter = made(prompt)

    def after(*path):
        return drafter.children(state_after(drafter, path))

    assert after()[0][0] == 3
    assert after(3)[0][0] == 4
    assert after(3, 4, 5)[0][0] == 6  # as after 1, 2, 3, 4, 5
    assert after(4, 5)[0][0] == 7  # as after 4, 5 the last time
    assert after(3)[0][1] > after()[0][1]
    for ahead in ([3], [3, 4], [4, 5], [9, 4, 5]):
        fresh = made([*prompt, *ahead])
        assert after(*ahead)[0] == fresh.children(fresh.root())[0]
    assert after(8) == after(3, 8) == []
    assert after()[0][0] == 3  # nothing of it was read for good
    drafter.accept(Verified((3,)))
    assert after()[0][0] == 4
    assert after(4, 5)[0][0] == 6
