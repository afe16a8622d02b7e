"""Constrained answers, enumerated: the law is that of the target with what is not allowed masked.

The law is computed without edgespec: the languages are lists of texts.
"""

import itertools
from collections import defaultdict

import pytest

from edgespec import SamplingParams, ToyModel
from edgespec.decoding.constraints import Constraints
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.forced import ForcedBranches
from edgespec.drafters.merged import combined
from edgespec.drafters.model_tree import ModelTreeDrafter, TreeOptions
from edgespec.drafters.suffix import SuffixBranches
from edgespec.drafters.trees import TreeDrafter
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.types import Stats
from edgespec.verifiers.local import LocalVerifier
from tests.helpers.enumeration import law, total_variation
from tests.lossless import test_session as loop

pytest.importorskip("llguidance")

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
    sources = {"forced": ForcedBranches(), "suffix": SuffixBranches(1)}
    if kind == "forced":
        del sources["suffix"]
    tree = TreeDrafter(sources, leaves)
    draft = ToyModel(loop.probs_of(2), vocab_size=3)
    if "tree" in kind:
        model = ModelTreeDrafter(draft, 3, TreeOptions(2, leaves), acceptance=acceptance)
    else:
        model = ModelDrafter(draft, 3, acceptance=acceptance)
    found = [tree] if kind.startswith("forced") else combined([tree], model)[1:2]
    drafters = [tree] if kind.startswith("forced") else [tree, model]
    target = ToyModel(loop.probs_of(1), vocab_size=3)
    return Session(LocalVerifier(target, acceptance), drafters, FixedDepth(depth), sources=found)


KINDS = [*loop.KINDS, "forced", "forced, suffix", "model, forced", "model tree, forced"]


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


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", ["none", *KINDS])
@pytest.mark.parametrize("acceptance", ["block", "rejection", "deterministic"])
def test_law_is_that_of_the_masked_target(kind, acceptance, language):
    given, texts = LANGUAGES[language]
    params = SamplingParams(temperature=1.0, max_tokens=N, **given)
    expected = masked_law(texts)
    assert abs(sum(expected.values()) - 1) <= 1e-12
    found = constrained_law(kind, params, acceptance=acceptance)
    assert total_variation(found, expected) <= 1e-12


@pytest.mark.parametrize("kind", ["forced, suffix", "model, forced", "model tree, forced"])
def test_law_of_deeper_drafts_and_other_settings(kind):
    given, texts = LANGUAGES["choices"]
    params = SamplingParams(temperature=0.7, max_tokens=N, **given)
    for options in ({"depth": 3}, {"depth": 4, "leaves": 1}):
        found = constrained_law(kind, params, **options)
        assert total_variation(found, masked_law(texts, 0.7)) <= 1e-12


def test_masking_only_the_first_row_of_a_draft_is_caught(monkeypatch):
    from edgespec.decoding.constraints import GrammarMatcher

    given, _ = LANGUAGES["choices"]
    params = SamplingParams(temperature=1.0, max_tokens=N, **given)
    mask = GrammarMatcher.mask
    monkeypatch.setattr(GrammarMatcher, "mask", lambda self, ahead=(): mask(self))
    with pytest.raises(Exception, match="do not follow"):
        constrained_law("forced, suffix", params)


def test_coupled_text_is_a_function_of_noise_alone():
    grid = [*itertools.permutations([0.2, 0.9, 1.7]), (0.5, 0.6, 0.7)]
    for given, _ in LANGUAGES.values():
        params = SamplingParams(temperature=1.0, max_tokens=3, **given)
        plain = session("none")
        others = [session(kind, "coupled", depth=d) for kind in KINDS for d in (1, 3)]
        for noise in itertools.product(grid[::2], repeat=3):
            chance = loop.GridNoise([*noise, *noise])
            expected = answer(plain, chance, params)
            assert all(answer(made, chance, params) == expected for made in others)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_equals_plain(kind):
    for given, texts in LANGUAGES.values():
        params = SamplingParams(max_tokens=12, **given)
        plain = answer(session("none"), None, params)
        assert answer(session(kind, depth=3), None, params) == plain
        assert plain[1] in texts or len(plain[0]) == 12
