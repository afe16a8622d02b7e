"""Devices that draft trees, whose guesses are the toy target's own."""

import numpy as np

from edgespec.config import RemoteConfig
from edgespec.decoding.session import Session
from edgespec.drafters.base import Drafter
from edgespec.engine import Engine
from edgespec.policies.fixed import FixedDepth
from edgespec.verifiers.remote import RemoteVerifier
from tests.helpers.serving import TOKENIZER, probs_of


class Guesses(Drafter):
    """The three likeliest tokens after any text, the likeliest guessed last of the three."""

    name = "tree"

    def __init__(self, seed=1):
        self._probs, self._context = probs_of(seed), ()

    def begin(self, request, role):
        self._context = tuple(request.prompt)

    def accept(self, verified):
        self._context += verified.tokens

    def root(self):
        return self._context[-2:]

    def step(self, state, token):
        return (*state, token)[-2:]

    def children(self, state, least=0.0):
        best = np.argsort(self._probs(state))[-3:]
        return [(int(token), 0.3 - 0.02 * i) for i, token in enumerate(best)]


def branching(verifier, *, max_leaves=None, n=12, seed=1):
    """Return an engine that drafts trees of n nodes for a verifier."""
    policy = FixedDepth(n, max_leaves=max_leaves or verifier.max_leaves)
    return Engine([Session(verifier, [Guesses(seed)], policy)], TOKENIZER)


def tree_device(url, *, max_leaves=None, n=12, seed=1, **options):
    """Return an engine that drafts trees for the target at `url`."""
    verifier = RemoteVerifier(RemoteConfig(url, **({"timeout_s": 5.0} | options)), TOKENIZER)
    return branching(verifier, max_leaves=max_leaves, n=n, seed=seed)
