"""Sources joined: tokens, probabilities, survivals, and who is told what; thresholds."""

import pytest

from edgespec import SamplingParams, ToyModel
from edgespec.drafters.cascade import Cascade, sources
from edgespec.drafters.model import ModelDrafter
from edgespec.drafters.suffix import SuffixDrafter, _assumed
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import NO_THRESHOLDS, Distribution, Draft, Offer, Thresholds

HALF = Distribution([1, 2], [0.5, 0.5])
THIRD = Distribution([1, 3], [1 / 3, 2 / 3])


class Says:
    """Drafts what it is told to and notes what it is asked."""

    def __init__(self, name, draft=(), survival=1.0, offer=None):
        self.name, self.survival, self.log = name, survival, []
        self.draft = [(t, None) if isinstance(t, int) else t for t in draft]
        self.made = offer or Offer(name)

    def begin(self, request):
        self.log.append(("begin", request))

    def offer(self, context, limit):
        return self.made

    def propose(self, context, limit, thresholds=NO_THRESHOLDS):
        self.log.append((tuple(context), limit, thresholds))
        tokens = tuple(t for t, _ in self.draft[:limit])
        probs = tuple(q for _, q in self.draft[:limit])
        return Draft(tokens, self.name, probs if any(probs) else None, self.survival)

    def accept(self, tokens, rows):
        self.log.append(("accept", tuple(tokens)))

    def close(self):
        self.log.append("close")


def onehot(token):
    return Distribution([token], [1.0])


@pytest.mark.parametrize(("first", "second", "probs"), [
    ([4, 5], [(1, HALF), (3, THIRD)], (onehot(4), onehot(5), HALF, THIRD)),
    ([(1, HALF), (3, THIRD)], [4, 5], (HALF, THIRD, onehot(4), onehot(5))),
    ([(1, HALF), (3, THIRD)], [(2, HALF)], (HALF, THIRD, HALF)),
    ([4, 5], [6], None),
])  # fmt: skip
def test_tokens_and_probabilities_are_joined(first, second, probs):
    one, two = Says("one", first, 0.5), Says("two", second, 0.25)
    draft = Cascade(one, two).propose([7, 8], 9)
    tokens = tuple(t for t, _ in one.draft + two.draft)
    assert draft == Draft(tokens, "one+two", probs, 0.125)


def test_the_second_is_asked_for_what_is_left():
    thresholds = Thresholds((0.1, 0.2, 0.3, 0.4), (0.0, 0.5, 0.25))
    one, two = Says("one", [4, 5], 0.5), Says("two", [6, 6, 6, 6])
    assert Cascade(one, two).propose([7, 8], 4, thresholds).tokens == (4, 5, 6, 6)
    assert one.log == [((7, 8), 4, thresholds)]
    assert two.log == [((7, 8, 4, 5), 2, Thresholds((0.6, 0.8), (0.5,)))]


@pytest.mark.parametrize(("head", "limit", "source"), [
    ([], 4, "one+two"), ([4, 5], 2, "one+two"), ([4, 5], 1, "one+two"),
])  # fmt: skip
def test_the_second_is_not_asked_in_vain(head, limit, source):
    one, two = Says("one", head, 0.5), Says("two", [6])
    draft = Cascade(one, two).propose([7], limit)
    assert (draft.tokens, draft.source) == (tuple(head[:limit]), source)
    assert two.log == []


def test_nothing_behind_it_is_the_first_ones_own():
    draft = Cascade(Says("one", [(1, HALF)], 0.5), Says("two")).propose([7], 4)
    assert draft == Draft((1,), "one", (HALF,), 0.5)


def test_offers():
    model = Offer("m", (0.8, 0.6), 30, ((1.0, 0.8),), 0.7)
    lookup = Offer("l", (0.9, 0.5, 0.4), n_known=3)
    one, two = Says("m", offer=model), Says("l", offer=lookup)
    expected = Offer("m+l", (0.8, 0.6), 30, ((1.0, 0.8),), 0.7)
    assert Cascade(one, two).offer([1], 9) == expected
    expected = Offer("l+m", (0.9, 0.5, 0.4), 30, ((1.0, 0.8),), 0.7, 3)
    assert Cascade(two, one).offer([1], 9) == expected
    two.made = Offer("l")
    assert Cascade(two, one).offer([1], 9) == Offer("l+m")


def test_each_is_told_once():
    lookup, model = Says("suffix"), Says("draft_model")
    request = Request([1], SamplingParams(), None)
    made = sources(lookup, model)
    assert [source.name for source in made] == [
        "suffix", "draft_model+suffix", "suffix+draft_model",
    ]  # fmt: skip
    for source in made:
        source.begin(request)
    for source in made:
        source.accept([2, 3], None)
    for source in made:
        source.close()
    told = [("begin", request), ("accept", (2, 3)), "close"]
    assert lookup.log == model.log == told


def test_sources_of_one():
    lookup, model = Says("suffix"), Says("draft_model")
    assert sources(lookup, None) == [lookup]
    assert sources(None, model) == [model]
    assert sources(None, None) == []


PROMPT = [0, 1, 2, 3, 4, 0, 1]


def real(temperature):
    """Lookup knows 2, 3, 4, 0, 1; the model counts on, 0.9 sure, and is unsure behind 4."""

    def probs(tokens):
        sure, row = 0.3 if tokens[-1] == 4 else 0.9, [0.0] * 64
        row[(tokens[-1] + 1) % 60], row[60], row[61] = sure, (1 - sure) / 2, (1 - sure) / 2
        return row

    lookup, model = SuffixDrafter(2), ModelDrafter(ToyModel(probs, vocab_size=64), 64)
    for drafter in (lookup, model):
        params = SamplingParams(temperature=temperature, top_k=3)
        drafter.begin(Request(PROMPT, params, SeededRandomness(1)))
    return lookup, model


def test_real_drafters_greedily():
    lookup, model = real(0.0)
    known, sure = lookup.offer(PROMPT, 3).survival, 0.91  # of the model's class, at first
    draft = Cascade(lookup, model).propose(PROMPT, 6, Thresholds((0.26,)))
    assert draft == Draft(
        (2, 3), "suffix", None, known[1], (9,)
    )  # 0.26 > sure * known[1] > known[2]
    draft = Cascade(lookup, model).propose(PROMPT, 6, Thresholds((0.22,)))
    assert draft == Draft((2, 3, 4), "suffix+draft_model", None, known[1] * sure, (1, 1))
    draft = Cascade(model, lookup).propose(PROMPT, 6, Thresholds((0.35,)))
    assert draft.tokens == (2, 3, 4, 0, 1)  # behind 4 the model is unsure, lookup knows
    assert draft.survival == pytest.approx(
        sure**3 * _assumed(5, 1, 1, 0.3) * _assumed(6, 1, 1, 0.3)
    )
    assert draft.probs is None


def test_real_drafters_with_chance():
    lookup, model = real(1.0)
    draft = Cascade(lookup, model).propose(PROMPT, 8)
    n = len(lookup.propose(PROMPT, 8).tokens)
    assert 0 < n < len(draft.tokens) == len(draft.probs) == 8
    assert draft.probs[:n] == tuple(map(onehot, draft.tokens[:n]))
    for token, q in zip(draft.tokens[n:], draft.probs[n:], strict=True):
        assert 0 < q.prob(token) < 1


def test_floors_beyond_their_ends():
    thresholds = Thresholds((0.2, 0.4), (0.1, 0.3))
    assert [thresholds.keeps(i, 0.3) for i in range(4)] == [True, False, False, False]
    assert [thresholds.extends(i, 0.2) for i in range(4)] == [True, False, False, False]
    assert thresholds.keeps(0, 0.2)
    assert thresholds.extends(1, 0.3)
    assert NO_THRESHOLDS.keeps(3, 0.0)
    assert NO_THRESHOLDS.extends(3, 0.0)


def test_floors_of_a_draft_that_has_begun():
    thresholds = Thresholds((0.2, 0.4, 0.6), (0.1, 0.3, 0.5))
    assert thresholds.behind(1, 0.5) == Thresholds((0.8, 1.2), (0.6, 1.0))
    assert thresholds.behind(9, 0.5) == Thresholds((1.2,), (1.0,))
    assert NO_THRESHOLDS.behind(2, 0.5) == NO_THRESHOLDS
    assert not thresholds.behind(0, 0.0).keeps(0, 1.0)
