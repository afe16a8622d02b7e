"""The promises of drafters, run against each of them on the toy backend."""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edgespec import EngineConfig, SamplingParams, SpeculativeConfig, ToyModel, drafters
from edgespec.drafters.base import DrafterContext
from edgespec.drafters.cascade import Cascade
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.model_tree import ModelTreeDrafter, TreeOptions
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import Verified

PROMPT = [0, 1, 2, 0, 1, 2, 0]


def toy(n_ctx=64, truncate=True):
    table = np.full((3, 3), 0.1)
    table[np.arange(3), (np.arange(3) + 1) % 3] = 0.8
    return ToyModel(table, n_ctx=n_ctx, truncate=truncate)


class Joined(Cascade):
    """A cascade that tells its drafters what a session would tell them."""

    def __init__(self, first, second):
        super().__init__(first, second)
        self._drafters = [first, second]

    def begin(self, request):
        for drafter in self._drafters:
            drafter.begin(request)

    def accept(self, verified):
        for drafter in self._drafters:
            drafter.accept(verified)

    def close(self):
        for drafter in self._drafters:
            drafter.close()


def table():
    """Return the toy's probabilities in an ONNX graph."""
    onnx_models = pytest.importorskip("tests.helpers.onnx_models")
    from edgespec.backends.onnx import OnnxModel

    probs = np.full((3, 3), 0.1)
    probs[np.arange(3), (np.arange(3) + 1) % 3] = 0.8
    with tempfile.TemporaryDirectory() as folder:
        path = onnx_models.save(Path(folder), onnx_models.table(probs))
        return OnnxModel(path, EngineConfig(n_ctx=64, n_threads=1))


MAKERS = {
    "suffix": lambda: SuffixDrafter(1),
    "model": lambda: ModelDrafter(toy(), 3),
    "model, coupled": lambda: ModelDrafter(toy(), 3, acceptance="coupled"),
    "model, deterministic": lambda: ModelDrafter(toy(), 3, acceptance="deterministic"),
    "model without truncation": lambda: ModelDrafter(toy(truncate=False), 3),
    "model of a short context": lambda: ModelDrafter(toy(n_ctx=8), 3),
    "model tree": lambda: ModelTreeDrafter(toy(), 3, TreeOptions(2, 8)),
    "model tree, coupled": lambda: ModelTreeDrafter(
        toy(), 3, TreeOptions(3, 8), acceptance="coupled"
    ),
    "model tree without truncation": lambda: ModelTreeDrafter(
        toy(truncate=False), 3, TreeOptions(2, 8)
    ),
    "model tree, then suffix": lambda: Joined(
        ModelTreeDrafter(toy(), 3, TreeOptions(2, 8)), SuffixDrafter(1)
    ),
    "onnx": lambda: ModelDrafter(table(), 3),
    "onnx, coupled": lambda: ModelDrafter(table(), 3, acceptance="coupled"),
    "model, then suffix": lambda: Joined(ModelDrafter(toy(), 3), SuffixDrafter(1)),
    "suffix, then model": lambda: Joined(SuffixDrafter(1), ModelDrafter(toy(), 3)),
}


def registered(name):
    """Return the drafter that a configuration gets by this name."""
    config = SpeculativeConfig(name)
    return drafters.make([drafters.entry(name)], DrafterContext(config, 3, toy(), None, toy()))[0]


MAKERS |= {f"registered as {name}": partial(registered, name) for name in drafters.names()}


@pytest.fixture(params=MAKERS)
def drafter(request):
    made = MAKERS[request.param]()
    yield made
    made.close()


def begin(drafter, prompt=PROMPT, **params):
    request = Request(prompt, SamplingParams(**params), SeededRandomness(1))
    drafter.begin(request)
    return list(prompt)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_respects_the_limit(drafter, temperature):
    context = begin(drafter, temperature=temperature)
    for limit in (1, 2, 4):
        estimate = drafter.estimate(context, limit)
        draft = drafter.propose(context, limit)
        assert len(draft.tokens) <= limit
        assert len(estimate.acceptance_probs) <= limit
        assert all(0 <= t < 3 for t in draft.tokens)
        assert draft.probs is None or len(draft.probs) == len(draft.tokens)
        drafter.accept(Verified((1,)))
        context.append(1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_acceptance_is_a_falling_probability(drafter, temperature):
    context = begin(drafter, temperature=temperature)
    probs = drafter.estimate(context, 5).acceptance_probs
    assert all(0 <= p <= 1 for p in probs)
    assert list(probs) == sorted(probs, reverse=True)


def test_probs_are_what_was_drawn_from(drafter):
    context = begin(drafter, temperature=0.7, top_k=2)
    drafter.estimate(context, 3)
    draft = drafter.propose(context, 3)
    for token, q in zip(draft.tokens, draft.probs or (), strict=draft.probs is not None):
        assert q.prob(token) > 0
        assert len(q.ids) <= 2
        assert sum(q.probs) == pytest.approx(1)


def test_greedy_drafts_carry_no_probabilities(drafter):
    context = begin(drafter)
    drafter.estimate(context, 3)
    assert drafter.propose(context, 3).probs is None


def test_follows_rejections_and_full_acceptance(drafter):
    """Whatever is emitted, the next draft is the one a fresh drafter makes of the context."""
    context = begin(drafter)
    rng = np.random.default_rng(0)
    for _ in range(12):
        drafter.estimate(context, 3)
        draft = drafter.propose(context, 3)
        n = int(rng.integers(len(draft.tokens) + 1))
        emitted = [*draft.tokens[:n], int(rng.integers(3))]
        drafter.accept(Verified(tuple(emitted)))
        context += emitted
        if isinstance(drafter, ModelDrafter) and drafter._model.n_ctx >= 64 and len(context) < 56:
            expected = [(context[-1] + i) % 3 for i in range(1, 4)]
            assert list(drafter.propose(context, 3).tokens) == expected


def test_a_new_request_forgets_the_old_one(drafter):
    begin(drafter)
    drafter.accept(Verified((2, 2, 2)))
    fresh = [2, 1, 2, 1, 2]
    begin(drafter, fresh)
    drafter.estimate(fresh, 2)
    again = drafter.propose(fresh, 2)
    begin(drafter, fresh)
    drafter.estimate(fresh, 2)
    assert drafter.propose(fresh, 2).tokens == again.tokens


def test_context_longer_than_the_drafts():
    drafter = ModelDrafter(toy(n_ctx=8), 3)
    context = begin(drafter, [0, 1, 2] * 10)
    for _ in range(20):
        draft = drafter.propose(context, 3)
        assert list(draft.tokens) == [(context[-1] + i) % 3 for i in (1, 2, 3)]
        emitted = [*draft.tokens[:2], (draft.tokens[1] + 1) % 3]
        drafter.accept(Verified(tuple(emitted)))
        context += emitted


def test_ids_that_the_draft_does_not_know():
    drafter = ModelDrafter(toy(), 5)
    context = begin(drafter, [0, 1, 4])
    assert drafter.propose(context, 3).tokens == ()


def test_larger_draft_vocabulary_is_cut():
    table = np.full((4, 4), 0.01)
    table[:, 3] = 0.9  # the likeliest token does not exist in the target
    drafter = ModelDrafter(ToyModel(table), 3)
    context = begin(drafter)
    assert 3 not in drafter.propose(context, 4).tokens


def test_stops_early_below_p_min():
    drafter = ModelDrafter(toy(), 3, p_min=0.9)
    context = begin(drafter, temperature=1.0)
    assert drafter.propose(context, 4).tokens == ()
    drafter = ModelDrafter(toy(), 3, p_min=0.7)
    context = begin(drafter, temperature=1.0)
    assert len(drafter.propose(context, 4).tokens) == 4


def test_bias_on_a_token_that_only_the_target_has():
    drafter = ModelDrafter(toy(), 5)
    context = begin(drafter, temperature=1.0, logit_bias={4: 2.0, 1: 50.0})
    assert drafter.propose(context, 1).tokens == (1,)
