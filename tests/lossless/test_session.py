"""The whole loop on the toy backend, enumerated: drafters, source choice, stopping."""

import itertools

import pytest

from edgespec import SamplingParams, ToyModel
from edgespec.decoding import drafting
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.policies.fixed import FixedDepth
from edgespec.policies.growth import Growth
from edgespec.sampling.base import Request
from edgespec.types import NO_DRAFT, Stats
from edgespec.verifiers.local import LocalVerifier
from tests.helpers.acceptance_rules import UNCOUPLED
from tests.helpers.enumeration import law, total_variation
from tests.helpers.selection import first, sample
from tests.helpers.toy_loops import (
    KINDS,
    PARAMS,
    TOKENIZER,
    GridNoise,
    loop_law,
    outcome,
    probs_of,
    session,
)  # fmt: skip


@pytest.mark.parametrize("params", PARAMS, ids=range(len(PARAMS)))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("acceptance", UNCOUPLED)
def test_law_equals_plain(kind, acceptance, params):
    plain = loop_law("none", params)
    assert abs(sum(plain.values()) - 1) <= 1e-12
    found = loop_law(kind, params, acceptance=acceptance)
    assert total_variation(found, plain) <= 1e-12


@pytest.mark.parametrize("acceptance", UNCOUPLED)
@pytest.mark.parametrize("options", first(4, [
    {"zeros": True}, {"truncate": False}, {"depth": 3}, {"window": 1}, {"p_min": 0.6},
    {"p_min": 0.6, "zeros": True}, {"window": 2, "truncate": False},
], "more settings"))  # fmt: skip
def test_law_in_harder_settings(acceptance, options):
    params = PARAMS[0]
    plain = loop_law("none", params, zeros=options.get("zeros", False))
    for kind in KINDS[1:]:
        found = loop_law(kind, params, acceptance=acceptance, **options)
        assert total_variation(found, plain) <= 1e-12


@pytest.mark.parametrize("kind", ["model", "tree, model"])
def test_a_draft_that_gets_too_short_is_kept_once_a_token_was_drawn(kind):
    """How short it gets depends on the drawn tokens: to drop it would prefer some of them."""
    params = SamplingParams(temperature=1.0, max_tokens=4, ignore_eos=True)
    found = loop_law(kind, params, at_least=2, p_min=0.6, depth=3)
    assert total_variation(found, loop_law("none", params)) <= 1e-12


def test_a_window_moves_within_these_answers():
    made = session("model", window=1)
    outcome(None, made, SamplingParams(max_tokens=3, ignore_eos=True))
    assert made._drafting.drafters[0]._start > 1


def test_coupled_text_is_a_function_of_noise_alone():
    """For every noise of a grid: the same text with any drafter, any depth, and with none."""
    params = SamplingParams(temperature=1.0, max_tokens=3)
    grid = [*itertools.permutations([0.2, 0.9, 1.7]), (0.5, 0.6, 0.7), (0.1, 2.0, 2.1)]
    plain = session("none")
    others = [session(k, "coupled", depth=d) for k in KINDS for d in (1, 3)]
    others += [session(k, "coupled", window=1) for k in ("model", "model tree", "head")]
    texts = set()
    for noise in sample(itertools.product(grid, repeat=3)):
        chance = GridNoise([*noise, *noise])
        expected = outcome(chance, plain, params)
        texts.add(expected)
        for made in others:
            assert outcome(chance, made, params) == expected
    assert len(texts) > 5


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_equals_plain(kind):
    for seed_text in itertools.product(range(2), repeat=4):
        prompt = list(seed_text)
        for params in (
            SamplingParams(max_tokens=12, ignore_eos=True),
            SamplingParams(max_tokens=12),
        ):
            texts = []
            for made in (session("none"), session(kind, depth=3)):
                output = Output(TOKENIZER, params)
                list(made.generate(Request(prompt, params, None), output, Stats()))
                texts.append((output.token_ids, output.finish_reason))
            assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "fours" in kind])
def test_some_of_these_loops_fill_rows(kind):
    stats = Stats()
    outcome(None, session(kind), SamplingParams(max_tokens=12, ignore_eos=True), stats)
    assert stats.num_filled_rows > 0
    assert stats.num_accepted_draft_tokens > 0


def test_a_growth_that_looks_at_drawn_tokens_is_caught(monkeypatch):
    class Peeking(Growth):
        def next(self, result=None):
            wish = super().next(result)
            if wish is None and self.draft.tokens[:1] == (0,):
                self.draft = NO_DRAFT
            return wish

    monkeypatch.setattr(drafting, "Growth", Peeking)
    params = PARAMS[0]
    target = ToyModel(probs_of(1), vocab_size=3)
    model = ModelDrafter(ToyModel(probs_of(2), vocab_size=3), 3)
    made = Session(LocalVerifier(target), [model], FixedDepth(2))
    found = law(lambda chance: outcome(chance, made, params))
    assert total_variation(found, loop_law("none", params)) > 1e-3
