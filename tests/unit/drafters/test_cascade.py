"""Sources joined: tokens, probabilities, and what each is told; thresholds."""

import pytest

from edgespec import SamplingParams, ToyModel, ToyTokenizer
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.cascade import Cascade
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.merged import combined
from edgespec.drafters.suffix import SuffixDrafter, assumed
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import (
    NO_THRESHOLDS,
    Distribution,
    Draft,
    DraftEstimate,
    Extension,
    Stats,
    Thresholds,
)
from edgespec.verifiers.local import LocalVerifier

HALF = Distribution([1, 2], [0.5, 0.5])
THIRD = Distribution([1, 3], [1 / 3, 2 / 3])


class Says:
    """Drafts what it is told to and notes what it is asked."""

    def __init__(self, name, draft=(), acceptance_prob=1.0, estimate=None):
        self.name, self.acceptance_prob, self.log = name, acceptance_prob, []
        self.draft = [(t, None) if isinstance(t, int) else t for t in draft]
        self.made = estimate or DraftEstimate(name)

    def begin(self, request):
        self.log.append(("begin", request))

    def estimate(self, context, limit):
        return self.made

    def propose(self, context, limit, thresholds=NO_THRESHOLDS):
        self.log.append((tuple(context), limit, thresholds))
        tokens = tuple(t for t, _ in self.draft[:limit])
        probs = tuple(q for _, q in self.draft[:limit])
        return Draft(tokens, self.name, probs if any(probs) else None, self.acceptance_prob)

    def accept(self, verified):
        self.log.append(("accept", verified.tokens))

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


@pytest.mark.parametrize(("head", "limit"), [
    ([], 4), ([4, 5], 2), ([4, 5], 1),
])  # fmt: skip
def test_the_second_is_not_asked_in_vain(head, limit):
    one, two = Says("one", head, 0.5), Says("two", [6])
    draft = Cascade(one, two).propose([7], limit)
    assert (draft.tokens, draft.source) == (tuple(head[:limit]), "one")
    assert two.log == []


def test_nothing_behind_it_is_the_first_ones_own():
    draft = Cascade(Says("one", [(1, HALF)], 0.5), Says("two")).propose([7], 4)
    assert draft == Draft((1,), "one", (HALF,), 0.5)


def test_estimates():
    extension = Extension(((1.0, 0.8),), 0.7, 0.1, lambda n_known: 3.0 + 0.1 * n_known)
    model = DraftEstimate("m", (0.8, 0.6), 0, extension)
    lookup = DraftEstimate("l", (0.9, 0.5, 0.4), n_known=3)
    one, two = Says("m", estimate=model), Says("l", estimate=lookup)
    expected = DraftEstimate("m+l", (0.8, 0.6), 0, extension)
    assert Cascade(one, two).estimate([1], 9) == expected
    expected = DraftEstimate("l+m", (0.9, 0.5, 0.4), 3, extension)
    assert Cascade(two, one).estimate([1], 9) == expected
    two.made = DraftEstimate("l", (0.9, 0.5, 0.1), n_known=3, depths=(1, 2, 1), streak=4)
    expected = two.made._replace(source="l+m", extension=extension)
    assert Cascade(two, one).estimate([1], 9) == expected
    assert expected.at_end(3) == 0.5
    found_ahead = DraftEstimate("m", (0.9, 0.8, 0.7, 0.6), 4, extension)
    one.made = found_ahead
    assert Cascade(one, two).estimate([1], 9) == found_ahead._replace(source="m+l")
    two.made = DraftEstimate("l")
    assert Cascade(two, one).estimate([1], 9) == DraftEstimate("l+m")


def test_each_drafter_is_told_once():
    lookup, model = Says("suffix"), Says("draft_model")
    request = Request([0], SamplingParams(max_tokens=1), SeededRandomness(1))
    made = combined([lookup], model)
    assert [source.name for source in made] == [
        "suffix", "draft_model+suffix", "suffix+draft_model",
    ]  # fmt: skip
    verifier = LocalVerifier(ToyModel([[0.0, 1.0], [0.0, 1.0]]))
    session = Session(verifier, [lookup, model], FixedDepth(2), sources=made)
    output = Output(ToyTokenizer(["a", "b"]), request.params)
    list(session.generate(request, output, Stats()))
    session.close()
    told = [("begin", request), ("accept", (1,)), "close"]
    assert lookup.log == model.log == told


def test_sources_of_one():
    lookup, model = Says("suffix"), Says("draft_model")
    assert combined([lookup], None) == [lookup]
    assert combined([], model) == [model]
    assert combined([], None) == []


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
    known, sure = (
        lookup.estimate(PROMPT, 3).acceptance_probs,
        0.91,
    )  # of the model's class, at first
    draft = Cascade(lookup, model).propose(PROMPT, 6, Thresholds((0.26,)))
    assert draft == Draft(
        (2, 3), "suffix", None, known[1], (9,)
    )  # 0.26 > sure * known[1] > known[2]
    draft = Cascade(lookup, model).propose(PROMPT, 6, Thresholds((0.22,)))
    assert draft == Draft((2, 3, 4), "suffix+draft_model", None, known[1] * sure, (1, 1))
    draft = Cascade(model, lookup).propose(PROMPT, 6, Thresholds((0.35,)))
    assert draft.tokens == (2, 3, 4, 0, 1)  # behind 4 the model is unsure, lookup knows
    assert draft.acceptance_prob == pytest.approx(
        sure**3 * assumed(5, 1, 1, 0.3) * assumed(6, 1, 1, 0.3)
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


def test_thresholds_beyond_their_ends():
    thresholds = Thresholds((0.2, 0.4), (0.1, 0.3))
    assert [thresholds.keeps(i, 0.3) for i in range(4)] == [True, False, False, False]
    assert [thresholds.extends(i, 0.2) for i in range(4)] == [True, False, False, False]
    assert thresholds.keeps(0, 0.2)
    assert thresholds.extends(1, 0.3)
    assert NO_THRESHOLDS.keeps(3, 0.0)
    assert NO_THRESHOLDS.extends(3, 0.0)


def test_thresholds_of_a_draft_that_has_begun():
    thresholds = Thresholds((0.2, 0.4, 0.6), (0.1, 0.3, 0.5))
    assert thresholds.after(1, 0.5) == Thresholds((0.8, 1.2), (0.6, 1.0))
    assert thresholds.after(9, 0.5) == Thresholds((1.2,), (1.0,))
    assert NO_THRESHOLDS.after(2, 0.5) == NO_THRESHOLDS
    assert not thresholds.after(0, 0.0).keeps(0, 1.0)
