"""The promises of drafters, run against each of them on the toy backend."""

import itertools
import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edgespec import EngineConfig, SamplingParams, SpeculativeConfig, ToyModel, drafters
from edgespec.backends.features import Features
from edgespec.drafters.base import NOT_DRAWN, NOWHERE, DrafterContext, Role
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.policies.base import Limits
from edgespec.policies.growth import Growth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import Budget, Verified

PROMPT = [0, 1, 2, 0, 1, 2, 0]


def toy(n_ctx=64, truncate=True):
    table = np.full((3, 3), 0.1)
    table[np.arange(3), (np.arange(3) + 1) % 3] = 0.8
    return ToyModel(table, n_ctx=n_ctx, truncate=truncate)


def table():
    """Return the toy's probabilities in an ONNX graph."""
    onnx_models = pytest.importorskip("tests.helpers.onnx_models")
    from edgespec.backends.onnx import OnnxModel

    probs = np.full((3, 3), 0.1)
    probs[np.arange(3), (np.arange(3) + 1) % 3] = 0.8
    with tempfile.TemporaryDirectory() as folder:
        path = onnx_models.save(Path(folder), onnx_models.table(probs))
        return OnnxModel(path, EngineConfig(n_ctx=64, n_threads=1))


def model(target_vocab=3, made=None, **options):
    return ModelDrafter(toy() if made is None else made, target_vocab, **options)


MAKERS = {
    "suffix": lambda: SuffixDrafter(1),
    "model": model,
    "model, coupled": lambda: model(acceptance="coupled"),
    "model, deterministic": lambda: model(acceptance="deterministic"),
    "model without truncation": lambda: model(made=toy(truncate=False)),
    "model of a short context": lambda: model(made=toy(n_ctx=8)),
    "model tree": lambda: model(top_k=2),
    "model tree, coupled": lambda: model(top_k=3, acceptance="coupled"),
    "model tree without truncation": lambda: model(made=toy(truncate=False), top_k=2),
    "onnx": lambda: model(made=table()),
    "onnx, coupled": lambda: model(made=table(), acceptance="coupled"),
}


def registered(name):
    """Return the drafter that a configuration gets by this name."""
    config = SpeculativeConfig(name)
    return drafters.make(
        [drafters.entry(name)], DrafterContext(config, 3, toy(), None, toy(), 8, Features())
    )[0]


MAKERS |= {f"registered as {name}": partial(registered, name) for name in drafters.names()}


@pytest.fixture(params=MAKERS)
def drafter(request):
    made = MAKERS[request.param]()
    yield made
    made.close()


def begin(drafter, prompt=PROMPT, role=Role.MATCHED, **params):
    request = Request(prompt, SamplingParams(**params), SeededRandomness(1))
    drafter.begin(request, role)
    return list(prompt)


def grow(drafter, context, limit=4, max_leaves=8):
    """Return the draft that grows from a drafter alone."""
    lookups, models = ([], [drafter]) if drafter.evaluates else ([drafter], [])
    limits = Limits(limit, p_min=0.0)
    growth = Growth(lookups, models, limits, Budget(limit, len(context), max_leaves=max_leaves))
    wish = growth.next()
    while wish:
        wish = growth.next(wish.do())
    return growth.draft


def guesses(drafter, state):
    """Return what may follow a state."""
    return drafter.expand([state])[0] if drafter.evaluates else drafter.children(state)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_respects_the_limit(drafter, temperature):
    context = begin(drafter, temperature=temperature)
    for limit in (1, 2, 4):
        draft = grow(drafter, context, limit)
        assert len(draft.tokens) <= limit
        assert all(0 <= t < 3 for t in draft.tokens)
        assert draft.probs is None or len(draft.probs) == len(draft.tokens)
        drafter.accept(Verified((1,)))
        context.append(1)


@pytest.mark.parametrize("role", [Role.MATCHED, Role.DRAWN])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_guesses_are_tokens_with_probabilities(drafter, temperature, role):
    """After every text of up to three tokens, some of which nobody guessed, twice the same."""
    begin(drafter, temperature=temperature, role=role)
    for length in range(4 if not drafter.evaluates else 1):
        for path in itertools.product(range(3), repeat=length):
            state = drafter.root()
            for token in path:
                state = state if state is NOWHERE else drafter.step(state, token)
            if state is NOWHERE:
                continue
            children = guesses(drafter, state)
            assert list(children) == list(guesses(drafter, state))
            assert all(t == NOT_DRAWN or 0 <= t < 3 for t, _ in children)
            assert all(0 <= p <= 1 for _, p in children)
            assert len({t for t, _ in children}) == len(children)
            assert len(children) == 1 or all(t != NOT_DRAWN for t, _ in children)


def test_a_model_says_what_its_work_is(drafter):
    if not drafter.evaluates:
        pytest.skip("it evaluates no model")
    context = begin(drafter)
    forecast = drafter.forecast()
    assert abs(sum(share for share, _ in forecast.histogram) - 1) < 1e-9
    assert all(0 <= p <= 1 for _, p in forecast.histogram)
    assert 0 <= forecast.rate <= 1
    before = drafter.work([drafter.root()])
    if before is None:  # its context is too short
        return
    assert before.n_tokens + before.n_cached <= len(context)
    assert before.n_tokens >= 1
    drafter.expand([drafter.root()])
    assert drafter.work([drafter.root()]).n_tokens == 0
    drafter.accept(Verified((1,)))
    assert drafter.work([drafter.root()]).n_tokens >= 1


def test_probs_are_what_was_drawn_from(drafter):
    context = begin(drafter, temperature=0.7, top_k=2)
    draft = grow(drafter, context, 3)
    for token, q in zip(draft.tokens, draft.probs or (), strict=draft.probs is not None):
        assert q.prob(token) > 0
        assert len(q.ids) <= 2
        assert sum(q.probs) == pytest.approx(1)


def test_greedy_drafts_carry_no_probabilities(drafter):
    assert grow(drafter, begin(drafter), 3).probs is None


def test_follows_rejections_and_full_acceptance(drafter):
    """Whatever is emitted, the next draft is the one a fresh drafter makes of the context."""
    context = begin(drafter)
    rng = np.random.default_rng(0)
    for _ in range(12):
        draft = grow(drafter, context, 3, max_leaves=1)
        n = int(rng.integers(len(draft.tokens) + 1))
        emitted = [*draft.tokens[:n], int(rng.integers(3))]
        drafter.accept(Verified(tuple(emitted), drafted=draft.tokens))
        context += emitted
        if isinstance(drafter, ModelDrafter) and drafter._model.n_ctx >= 64 and len(context) < 48:
            expected = [(context[-1] + i) % 3 for i in range(1, 4)]
            assert list(grow(drafter, context, 3, max_leaves=1).tokens) == expected


def test_a_new_request_forgets_the_old_one(drafter):
    begin(drafter)
    drafter.accept(Verified((2, 2, 2)))
    fresh = [2, 1, 2, 1, 2]
    begin(drafter, fresh)
    again = grow(drafter, fresh, 2)
    begin(drafter, fresh)
    assert grow(drafter, fresh, 2).tokens == again.tokens


def test_it_learns_and_goes_on_in_another_process(drafter):
    context = begin(drafter)
    for _ in range(4):
        draft = grow(drafter, context, 3)
        token = (context[-1] + 1) % 3
        drafter.accept(Verified((token,), drafted=draft.tokens))
        context.append(token)
    kept = json.loads(json.dumps(drafter.learned()))
    drafter.relearn(kept)
    assert json.loads(json.dumps(drafter.learned())) == kept
    drafter.relearn({"somebody else": 1})
    drafter.relearn_tokens(drafter.learned_tokens())


def test_context_longer_than_the_drafts():
    drafter = model(made=toy(n_ctx=8))
    context = begin(drafter, [0, 1, 2] * 10)
    for _ in range(20):
        draft = grow(drafter, context, 3)
        assert list(draft.tokens) == [(context[-1] + i) % 3 for i in (1, 2, 3)]
        emitted = [*draft.tokens[:2], (draft.tokens[1] + 1) % 3]
        drafter.accept(Verified(tuple(emitted)))
        context += emitted


def test_ids_that_the_draft_does_not_know():
    drafter = model(5)
    assert grow(drafter, begin(drafter, [0, 1, 4]), 3).tokens == ()


def test_larger_draft_vocabulary_is_cut():
    table = np.full((4, 4), 0.01)
    table[:, 3] = 0.9  # the likeliest token does not exist in the target
    drafter = model(made=ToyModel(table))
    assert 3 not in grow(drafter, begin(drafter), 4).tokens


def test_stops_early_below_p_min():
    drafter = model(p_min=0.9)
    assert grow(drafter, begin(drafter, temperature=1.0), 4).tokens == ()
    drafter = model(p_min=0.7)
    assert len(grow(drafter, begin(drafter, temperature=1.0), 4).tokens) == 4


def test_bias_on_a_token_that_only_the_target_has():
    drafter = model(5)
    context = begin(drafter, temperature=1.0, logit_bias={4: 2.0, 1: 50.0})
    assert grow(drafter, context, 1).tokens == (1,)
