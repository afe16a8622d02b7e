"""The verifier over a model in this process."""

import itertools
import types
from dataclasses import replace

import numpy as np
import pytest

from edgespec import SamplingParams, ToyModel
from edgespec.backends.base import FINAL
from edgespec.backends.features import Features
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import NO_DRAFT, Draft, Requires
from edgespec.verifiers.local import LocalVerifier


class Restricting(ToyModel):
    """Rows of which only some of the largest logits are fetched."""

    top = None

    def restrict(self, top):
        self.top = top


@pytest.mark.parametrize(("params", "options", "truncate", "top"), [
    ({}, {}, True, 8), ({}, {}, False, 1), ({}, {"drafts": False}, True, 1),
    ({"disable_spec_decode": True}, {}, True, 1), ({"logprobs": 1}, {}, True, 0),
    ({"temperature": 1.0, "top_k": 40}, {}, True, 40), ({"temperature": 1.0}, {}, True, 0),
])  # fmt: skip
def test_rows_hold_what_sources_of_trees_learn_from(params, options, truncate, top):
    model = Restricting(np.full((8, 8), 1 / 8), truncate=truncate)
    verifier = LocalVerifier(model, **options)
    list(verifier.begin(Request([1], SamplingParams(**params), SeededRandomness(None))))
    assert model.top == top


def test_a_constraint_needs_whole_rows_whatever_the_settings_say():
    model = Restricting(np.full((8, 8), 1 / 8))
    form = types.SimpleNamespace(matcher=lambda: None)
    request = Request([1], SamplingParams(), SeededRandomness(None), constraint=form)
    list(LocalVerifier(model).begin(request))
    assert model.top == 0


class Noting(ToyModel):
    """A model that notes which tokens were evaluated with hidden states. fewer: so many fewer at
    once go with final ones.
    """

    def __init__(self, fewer=1, **options):
        super().__init__(np.full((8, 8), 1 / 8), **options)
        self.tapped, self.fails_at = [], None
        self._fewer, self._most = fewer, self.capabilities.max_batch

    def tap(self, layers):
        super().tap(layers)
        most = self._most - self._fewer * (FINAL in layers)
        self.capabilities = replace(self.capabilities, max_batch=most)

    def decode(self, tokens, n_logits=1, abort=None):
        if self.fails_at is not None and self.n_past >= self.fails_at:
            raise MemoryError
        self.tapped += [bool(self._layers)] * len(tokens)
        return super().decode(tokens, n_logits, abort)


def with_head(layers=(FINAL,), n_states=0, fewer=1, **options):
    model = Noting(fewer, n_ctx=512, max_rows=4, max_batch=16)
    states = Features(**options)
    verifier = LocalVerifier(model, states=states)
    verifier.require(Requires(layers, n_states))
    return verifier, model, states


def ask(verifier, n, **params):
    """Return how many tokens of a prompt of `n` were done after each chunk."""
    request = Request([1] * n, SamplingParams(**params), SeededRandomness(None))
    done = list(verifier.begin(request))
    verifier.verify(NO_DRAFT)
    return done


@pytest.mark.parametrize(("layers", "options", "n", "n_tapped"), [
    ((FINAL,), {"n_states": 1}, 100, 1), ((FINAL,), {"n_states": 7}, 100, 7),
    ((FINAL,), {"most": 30}, 100, 30), ((FINAL,), {"most": 300}, 100, 100),
    ((FINAL,), {"n_states": 1}, 10, 10), ((1, FINAL), {"n_states": 1}, 100, 100),
    ((1, 3), {"most": 30}, 100, 100), ((FINAL,), {"n_states": 1, "fewer": 0}, 100, 100),
])  # fmt: skip
def test_only_what_a_head_reads_is_evaluated_with_final_states(layers, options, n, n_tapped):
    verifier, model, states = with_head(layers, **options)
    done = ask(verifier, n)
    assert model.tapped == [False] * (n - n_tapped) + [True] * n_tapped
    assert done == sorted(set(done))
    assert all(b - a <= 12 for a, b in itertools.pairwise(done))
    assert states.start <= max(n - n_tapped, n - states.most)
    assert states.end == n


def test_what_is_cached_needs_no_states_and_requests_without_drafts_none():
    verifier, model, states = with_head(n_states=1)
    ask(verifier, 100)
    model.tapped.clear()
    ask(verifier, 150)
    assert model.tapped == [False] * 49 + [True]
    model.tapped.clear()
    verifier.require(Requires())  # as a session does for a request without drafts
    ask(verifier, 200, num_draft_tokens=0)
    assert model.tapped == [False] * 50
    assert states.end <= 150


@pytest.mark.parametrize("fails_at", [0, 40, 96])
def test_a_prompt_that_fails_leaves_states_as_they_should_be(fails_at):
    verifier, model, states = with_head(n_states=3)
    model.fails_at = fails_at
    with pytest.raises(MemoryError):
        ask(verifier, 100)
    model.fails_at = None
    model.tapped.clear()
    ask(verifier, 100)
    assert model.tapped[-3:] == [True] * 3
    assert states.end == 100
    assert len(states.of(97, 100)) == 3


class Wide(ToyModel):
    """Notes how many tokens each evaluation has."""

    def __init__(self, **options):
        super().__init__(np.full((8, 8), 1 / 8), n_ctx=16, **options)
        self.widths = []

    def decode(self, tokens, n_logits=1, abort=None):
        self.widths.append(len(tokens))
        return super().decode(tokens, n_logits, abort)

    def decode_tree(self, tokens, parents, abort=None):
        self.widths.append(len(tokens))
        self.parents = tuple(parents)
        return super().decode_tree(tokens, parents, abort)


TREE = Draft((0, 0, 3), parents=(-1, 0, -1))


@pytest.mark.parametrize("draft", [Draft((0, 0)), Draft((3,)), TREE])
@pytest.mark.parametrize("n_filled", [0, 1, 3])
def test_filled_rows_change_nothing_but_the_evaluation(draft, n_filled):
    made = {}
    for n in (0, n_filled):
        verifier = made[n] = LocalVerifier(Wide())
        list(verifier.begin(Request([1], SamplingParams(), SeededRandomness(None))))
        verifier.accept(verifier.verify(NO_DRAFT).tokens)
        verdict = verifier.verify(draft._replace(n_filled=n))
        verifier.accept(verdict.tokens)
        assert verifier._model.widths[:2] == [1, 1 + len(draft.tokens) + n]
        assert (verdict.n_evaluated, verdict.n_filled) == (1 + len(draft.tokens) + n, n)
        assert len(verdict.drafted_rows) == len(draft.tokens)
        made[n] = verdict.tokens, verifier._context, verifier._cache.tokens, verifier._model.n_past
    assert made[0] == made[n_filled]


def test_filled_rows_follow_the_last_node_and_make_no_leaf():
    verifier = LocalVerifier(Wide())
    list(verifier.begin(Request([1], SamplingParams(), SeededRandomness(None))))
    verifier.verify(TREE._replace(n_filled=2))
    assert verifier._model.parents == (-1, 0, -1, 2, 3)


def test_rows_are_filled_within_the_context_and_not_while_a_prompt_is_read():
    verifier = LocalVerifier(Wide())
    list(verifier.begin(Request([1, 2], SamplingParams(), SeededRandomness(None))))
    verifier.accept(verifier.verify(Draft((0,), n_filled=2)).tokens)
    while len(verifier._context) < 12:
        verifier.accept(verifier.verify(NO_DRAFT).tokens)
    n = len(verifier._context)
    verifier.verify(Draft((0,), n_filled=9))
    assert verifier._model.widths[0] == 3
    assert n - 1 + verifier._model.widths[-1] == verifier.n_ctx
