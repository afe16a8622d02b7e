"""Loops under a form on the toy backend, and the law of a masked target, computed without edgespec:
the languages are lists of texts.
"""

from __future__ import annotations

from collections import defaultdict

from edgespec import ToyModel
from edgespec.constraints.compiler import Constraints
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.forced import ForcedDrafter
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.types import Stats
from edgespec.verifiers.local import LocalVerifier
from tests.helpers import toy_loops as loop
from tests.helpers.enumeration import law

N = 4  # tokens of an answer
LETTERS, END = "ab", 2
LANGUAGES = {
    "choices": ({"choices": ("aab", "ab", "ba", "bbba")}, {"aab", "ab", "ba", "bbba"}),
    "forced to the end": ({"choices": ("abab",)}, {"abab"}),
    "a constraint that begins behind the first b": (
        {"regex": "a{0,2}b(ab|ba)"},
        {"a" * n + "b" + end for n in range(3) for end in ("ab", "ba")},
    ),
    "a grammar without an end": (
        {"grammar": 'start: "a" rest\nrest: "b" rest | "b"'},
        {"a" + "b" * n for n in range(1, 9)},
    ),
}
CONSTRAINTS = Constraints(loop.TOKENIZER)


def session(kind, acceptance="block", depth=2, leaves=8):
    """Return a loop with lookups and forced tokens, a draft model, or both."""
    if kind in loop.KINDS or kind == "none":
        return loop.session(kind, acceptance, depth=depth)
    lookups = [ForcedDrafter(), *([SuffixDrafter(1)] if "suffix" in kind else [])]
    top_k = 2 if "model tree" in kind else 1
    draft = ToyModel(loop.probs_of(2), vocab_size=3)
    models = [ModelDrafter(draft, 3, top_k=top_k, acceptance=acceptance)] if "model" in kind else []
    target = ToyModel(loop.probs_of(1), vocab_size=3)
    policy = (loop.AtTheEnd if "end" in kind else FixedDepth)(depth, max_leaves=leaves)
    return Session(LocalVerifier(target, acceptance), [*lookups, *models], policy)


KINDS = [
    *loop.KINDS, "forced", "forced, suffix", "model, forced, suffix", "model, forced, end",
    "model tree, forced, suffix", "model tree, forced, end",
]  # fmt: skip


def masked_law(language, temperature=1.0):
    """Return the law of answers of at most N tokens, by what may follow a text."""
    found = defaultdict(float)
    probs_of = loop.probs_of(1)

    def go(text, weight):
        ends = [END] if text in language else []
        begins = {word[: len(text) + 1] for word in language}
        follows = [i for i, letter in enumerate(LETTERS) if text + letter in begins]
        ids = [LETTERS.index(x) for x in text]
        probs = probs_of([*loop.PROMPT, *ids]) ** (1 / temperature)
        total = sum(probs[token] for token in [*follows, *ends])
        for token in [*follows, *ends]:
            share = weight * probs[token] / total
            if token == END or len(ids) + 1 == N:
                text_after = text if token == END else text + LETTERS[token]
                found[(*ids, token), text_after] += share
            else:
                go(text + LETTERS[token], share)

    go("", 1.0)
    return dict(found)


def answer(made, chance, params):
    output = Output(loop.TOKENIZER, params)
    constraint = CONSTRAINTS.of(params)
    request = Request(loop.PROMPT, params, chance, constraint=constraint)
    list(made.generate(request, output, Stats()))
    output.flush()
    return tuple(output.token_ids), output.text


def constrained_law(kind, params, **options):
    return law(lambda chance: answer(session(kind, **options), chance, params))
