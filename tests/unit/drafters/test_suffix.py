"""The suffix automaton against brute force."""

import random

import pytest

from edgespec import SamplingParams
from edgespec.drafters.automaton import SEPARATOR, SuffixAutomaton
from edgespec.drafters.suffix import SuffixDrafter, assumed
from edgespec.sampling.base import Request
from edgespec.types import Thresholds, Verified


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


def request(prompt, earlier=(), prediction=()):
    return Request(prompt, SamplingParams(), None, earlier, prediction=prediction)


def test_takes_the_latest_match_and_knows_the_counts():
    drafter = SuffixDrafter(2)
    drafter.begin(request([1, 2, 3, 9, 1, 2, 4, 9, 1, 2]))
    assert drafter.propose([], 1).tokens == (4,)
    (prob,) = drafter.estimate([], 1).acceptance_probs
    drafter.begin(request([1, 2, 4, 9, 1, 2, 4, 9, 1, 2]))
    assert drafter.estimate([], 1).acceptance_probs[0] > prob


def test_no_match_no_draft():
    drafter = SuffixDrafter(2)
    drafter.begin(request([1, 2, 3, 4]))
    assert drafter.estimate([], 4).acceptance_probs == ()
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
    drafter.accept(Verified((4, 5)))
    automaton = drafter._automaton
    drafter.begin(request([1, 2, 3, 4, 5, 6, 1, 2]))
    assert drafter._automaton is automaton
    assert drafter.propose([], 4).tokens == (3, 4, 5, 6)


def test_earlier_turns_are_looked_up_but_no_separator_is_drafted():
    drafter = SuffixDrafter(2)
    drafter.begin(request([7, 1, 2], earlier=[1, 2, 8]))
    assert drafter.propose([], 4).tokens == (8,)
    assert SEPARATOR not in drafter.propose([], 4).tokens


def test_a_prediction_is_drafted_from_its_first_token_on_and_again_after_a_change():
    drafter = SuffixDrafter(2)
    drafter.begin(request([1, 2], prediction=[3, 4, 5, 6, 7]))
    assert drafter.propose([], 9).tokens == (3, 4, 5, 6, 7)
    drafter.accept(Verified((3, 9, 5)))
    assert drafter.propose([], 9).tokens == ()
    drafter.accept(Verified((6,)))
    assert drafter.propose([], 9).tokens == (7,)


def test_a_prediction_is_forgotten_with_the_next_request():
    drafter = SuffixDrafter(2)
    drafter.begin(request([1, 2], prediction=[3, 4]))
    drafter.accept(Verified((8,)))
    for prompt in ([1, 2], [1, 2, 8, 1, 2], [1, 2, 3, 4, 9, 1, 2, 3]):
        drafter.begin(request(prompt))
        told = drafter._automaton.tokens
        assert told == prompt
        drafter.begin(request([1, 2], prediction=[3, 4]))


def test_p_min_ends_a_draft():
    drafter = SuffixDrafter(1, p_min=0.9)
    drafter.begin(request([1, 2, 3, 1, 2]))
    assert drafter.estimate([], 3).acceptance_probs == ()


ONCE = assumed(2, 1, 1, 0.3)


def learned(prompt, *answers):
    """Return the acceptance probability of the first token after these answers to the prompt."""
    drafter = SuffixDrafter(2)
    for answer in answers:
        drafter.begin(request(prompt))
        drafter.accept(Verified(tuple(answer)))
    drafter.begin(request(prompt))
    return drafter.estimate(prompt, 1).acceptance_probs[0]


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


def test_counts_what_it_would_have_had_right_in_a_row():
    drafter, prompt = SuffixDrafter(), list(range(20))
    drafter.begin(Request(prompt, SamplingParams(), None))
    context = list(prompt)

    def accept(*tokens):
        context.extend(tokens)
        drafter.accept(Verified(tuple(tokens)))
        return drafter.estimate(context, 4).streak

    assert [accept(token) for token in (5, 6, 7, 8)] == [0, 0, 1, 2]  # a match has two tokens
    assert accept(9, 10, 11) == 5
    assert accept(12, 3) == 0
    assert accept(4, 5, 6) == 2
    drafter.begin(Request(context, SamplingParams(), None))
    assert drafter.estimate(context, 4).streak == 0


def test_what_isassumed():
    assert assumed(2, 1, 1, 0.612) == pytest.approx(4 / 7)
    assert assumed(4, 3, 4, 0.612) == pytest.approx((3 / 4) ** 2 * 7 / 8.5)
    copying = [assumed(4, 1, 1, share / 10) for share in range(11)]
    assert 0 < copying[0] < 0.65
    assert 0.85 < copying[-1] < 1
    assert copying == sorted(set(copying))


def test_an_answer_that_copies_is_expected_to_go_on():
    prompt = list(range(100, 160))
    drafter = SuffixDrafter(2)
    drafter.begin(request(prompt))
    drafter.accept(Verified(tuple(prompt[5:9])))
    before = drafter.estimate([*prompt, *prompt[5:9]], 8).acceptance_probs
    drafter.accept(Verified(tuple(prompt[9:30])))
    drafter.accept(Verified((7, *prompt[31:35])))
    after = drafter.estimate([*prompt, *prompt[5:30], 7, *prompt[31:35]], 8).acceptance_probs
    assert all(a > b for a, b in zip(after, before, strict=True))


def test_learns_by_kinds_of_evidence():
    short, long = [1, 2, 3, 9, 1, 2], [1, 2, 3, 4, 5, 6, 7, 9, 1, 2, 3, 4, 5, 6]
    drafter = SuffixDrafter(2)
    drafter.begin(request(long))
    before = drafter.estimate(long, 1)
    for _ in range(5):
        drafter.begin(request(short))
        drafter.accept(Verified((8,)))
    drafter.begin(request(long))
    assert drafter.estimate(long, 1) == before


def test_acceptance_of_a_depth_includes_those_before_it():
    drafter = SuffixDrafter(2)
    prompt = [1, 2, 3, 4, 5, 9, 1, 2]
    drafter.begin(request(prompt))
    estimate = drafter.estimate(prompt, 3)
    each = [assumed(n, 1, 1, 0.3) for n in (2, 3, 4)]  # ever longer matches, seen once
    expected = [each[0], each[0] * each[1], each[0] * each[1] * each[2]]
    assert estimate.acceptance_probs == pytest.approx(expected)
    assert (estimate.n_known, estimate.extension) == (3, None)
    assert drafter.propose(prompt, 3).acceptance_prob == pytest.approx(expected[2])


def test_thresholds_end_a_draft():
    drafter = SuffixDrafter(2)
    prompt = [1, 2, 3, 4, 5, 9, 1, 2]
    drafter.begin(request(prompt))
    probs = drafter.estimate(prompt, 3).acceptance_probs
    for n in range(4):
        thresholds = Thresholds((*probs[:n], 1.0))
        draft = drafter.propose(prompt, 3, thresholds)
        assert draft.tokens == (3, 4, 5)[:n]
        assert draft.acceptance_prob == (probs[n - 1] if n else 1)


def test_a_context_that_runs_ahead_is_followed():
    drafter = SuffixDrafter(2)
    prompt = [1, 2, 3, 4, 5, 6, 9, 4, 5, 7, 9, 1, 2]
    drafter.begin(request(prompt))
    assert drafter.propose(prompt, 2).tokens == (3, 4)
    assert drafter.propose([*prompt, 3], 2).tokens == (4, 5)
    assert drafter.propose([*prompt, 3, 4, 5], 1).tokens == (6,)  # as behind 1, 2, 3, 4, 5
    assert drafter.propose([*prompt, 4, 5], 1).tokens == (7,)  # as behind 4, 5 the last time
    assert (
        drafter.estimate([*prompt, 3], 1).acceptance_probs
        > drafter.estimate(prompt, 1).acceptance_probs
    )
    for ahead in ([3], [3, 4], [4, 5], [9, 4, 5]):
        fresh = SuffixDrafter(2)
        fresh.begin(request([*prompt, *ahead]))
        assert drafter.estimate([*prompt, *ahead], 3) == fresh.estimate([*prompt, *ahead], 3)
    assert drafter.estimate([*prompt, 8], 2).acceptance_probs == ()
    assert drafter.propose([*prompt, 3, 8], 2).tokens == ()
    assert drafter.propose(prompt, 2).tokens == (3, 4)  # nothing of it was read for good
    drafter.accept(Verified((3,)))
    assert drafter.propose([*prompt, 3], 2).tokens == (4, 5)
    assert drafter.propose([*prompt, 3, 4, 5], 1).tokens == (6,)
