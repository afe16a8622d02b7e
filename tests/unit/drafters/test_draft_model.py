"""A draft model's estimates, and its learning: on the toy backend, greedily."""

from itertools import accumulate
from operator import mul

import pytest

from edgespec import SamplingParams, ToyModel
from edgespec.drafters.cascade import Cascade
from edgespec.drafters.confidence import _ACCEPTED, _DRAFTS, Confidence, confidence_class
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.sampling.base import Request
from edgespec.types import Thresholds, Verified

PROMPT = [0, 1, 2]
SHOW = Thresholds((0.0,), (0.0,))  # nothing ends a draft, but how sure it is counts


def sureness(token):
    """Behind even tokens the model is 0.99 sure, behind odd ones 0.5."""
    return 0.5 if token % 2 else 0.99


def counts_on(tokens):
    row = [(1 - sureness(tokens[-1])) / 63] * 64
    row[(tokens[-1] + 1) % 64] = sureness(tokens[-1])
    return row


class Counting:
    """Costs of one second a token."""

    draft_token_s = 1.0

    def draft(self, n, n_past):
        return float(n)


def made(prompt=PROMPT, **options):
    drafter = ModelDrafter(ToyModel(counts_on, vocab_size=64), 64, costs=Counting(), **options)
    drafter.begin(Request(prompt, SamplingParams(), None))
    return drafter


def histogram(drafter):
    return drafter.estimate(PROMPT, 1).extension.confidence_histogram


def probs(drafter):
    return {kind: prob for kind, (_, prob) in enumerate(histogram(drafter))}


def shares(drafter):
    return [share for share, _ in histogram(drafter)]


def n_unread(drafter, context):
    """Return the number of tokens that it would have to read."""
    return 1 + drafter.estimate(context, 2).extension.catch_up_s(0)


SURE, UNSURE = confidence_class(0.99), confidence_class(0.5)


def test_the_cache_of_another_owner_is_not_reused():
    drafter = made()
    drafter.propose(PROMPT, 1, SHOW)
    for owner, unread in (("", 1), ("one", 3), ("one", 1), ("two", 3), ("", 3)):
        drafter.begin(Request(PROMPT, SamplingParams(), None, owner=owner))
        assert n_unread(drafter, PROMPT) == unread
        drafter.propose(PROMPT, 1, SHOW)


def test_classes():
    assert (SURE, UNSURE) == (9, 2)
    assert [confidence_class(p) for p in (0.0, 0.29, 0.31, 0.999, 1.0)] == [0, 0, 1, 10, 10]


def test_before_anything_is_learned():
    drafter = made()
    estimate = drafter.estimate(PROMPT, 3)
    assert shares(drafter) == pytest.approx([n / sum(_DRAFTS) for n in _DRAFTS])
    assert list(probs(drafter).values()) == list(_ACCEPTED)
    first = sum(n * s for n, s in zip(_DRAFTS, _ACCEPTED, strict=True)) / sum(_DRAFTS)
    assert estimate.acceptance_probs == pytest.approx([first, 0.85 * first, 0.7225 * first])
    assert (estimate.extension.conditional_acceptance_rate, estimate.n_known) == (0.85, 0)
    assert n_unread(drafter, PROMPT) == 3


def test_shares_shift_to_what_it_was_of_late():
    drafter = made()
    before = shares(drafter)
    drafter.propose(PROMPT, 1, SHOW)  # behind 2 it is sure
    assert shares(drafter)[SURE] == pytest.approx((23 / 24) * before[SURE] + 1 / 24)
    for _ in range(100):
        drafter.propose(PROMPT, 1, SHOW)
    assert shares(drafter)[SURE] > 0.95
    for _ in range(24):
        drafter.propose([*PROMPT, 3], 1, SHOW)
    assert shares(drafter)[UNSURE] > 0.6
    counts = drafter._confidence._all
    general = [n / sum(counts) for n in counts]
    assert general[SURE] > 0.6 > 0.3 > general[UNSURE]
    drafter.begin(Request(PROMPT, SamplingParams(), None))  # a new answer: nearer to any other
    between = zip(before, general, strict=True)
    assert shares(drafter) == pytest.approx([0.6 * a + 0.4 * b for a, b in between], abs=1e-3)


def test_how_often_it_agrees_is_forgotten_soon():
    drafter = made()
    for n, right in ((200, True), (40, False)):
        for _ in range(n):
            drafter.begin(Request(PROMPT, SamplingParams(), None))
            guess = drafter.propose(PROMPT, 1, SHOW).tokens[0]
            drafter.accept(Verified((guess if right else guess ^ 1,)))
        prob = probs(drafter)[SURE]
        assert prob > 0.95 if right else prob < 0.5


def test_only_first_tokens_count_as_drafts():
    drafter = made()
    for _ in range(50):
        drafter.propose(PROMPT, 2, SHOW)
    assert shares(drafter)[UNSURE] < 0.02


def test_learns_of_the_class_that_it_drafted_from():
    assumed = dict(enumerate(_ACCEPTED))
    for emitted, expected in (
        ([3, 50], {SURE: (8 * _ACCEPTED[SURE] + 1) / 9, UNSURE: 8 * _ACCEPTED[UNSURE] / 9}),
        ([50], {SURE: 8 * _ACCEPTED[SURE] / 9}),  # what stood behind a miss teaches nothing
    ):
        drafter = made()
        assert drafter.propose(PROMPT, 2, SHOW).tokens == (3, 4)
        drafter.accept(Verified(tuple(emitted)))
        assert probs(drafter) == pytest.approx(assumed | expected)


@pytest.mark.parametrize(("emitted", "follow"), [
    ([3, 4, 5, 6], (8 * 0.85 + 2) / 10), ([3, 4, 50], (8 * 0.85 + 1) / 10),
    ([3, 50], 8 * 0.85 / 9), ([50], 0.85),
])  # fmt: skip
def test_learns_how_tokens_follow(emitted, follow):
    drafter = made()
    assert drafter.propose(PROMPT, 3, SHOW).tokens == (3, 4, 5)
    drafter.accept(Verified(tuple(emitted)))
    extension = drafter.estimate([*PROMPT, *emitted], 1).extension
    assert extension.conditional_acceptance_rate == pytest.approx(follow, abs=2e-3)


def test_learns_nothing_from_what_others_drafted():
    drafter = made()
    before = histogram(drafter)
    drafter.accept(Verified((3, 4, 5)))
    assert histogram(drafter) == before
    drafter.propose([*PROMPT, 3, 4, 5], 1, SHOW)
    drafter.begin(Request(PROMPT, SamplingParams(), None))  # the verdict never came
    drafter.accept(Verified((8,)))
    assert list(probs(drafter).values()) == list(_ACCEPTED)


@pytest.mark.parametrize(("emitted", "sure", "unsure"), [
    ([60], 0, 0), ([50, 60], 0, 0), ([50, 51, 60], 0, -1), ([50, 51, 52, 60], -1, 1),
    ([50, 51, 52, 53, 60], 1, 1), ([50, 7, 52, 53, 60], 0, 0),
])  # fmt: skip
def test_learns_behind_what_another_drafted(emitted, sure, unsure):
    """Its own two tokens stand behind 50 and 51, which lookup drafted, perhaps as one of several
    paths.
    """
    drafter, before = made(), dict(enumerate(_ACCEPTED))
    assert drafter.propose([*PROMPT, 50, 51], 2, SHOW).tokens == (52, 53)
    drafter.accept(Verified(tuple(emitted)))
    after = probs(drafter)
    signs = {kind: (after[kind] > before[kind]) - (after[kind] < before[kind]) for kind in after}
    assert signs == dict.fromkeys(before, 0) | {SURE: sure, UNSURE: unsure}


def test_acceptance_of_a_draft():
    each = (_ACCEPTED[SURE], _ACCEPTED[UNSURE]) * 2
    expected = list(accumulate(each, mul))
    found = [made().propose(PROMPT, n, SHOW).acceptance_prob for n in range(1, 5)]
    assert found == pytest.approx(expected)


def test_thresholds_end_a_draft():
    expected = [_ACCEPTED[SURE], _ACCEPTED[SURE] * _ACCEPTED[UNSURE]]
    for keep, extend, n_drafted, n_evaluated in (
        ((0.0,), (1.1,), 0, 0), ((1.0,), (0.0,), 0, 1),
        ((0.0,), (0.0, 1.0), 1, 1), ((0.0, 1.0), (0.0,), 1, 2),
        ((0.0, expected[1] - 0.01), (0.0, expected[0] - 0.01, 1.0), 2, 2),
    ):  # fmt: skip
        drafter = made()
        draft = drafter.propose(PROMPT, 4, Thresholds(keep, extend))
        assert len(draft.tokens) == n_drafted
        evaluated = n_evaluated and len(PROMPT) + n_evaluated - 1
        assert drafter._model.n_evaluated == evaluated


def test_tokens_that_it_has_to_read():
    drafter, context = made(), [*PROMPT, 3, 4]
    drafter.accept(Verified((3, 4)))  # plain steps
    assert n_unread(drafter, context) == 5
    drafter.propose(context, 1, SHOW)
    drafter.accept(Verified((1, 2, 3)))
    few = n_unread(drafter, [*context, 1, 2, 3])
    drafter.accept(Verified((4, 5)))
    assert n_unread(drafter, [*context, 1, 2, 3, 4, 5]) == few + 2
    drafter.begin(Request([*context, 8], SamplingParams(), None))
    assert n_unread(drafter, [*context, 8]) == 1


@pytest.mark.parametrize("emitted", [[50], [3, 50], [3, 4, 50], [3, 4, 5, 6]])
def test_what_it_has_read_does_not_count(emitted):
    drafter, context = made(), [*PROMPT, *emitted]
    drafter.propose(PROMPT, 3, SHOW)
    drafter.accept(Verified(tuple(emitted)))
    expected, before = n_unread(drafter, context), drafter._model.n_evaluated
    drafter.propose(context, 1, SHOW)
    assert drafter._model.n_evaluated - before == expected


def test_how_sure_it_is_in_any_vocabulary():
    for n in (64, 63):
        table = [[0.4 if i == (t + 1) % n else 0.6 / (n - 1) for i in range(n)] for t in range(n)]
        drafter = ModelDrafter(ToyModel(table), n, p_min=0.9)
        drafter.begin(Request(PROMPT, SamplingParams(), None))
        assert drafter.propose(PROMPT, 4).tokens == ()


def test_reads_the_text_as_it_is_behind_a_rejected_lookup():
    prompt = [1, 2, 3, 4, 1, 2]
    lookup, drafter = SuffixDrafter(2), made(prompt)
    both = Cascade(lookup, drafter)
    lookup.begin(Request(prompt, SamplingParams(), None))
    assert both.propose(prompt, 5, Thresholds((0.2,), (0.0,))).tokens[:2] == (3, 4)
    for emitted in ((9,), (8, 7, 6, 5)):  # the second by a step of another source
        lookup.accept(Verified(emitted))
        drafter.accept(Verified(emitted))
    context = [*prompt, 9, 8, 7, 6, 5]
    drafter.propose(context, 1)
    assert drafter._model._tokens == context


def test_what_ended_the_answer_was_right_nevertheless():
    """An end of text that was drafted, or a stop string: what stands behind it is unknown."""
    drafter = made()
    assert drafter.propose(PROMPT, 4, SHOW).tokens == (3, 4, 5, 6)
    drafter.accept(Verified((3, 4)))
    once = Confidence()
    for kind in (SURE, UNSURE):
        once.observe(kind, True, behind_accepted=False)
    assert list(probs(drafter).values()) == once.probs


def test_a_long_read_counts_as_a_whole():
    model = ToyModel(counts_on, vocab_size=64, max_batch=8)
    drafter = ModelDrafter(model, 64)
    prompt = [i % 64 for i in range(21)]
    drafter.begin(Request(prompt, SamplingParams(), None))
    assert drafter.propose(prompt, 3, SHOW).evaluated == (21, 1, 1)


@pytest.mark.parametrize("length", [3, 20, 200])
@pytest.mark.parametrize("emitted", [[50], [3, 50], [3, 4, 5, 6]])
def test_what_it_has_to_read_is_known_behind_a_look_ahead(length, emitted):
    """Another source's draft is under way meanwhile; a long prompt is left alone."""
    prompt = [*([9] * (length - 3)), *PROMPT]
    drafter = made(prompt)
    ahead = drafter.look_ahead([*prompt, 3, 4, 5], 4, lambda: False)
    assert bool(ahead) == (length < 32)
    drafter.accept(Verified(tuple(emitted)))
    context = [*prompt, *emitted]
    expected, before = n_unread(drafter, context), drafter._model.n_evaluated
    drafter.propose(context, 1, SHOW)
    assert drafter._model.n_evaluated - before == expected
    assert drafter._model._tokens[: len(context)] == context


def stays(tokens):
    """Say the last token again, or else the next one."""
    row = [0.0] * 64
    row[tokens[-1]], row[(tokens[-1] + 1) % 64] = 0.6, 0.4
    return row


@pytest.mark.parametrize("own", [(), (7,), (7, 8)])
def test_penalties_count_what_was_drafted_before(own):
    """By another, by the model itself, or in a draft that is under way."""
    params = SamplingParams(presence_penalty=2.0)
    drafter = ModelDrafter(ToyModel(stays, vocab_size=64), 64)
    drafter.begin(Request(PROMPT, params, None))
    text = [*PROMPT, 7, *own]
    expected = [text[-1] + i for i in (1, 2, 3)]
    assert drafter.propose(text, 3, SHOW).tokens == tuple(expected)
    found = drafter.look_ahead(text, 3, lambda: False)
    assert [token for token, _ in found] == expected
