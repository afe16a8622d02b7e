"""What a draft model expects of itself, and how it learns: on the toy backend, greedily."""

from itertools import accumulate
from operator import mul

import pytest

from edgespec import SamplingParams, ToyModel
from edgespec.drafters.cascade import Cascade
from edgespec.drafters.model import _ASSUMED, _STARTS, ModelDrafter, _kind
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.sampling.base import Request
from edgespec.types import Thresholds

PROMPT = [0, 1, 2]
SHOW = Thresholds((0.0,), (0.0,))  # no floor, but how sure it is counts


def sureness(token):
    """Behind even tokens the model is 0.99 sure, behind odd ones 0.5."""
    return 0.5 if token % 2 else 0.99


def counts_on(tokens):
    row = [(1 - sureness(tokens[-1])) / 63] * 64
    row[(tokens[-1] + 1) % 64] = sureness(tokens[-1])
    return row


def made(prompt=PROMPT, **options):
    drafter = ModelDrafter(ToyModel(counts_on, vocab_size=64), 64, **options)
    drafter.begin(Request(prompt, SamplingParams(), None))
    return drafter


def starts(drafter):
    return {kind: survival for kind, (_, survival) in enumerate(drafter.offer(PROMPT, 1).starts)}


def shares(drafter):
    return [share for share, _ in drafter.offer(PROMPT, 1).starts]


SURE, UNSURE = _kind(0.99), _kind(0.5)


def test_classes():
    assert (SURE, UNSURE) == (9, 2)
    assert [_kind(p) for p in (0.0, 0.29, 0.31, 0.999, 1.0)] == [0, 0, 1, 10, 10]


def test_before_anything_is_learned():
    offer = made().offer(PROMPT, 3)
    assert [share for share, _ in offer.starts] == pytest.approx(
        [n / sum(_STARTS) for n in _STARTS]
    )
    assert [survival for _, survival in offer.starts] == list(_ASSUMED)
    first = sum(n * s for n, s in zip(_STARTS, _ASSUMED, strict=True)) / sum(_STARTS)
    assert offer.survival == pytest.approx([first, 0.85 * first, 0.7225 * first])
    assert (offer.follow, offer.n_pending, offer.n_known) == (0.85, 3, 0)


def test_starts_shift_to_what_it_was_of_late():
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
    general = [n / sum(drafter._starts) for n in drafter._starts]
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
            drafter.accept([guess if right else guess ^ 1], None)
        survival = drafter.offer(PROMPT, 1).starts[SURE][1]
        assert survival > 0.95 if right else survival < 0.5


def test_only_first_tokens_are_starts():
    drafter = made()
    for _ in range(50):
        drafter.propose(PROMPT, 2, SHOW)
    assert shares(drafter)[UNSURE] < 0.02


def test_learns_of_the_class_that_it_drafted_from():
    assumed = dict(enumerate(_ASSUMED))
    for emitted, expected in (
        ([3, 50], {SURE: (8 * _ASSUMED[SURE] + 1) / 9, UNSURE: 8 * _ASSUMED[UNSURE] / 9}),
        ([50], {SURE: 8 * _ASSUMED[SURE] / 9}),  # what stood behind a miss teaches nothing
    ):
        drafter = made()
        assert drafter.propose(PROMPT, 2, SHOW).tokens == (3, 4)
        drafter.accept(emitted, None)
        assert starts(drafter) == pytest.approx(assumed | expected)


@pytest.mark.parametrize(("emitted", "follow"), [
    ([3, 4, 5, 6], (8 * 0.85 + 2) / 10), ([3, 4, 50], (8 * 0.85 + 1) / 10),
    ([3, 50], 8 * 0.85 / 9), ([50], 0.85),
])  # fmt: skip
def test_learns_how_tokens_follow(emitted, follow):
    drafter = made()
    assert drafter.propose(PROMPT, 3, SHOW).tokens == (3, 4, 5)
    drafter.accept(emitted, None)
    assert drafter.offer([*PROMPT, *emitted], 1).follow == pytest.approx(follow, abs=2e-3)


def test_learns_nothing_from_what_others_drafted():
    drafter = made()
    before = drafter.offer(PROMPT, 4).starts
    drafter.accept([3, 4, 5], None)
    assert drafter.offer(PROMPT, 4).starts == before
    drafter.propose([*PROMPT, 3, 4, 5], 1, SHOW)
    drafter.begin(Request(PROMPT, SamplingParams(), None))  # the verdict never came
    drafter.accept([8], None)
    assert list(starts(drafter).values()) == list(_ASSUMED)


@pytest.mark.parametrize(("emitted", "sure", "unsure"), [
    ([60], 0, 0), ([50, 60], 0, 0), ([50, 51, 60], 0, -1), ([50, 51, 52, 60], -1, 1),
    ([50, 51, 52, 53, 60], 1, 1),
])  # fmt: skip
def test_learns_behind_what_another_drafted(emitted, sure, unsure):
    """Its own two tokens stand behind 50 and 51, which lookup drafted."""
    drafter, before = made(), dict(enumerate(_ASSUMED))
    assert drafter.propose([*PROMPT, 50, 51], 2, SHOW).tokens == (52, 53)
    drafter.accept(emitted, None)
    after = starts(drafter)
    signs = {kind: (after[kind] > before[kind]) - (after[kind] < before[kind]) for kind in after}
    assert signs == dict.fromkeys(before, 0) | {SURE: sure, UNSURE: unsure}


def test_survival_of_a_draft():
    each = (_ASSUMED[SURE], _ASSUMED[UNSURE]) * 2
    survivals = list(accumulate(each, mul))
    found = [made().propose(PROMPT, n, SHOW).survival for n in range(1, 5)]
    assert found == pytest.approx(survivals)


def test_floors_end_a_draft():
    survivals = [_ASSUMED[SURE], _ASSUMED[SURE] * _ASSUMED[UNSURE]]
    for keep, extend, n_drafted, n_evaluated in (
        ((0.0,), (1.1,), 0, 0), ((1.0,), (0.0,), 0, 1),
        ((0.0,), (0.0, 1.0), 1, 1), ((0.0, 1.0), (0.0,), 1, 2),
        ((0.0, survivals[1] - 0.01), (0.0, survivals[0] - 0.01, 1.0), 2, 2),
    ):  # fmt: skip
        drafter = made()
        draft = drafter.propose(PROMPT, 4, Thresholds(keep, extend))
        assert len(draft.tokens) == n_drafted
        evaluated = n_evaluated and len(PROMPT) + n_evaluated - 1
        assert drafter._model.n_evaluated == evaluated


def test_tokens_that_it_has_to_read():
    drafter, context = made(), [*PROMPT, 3, 4]
    drafter.accept([3, 4], None)  # plain steps
    assert drafter.offer(context, 2).n_pending == 5
    drafter.propose(context, 1, SHOW)
    drafter.accept([1, 2, 3], None)
    few = drafter.offer([*context, 1, 2, 3], 2).n_pending
    drafter.accept([4, 5], None)
    assert drafter.offer([*context, 1, 2, 3, 4, 5], 2).n_pending == few + 2
    drafter.begin(Request([*context, 8], SamplingParams(), None))
    assert drafter.offer([*context, 8], 2).n_pending == 1


@pytest.mark.parametrize("emitted", [[50], [3, 50], [3, 4, 50], [3, 4, 5, 6]])
def test_what_it_has_read_does_not_count(emitted):
    drafter, context = made(), [*PROMPT, *emitted]
    drafter.propose(PROMPT, 3, SHOW)
    drafter.accept(emitted, None)
    n_pending, before = drafter.offer(context, 1).n_pending, drafter._model.n_evaluated
    drafter.propose(context, 1, SHOW)
    assert drafter._model.n_evaluated - before == n_pending


def test_how_sure_it_is_in_any_vocabulary():
    for n in (64, 63):
        table = [[0.4 if i == (t + 1) % n else 0.6 / (n - 1) for i in range(n)] for t in range(n)]
        drafter = ModelDrafter(ToyModel(table), n, p_min=0.9)
        drafter.begin(Request(PROMPT, SamplingParams(), None))
        assert drafter.propose(PROMPT, 4).tokens == ()


def test_reads_the_text_as_it_is_behind_a_rejected_lookup():
    prompt = [1, 2, 3, 4, 1, 2]
    lookup, drafter = SuffixDrafter(2), made(prompt)
    both = Cascade(lookup, drafter, [lookup, drafter])
    both.begin(Request(prompt, SamplingParams(), None))
    assert both.propose(prompt, 5, Thresholds((0.2,), (0.0,))).tokens[:2] == (3, 4)
    both.accept([9], None)
    both.accept([8, 7, 6, 5], None)  # a step of another source
    context = [*prompt, 9, 8, 7, 6, 5]
    drafter.propose(context, 1)
    assert drafter._model._tokens == context


def test_what_ended_the_answer_was_right_nevertheless():
    """An end of text that was drafted, or a stop string: what stands behind it is unknown."""
    drafter = made()
    assert drafter.propose(PROMPT, 4, SHOW).tokens == (3, 4, 5, 6)
    drafter.accept([3, 4], None)
    assert drafter._calibration._seen[SURE] == pytest.approx([1, 1])
    assert drafter._calibration._seen[UNSURE] == pytest.approx([1, 1])


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
    drafter.accept(emitted, None)
    context = [*prompt, *emitted]
    n_pending, before = drafter.offer(context, 1).n_pending, drafter._model.n_evaluated
    drafter.propose(context, 1, SHOW)
    assert drafter._model.n_evaluated - before == n_pending
    assert drafter._model._tokens[: len(context)] == context
