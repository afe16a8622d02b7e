"""Toy targets with the vocabulary of JSON, here and behind a server, and devices for them."""

from __future__ import annotations

import functools

import numpy as np

from edgespec import ToyModel, ToyTokenizer
from edgespec.config import RemoteConfig
from edgespec.decoding.session import Session
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.forced import ForcedDrafter
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.engine import Engine
from edgespec.policies.fixed import FixedDepth
from edgespec.server.verification.sessions import Sessions
from edgespec.server.verification.types import Limits
from edgespec.verifiers.local import LocalVerifier
from edgespec.verifiers.remote import RemoteVerifier
from tests.helpers.serving import Shared

LETTERS = [chr(i) for i in range(32, 127)]
WORDS = ['{"', '":', '","', "true", "false", "move", "turn", "_left", "_right", "  ", "10", "ab"]
END = len(LETTERS) + len(WORDS)
TOKENIZER = ToyTokenizer([*LETTERS, *WORDS, "</s>", "<extra>"], eog=[END])
N = TOKENIZER.vocab_size
ROWS = N + 5  # rows of the target are padded, those of draft models lack the last token
N_CTX = 400

SCHEMA = {
    "type": "object",
    "properties": {
        "action": {"enum": ["move_left", "turn_right", "stop"]},
        "distance": {"type": "integer", "minimum": 0, "maximum": 500},
        "sure": {"type": "boolean"},
        "why": {"type": "string", "maxLength": 6},
    },
    "required": ["action", "distance", "sure", "why"],
    "additionalProperties": False,
}
FORMS = {
    "schema": {"schema": SCHEMA},
    "regex": {"regex": "(move|turn)(_left|_right){1,3} [0-9]{2,20}ab*"},
    "choices": {"choices": ("move_left", "move_right 10", "ab", "true")},
    "grammar": {"grammar": 'root ::= "{\\"" ("move" | "turn")+ "ab" [0-9]+ "x"'},
}


@functools.cache
def probs_of(seed, n):
    """Return next-token probabilities that depend on the length and the last two tokens."""

    def probs(tokens):
        return row(len(tokens), *tokens[-2:])

    @functools.cache
    def row(*seen):
        rng = np.random.default_rng([seed, *seen])
        return rng.dirichlet(np.full(n, 0.3))

    return probs


def toy(seed=1, n=ROWS, **options):
    return ToyModel(probs_of(seed, n), vocab_size=n, n_ctx=N_CTX, **options)


def served(n=8, **limits):
    """Return sessions over toy models, not started yet."""
    model = Shared([toy() for _ in range(n)])
    model.max_leaves = 8
    return Sessions(model, TOKENIZER, name="toy", limits=Limits(**limits))


def engine(verifier, kind="none", draft_seed=1, depth=4):
    """Return an engine that drafts "chains", "trees" or "none", forced tokens among them. With
    draft_seed 1 the draft model guesses most of what the target says.
    """
    drafters = []
    if kind != "none":
        top_k = 3 if kind == "trees" else 1
        model = ModelDrafter(toy(draft_seed, N - 1), ROWS, top_k=top_k, acceptance="coupled")
        drafters = [ForcedDrafter(), SuffixDrafter(1), model]
    leaves = verifier.max_leaves if kind == "trees" else 1
    policy = FixedDepth(depth, max_leaves=leaves)
    return Engine([Session(verifier, drafters, policy)], TOKENIZER)


def local(kind="none"):
    """Return an engine whose target is in this process."""
    return engine(LocalVerifier(toy(), "coupled"), kind)


def device(url, kind="chains", draft_seed=1, timeout_s=5.0, **options):
    """Return an engine whose target is at `url`."""
    remote = RemoteConfig(url, timeout_s=timeout_s, **options)
    return engine(RemoteVerifier(remote, TOKENIZER), kind, draft_seed)
