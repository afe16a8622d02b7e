"""Answers with reasoning and calls, enumerated: constraints that begin wherever their marker is."""

import pytest

from tests.helpers.acceptance_rules import UNCOUPLED
from tests.helpers.enumeration import total_variation
from tests.helpers.masked_loops import KINDS
from tests.helpers.selection import every
from tests.helpers.whole_answers import CASES, answers_law, masked_law

pytest.importorskip("llguidance")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "kind", ["none", "suffix", "model", "model tree", "forced, suffix", "model tree, forced"]
)
@pytest.mark.parametrize("acceptance", UNCOUPLED)
def test_law_is_that_of_the_masked_target(name, kind, acceptance):
    case = CASES[name]
    expected = masked_law(case)
    assert abs(sum(expected.values()) - 1) <= 1e-12
    found = answers_law(case, kind, acceptance=acceptance)
    assert total_variation(found, expected) <= 1e-12


@pytest.mark.parametrize("kind", every(3, KINDS, "deeper drafts of every source"))
def test_law_of_deeper_drafts(kind):
    for name in ("text and calls", "a budget of one token", "a form behind reasoning"):
        found = answers_law(CASES[name], kind, depth=4, leaves=2)
        assert total_variation(found, masked_law(CASES[name])) <= 1e-12
