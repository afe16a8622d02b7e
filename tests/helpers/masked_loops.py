"""Loops under a form on the toy backend, and the law of a masked target, computed without edgespec:
the languages are lists of texts.
"""

from __future__ import annotations

from collections import defaultdict

from edgespec.constraints.compiler import Constraints
from edgespec.decoding.output import Output
from edgespec.sampling.base import Request
from edgespec.types import Stats
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
    return law(lambda chance: answer(loop.session(kind, **options), chance, params))
