"""The whole loop with drafted trees on the toy backend, enumerated."""

import itertools

import numpy as np
import pytest

from edgespec import SamplingParams, ToyModel
from edgespec.decoding import drafting
from edgespec.decoding.session import Session
from edgespec.drafters.base import Drafter
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.sampling.sampler import Sampler
from edgespec.sampling.trees import path_to
from edgespec.types import Draft
from edgespec.verifiers.local import LocalVerifier
from tests.helpers.acceptance_rules import UNCOUPLED
from tests.helpers.enumeration import law, total_variation
from tests.helpers.toy_loops import PARAMS, outcome, probs_of

SHAPES = [(-1, -1), (-1, 0, -1), (-1, 0, 0, -1), (-1, -1, 1)]


class Trees(Drafter):
    """Drafts trees from a table; which shape, it decides from the row at the root. It takes the
    place of growth, which draws one token after each text at most.

    kind: "deterministic": the likeliest tokens of each row; "drawn": without replacement;
    "coupled": those whose clocks ring first.
    """

    name = "trees"

    def __init__(self, kind, next_probs):
        self._kind, self._next = kind, next_probs

    forbidden, reading_s = None, 0.0

    def begin(self, request, role):
        self._request, self._context = request, list(request.prompt)
        self._sampler = Sampler(request.params, request.prompt, 3)

    def grow(self, lookups, models, limits, budget, matcher):
        self.draft = self._drafted(self._context, limits.nodes)
        return self

    def next(self):
        return None

    def _drafted(self, context, limit):
        sure = max(self._next(context)) > 0.6  # the row, before anything is drawn
        shape = SHAPES[(len(context) + sure) % len(SHAPES)]
        tokens, parents, probs, places = [], [], [], {-1: -1}
        left = {}
        for node, parent in enumerate(shape):
            at = places.get(parent)
            if at is None or len(tokens) == limit:
                continue
            ahead = [tokens[i] for i in path_to(parents, at)]
            q = left.get(at) or self._distribution(context, ahead)
            if not len(q.ids):
                continue
            token = self._token(q, len(context) + len(ahead))
            places[node] = len(tokens)
            tokens.append(token)
            parents.append(at)
            probs.append(q)
            left[at] = without(q, token)
        drawn = tuple(probs) if self._kind == "drawn" else None
        return Draft(tuple(tokens), self.name, drawn, parents=tuple(parents))

    def _distribution(self, context, ahead):
        with np.errstate(divide="ignore"):
            row = np.log(np.asarray(self._next((*context, *ahead))))
        return self._sampler.distribution(row, ahead)

    def _token(self, q, position):
        if self._kind == "drawn":
            return self._request.randomness.draw(q)
        return int(q.ids[int(np.argmax(q.probs))])

    def accept(self, verified):
        self._sampler.accept(verified.tokens)
        self._context += verified.tokens


def without(q, token):
    """Return q without a token, normalised; without any ids if nothing is left."""
    kept = [(t, p) for t, p in zip(q.ids, q.probs, strict=True) if t != token and p > 0]
    total = sum(p for _, p in kept)
    return type(q)([t for t, _ in kept], [p / total for _, p in kept])


@pytest.fixture(autouse=True)
def grown(monkeypatch):
    """Let the trees of `Trees` be what is drafted."""

    def grow(lookups, *rest):
        (trees,) = lookups
        return trees.grow(lookups, *rest)

    monkeypatch.setattr(drafting, "Growth", grow)


def tree_session(kind, acceptance, zeros):
    drafter = Trees(kind, probs_of(2, zeros))
    target = ToyModel(probs_of(1, zeros), vocab_size=3)
    ticks = itertools.count()
    clock = lambda: 1e-3 * next(ticks)  # noqa: E731
    return Session(LocalVerifier(target, acceptance, clock), [drafter], FixedDepth(4), clock=clock)


def plain_session(zeros):
    target = ToyModel(probs_of(1, zeros), vocab_size=3)
    return Session(LocalVerifier(target), [], FixedDepth(0))


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("params", PARAMS, ids=range(len(PARAMS)))
@pytest.mark.parametrize(
    ("kind", "acceptance"),
    [("deterministic", "block"), *(("drawn", rule) for rule in UNCOUPLED)],
)
def test_law_equals_plain(kind, acceptance, params, zeros):
    plain = law(lambda chance: outcome(chance, plain_session(zeros), params))
    found = law(lambda chance: outcome(chance, tree_session(kind, acceptance, zeros), params))
    assert total_variation(found, plain) <= 1e-12


def test_greedy_text_equals_plain():
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    plain = outcome(None, plain_session(False), params)
    assert outcome(None, tree_session("deterministic", "block", False), params) == plain


def test_what_a_tree_has_evaluated_is_not_evaluated_again():
    table = np.full((3, 3), 0.01)
    table[np.arange(3), (np.arange(3) + 1) % 3] = 0.98  # 0 1 2 0 1 2 …
    verifier = LocalVerifier(ToyModel(table))
    params = SamplingParams(temperature=0.0)
    list(verifier.begin(Request([0], params, SeededRandomness(None))))
    verdict = verifier.verify(Draft((2, 1, 2), "test", parents=(-1, -1, 1)))
    assert (verdict.tokens, verdict.n_accepted) == ((1, 2, 0), 2)
    verifier.accept(verdict.tokens)
    assert verifier.verify(Draft()).n_evaluated == 1
