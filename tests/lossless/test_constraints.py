"""Constrained answers, enumerated: the law is the masked target's."""

import itertools

import pytest

from edgespec import SamplingParams
from tests.helpers import toy_loops as loop
from tests.helpers.acceptance_rules import UNCOUPLED
from tests.helpers.enumeration import total_variation
from tests.helpers.masked_loops import (
    KINDS,
    LANGUAGES,
    N,
    answer,
    constrained_law,
    masked_law,
)  # fmt: skip
from tests.helpers.selection import sample

pytest.importorskip("llguidance")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", ["none", *KINDS])
@pytest.mark.parametrize("acceptance", UNCOUPLED)
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
    from edgespec.constraints.matcher import GrammarMatcher

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
        plain = loop.session("none")
        others = [loop.session(kind, "coupled", depth=d) for kind in KINDS for d in (1, 3)]
        for noise in sample(itertools.product(grid[::2], repeat=3)):
            chance = loop.GridNoise([*noise, *noise])
            expected = answer(plain, chance, params)
            assert all(answer(made, chance, params) == expected for made in others)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_equals_plain(kind):
    for given, texts in LANGUAGES.values():
        params = SamplingParams(max_tokens=12, **given)
        plain = answer(loop.session("none"), None, params)
        assert answer(loop.session(kind, depth=3), None, params) == plain
        assert plain[1] in texts or len(plain[0]) == 12
