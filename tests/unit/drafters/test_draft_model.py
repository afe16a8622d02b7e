"""A draft model's estimates, its learning, and what it reads: on the toy backend, greedily."""

from itertools import accumulate
from operator import mul

import pytest

from edgespec import SamplingParams, ToyModel
from edgespec.decoding.drafting import Drafting
from edgespec.drafters.confidence import (
    _ACCEPTED,
    _DRAFTS,
    Choices,
    Confidence,
    confidence_class,
)
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.types import Draft, Verified, Work
from tests.helpers.growing import begin, drafted, line, said

PROMPT = [0, 1, 2]


def sureness(token):
    """After even tokens the model is 0.99 sure, after odd ones 0.5."""
    return 0.5 if token % 2 else 0.99


def counts_on(tokens):
    row = [(1 - sureness(tokens[-1])) / 63] * 64
    row[(tokens[-1] + 1) % 64] = sureness(tokens[-1])
    return row


def made(prompt=PROMPT, probs=counts_on, params=None, **options):
    drafter = ModelDrafter(ToyModel(probs, vocab_size=64), 64, **options)
    begin(drafter, prompt, params)
    return drafter


def probs(drafter):
    return {kind: prob for kind, (_, prob) in enumerate(drafter.forecast().histogram)}


def shares(drafter):
    return [share for share, _ in drafter.forecast().histogram]


def n_unread(drafter):
    """Return the number of tokens that it would have to read."""
    return drafter.work([drafter.root()]).n_tokens


SURE, UNSURE = confidence_class(0.99), confidence_class(0.5)


def test_the_cache_of_another_owner_is_not_reused():
    drafter = made()
    said(drafter)
    for owner, unread in (("", 1), ("one", 3), ("one", 1), ("two", 3), ("", 3)):
        begin(drafter, PROMPT, owner=owner)
        assert n_unread(drafter) == unread
        said(drafter)


def test_classes():
    assert (SURE, UNSURE) == (9, 2)
    assert [confidence_class(p) for p in (0.0, 0.29, 0.31, 0.999, 1.0)] == [0, 0, 1, 10, 10]


def test_before_anything_is_learned():
    drafter = made()
    forecast = drafter.forecast()
    assert shares(drafter) == pytest.approx([n / sum(_DRAFTS) for n in _DRAFTS])
    assert list(probs(drafter).values()) == list(_ACCEPTED)
    first = sum(n * s for n, s in zip(_DRAFTS, _ACCEPTED, strict=True)) / sum(_DRAFTS)
    assert (forecast.first, forecast.rate) == (pytest.approx(first), 0.85)
    assert drafter.work([drafter.root()]) == Work(3, 0)


def test_shares_shift_to_what_it_was_of_late():
    drafter = made()
    before = shares(drafter)
    said(drafter)  # after 2 it is sure
    assert shares(drafter)[SURE] == pytest.approx((23 / 24) * before[SURE] + 1 / 24)
    for token in [2] * 100 + [3] * 24:
        drafter.accept(Verified((token,)))
        said(drafter)
        assert token == 3 or shares(drafter)[SURE] > before[SURE]
    assert shares(drafter)[UNSURE] > 0.6
    counts = drafter._confidence._all
    general = [n / sum(counts) for n in counts]
    assert general[SURE] > 0.6 > 0.3 > general[UNSURE]
    begin(drafter, PROMPT)  # a new answer: nearer to any other
    between = zip(before, general, strict=True)
    assert shares(drafter) == pytest.approx([0.6 * a + 0.4 * b for a, b in between], abs=1e-3)


def test_how_often_it_agrees_is_forgotten_soon():
    drafter = made()
    for n, right in ((200, True), (40, False)):
        for _ in range(n):
            begin(drafter, PROMPT)
            ((guess, _),) = said(drafter)
            drafter.accept(Verified((guess if right else guess ^ 1,)))
        prob = probs(drafter)[SURE]
        assert prob > 0.95 if right else prob < 0.5


def test_only_first_tokens_count_as_drafts():
    drafter = made()
    for _ in range(50):
        line(drafter, 2)
        drafter.accept(Verified((2,)))
    assert shares(drafter)[UNSURE] < 0.02


def test_learns_of_the_class_that_it_drafted_from():
    assumed = dict(enumerate(_ACCEPTED))
    for emitted, expected in (
        ([3, 50], {SURE: (8 * _ACCEPTED[SURE] + 1) / 9, UNSURE: 8 * _ACCEPTED[UNSURE] / 9}),
        ([50], {SURE: 8 * _ACCEPTED[SURE] / 9}),  # what came after a miss teaches nothing
    ):
        drafter = made()
        assert line(drafter, 2) == [3, 4]
        drafter.accept(Verified(tuple(emitted)))
        assert probs(drafter) == pytest.approx(assumed | expected)


@pytest.mark.parametrize("by_depth", [True, False])
def test_later_tokens_of_a_head_are_kinds_of_their_own(by_depth):
    """It is always as sure, and always wrong in the third token."""
    confidence, choices = Confidence(by_depth=by_depth), Choices((1,), SURE)
    for _ in range(40):
        for depth, token in enumerate((1, 1, 2), start=1):
            confidence.observe(choices, token, depth)
    first, second, third, fourth = (confidence.split(choices, depth)[0] for depth in range(1, 5))
    if by_depth:
        assert min(first, second) > 0.95 > 0.3 > third
        assert fourth == first  # nothing is known of it
    else:
        assert first == second == third == fourth < 0.75


@pytest.mark.parametrize(("emitted", "rate"), [
    ([3, 4, 5, 6], (8 * 0.85 + 2) / 10), ([3, 4, 50], (8 * 0.85 + 1) / 10),
    ([3, 50], 8 * 0.85 / 9), ([50], 0.85),
])  # fmt: skip
def test_learns_how_tokens_follow(emitted, rate):
    drafter = made()
    assert line(drafter, 3) == [3, 4, 5]
    drafter.accept(Verified(tuple(emitted)))
    assert drafter.forecast().rate == pytest.approx(rate, abs=2e-3)


def test_learns_nothing_from_what_others_drafted():
    drafter = made()
    before = drafter.forecast()
    drafter.accept(Verified((3, 4, 5)))
    assert drafter.forecast() == before
    said(drafter)
    begin(drafter, PROMPT)  # the verdict never came
    drafter.accept(Verified((8,)))
    assert list(probs(drafter).values()) == list(_ACCEPTED)


@pytest.mark.parametrize(("emitted", "sure", "unsure"), [
    ([60], 0, 0), ([50, 60], 0, 0), ([50, 51, 60], 0, -1), ([50, 51, 52, 60], -1, 1),
    ([50, 51, 52, 53, 60], 1, 1), ([50, 7, 52, 53, 60], 0, 0),
])  # fmt: skip
def test_learns_after_what_another_drafted(emitted, sure, unsure):
    """Its own two tokens come after 50 and 51, which lookup drafted."""
    drafter, before = made(), dict(enumerate(_ACCEPTED))
    assert line(drafter, 2, (50, 51)) == [52, 53]
    drafter.accept(Verified(tuple(emitted)))
    after = probs(drafter)
    signs = {kind: (after[kind] > before[kind]) - (after[kind] < before[kind]) for kind in after}
    assert signs == dict.fromkeys(before, 0) | {SURE: sure, UNSURE: unsure}


def test_acceptance_of_a_draft():
    each = (_ACCEPTED[SURE], _ACCEPTED[UNSURE]) * 2
    expected = list(accumulate(accumulate(each, mul)))
    assert [drafted(made(), n).expected for n in range(1, 5)] == pytest.approx(expected)


def test_tokens_that_it_has_to_read():
    drafter = made()
    drafter.accept(Verified((3, 4)))  # plain steps
    assert n_unread(drafter) == 5
    said(drafter)
    drafter.accept(Verified((1, 2, 3)))
    few = n_unread(drafter)
    drafter.accept(Verified((4, 5)))
    assert n_unread(drafter) == few + 2
    begin(drafter, [*PROMPT, 3, 4, 8])
    assert n_unread(drafter) == 1


@pytest.mark.parametrize(("emitted", "unread"), [
    ((50,), 1), ((3, 50), 1), ((3, 4, 50), 1), ((3, 4, 5, 6), 2),
])  # fmt: skip
def test_what_it_has_read_does_not_count(emitted, unread):
    drafter = made()
    line(drafter, 3)
    drafter.accept(Verified(emitted))
    assert n_unread(drafter) == unread
    before = drafter._model.n_evaluated
    said(drafter)
    assert drafter._model.n_evaluated - before == unread


def test_how_sure_it_is_in_any_vocabulary():
    for n in (64, 63):
        table = [[0.4 if i == (t + 1) % n else 0.6 / (n - 1) for i in range(n)] for t in range(n)]
        drafter = ModelDrafter(ToyModel(table), n, p_min=0.9)
        begin(drafter, PROMPT)
        assert said(drafter) == ()


def test_reads_the_text_as_it_is_after_a_rejected_lookup():
    drafter = made()
    line(drafter, 2, (3, 4))  # lookup's
    for emitted in ((9,), (8, 7, 6, 5)):  # the second by a step without it
        drafter.accept(Verified(emitted))
    said(drafter)
    assert drafter._model._tokens == [*PROMPT, 9, 8, 7, 6, 5]


def test_what_ended_the_answer_was_right_nevertheless():
    """An end of text that was drafted, or a stop string: what comes after it is unknown."""
    drafter = made()
    assert line(drafter, 4) == [3, 4, 5, 6]
    drafter.accept(Verified((3, 4)))
    once = Confidence()
    for depth, kind in enumerate((SURE, UNSURE), start=1):
        once.observe(Choices((1,), kind), 1, depth)
    assert list(probs(drafter).values()) == [prob for _, prob in once.histogram]


def test_a_long_read_counts_as_a_whole():
    drafter = ModelDrafter(ToyModel(counts_on, vocab_size=64, max_batch=8), 64)
    begin(drafter, [i % 64 for i in range(21)])
    assert drafted(drafter, 3).evaluated == (Work(21, 0), Work(1, 21), Work(1, 22))


@pytest.mark.parametrize("length", [3, 20, 200])
@pytest.mark.parametrize("emitted", [[50], [3, 50], [3, 4, 5, 6]])
def test_what_it_has_to_read_is_known_after_drafting_ahead(length, emitted):
    """Another source's draft is under way meanwhile; a long prompt is left alone."""
    prompt = [*([9] * (length - 3)), *PROMPT]
    drafter = made()
    drafting = Drafting([drafter], FixedDepth(4))
    drafting.begin(Request(prompt, SamplingParams(), None))
    drafting.grow_ahead(Draft((3, 4, 5)), 4, lambda: False)
    assert bool(drafter._model.n_evaluated) == (length < 32)
    drafter.accept(Verified(tuple(emitted)))
    context = [*prompt, *emitted]
    expected, before = n_unread(drafter), drafter._model.n_evaluated
    said(drafter)
    assert drafter._model.n_evaluated - before == expected
    assert expected == 0 or drafter._model._tokens[: len(context)] == context


def stays(tokens):
    """Say the last token again, or else the next one."""
    row = [0.0] * 64
    row[tokens[-1]], row[(tokens[-1] + 1) % 64] = 0.6, 0.4
    return row


@pytest.mark.parametrize("own", [(), (7,), (7, 8)])
def test_penalties_count_what_was_drafted_before(own):
    """By another, or by the model itself."""
    drafter = made(probs=stays, params=SamplingParams(presence_penalty=2.0))
    ahead = (7, *own)
    assert line(drafter, 3, ahead) == [ahead[-1] + i for i in (1, 2, 3)]


def test_a_row_that_is_not_drawn_from_teaches_nothing():
    """What is below p_min was not drafted: no token of it was accepted or rejected."""
    drafter = ModelDrafter(ToyModel([[0.5, 0.5]] * 2), 2, p_min=0.9)
    begin(drafter, [0, 1], SamplingParams(temperature=1.0))
    assert said(drafter) == ()
    before = drafter.learned()["draft_model"]["outcomes"]
    drafter.accept(Verified((1,)))
    assert drafter.learned()["draft_model"]["outcomes"] == before
