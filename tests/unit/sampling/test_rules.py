"""Acceptance rules by name: edgespec's own, and the how-to page's example."""

import re
from pathlib import Path

import pytest

from edgespec import ConfigError, ToyModel, ToyTokenizer, assemble
from edgespec.sampling import rules

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "write-an-acceptance-rule.md"
ROWS = [[0.5, 0.4, 0.1], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]]


def block(title):
    """Return the code block with that title on the page."""
    text = PAGE.read_text("utf-8")
    return re.search(rf'^```\w+ title="{title}"\n(.*?)^```$', text, re.M | re.S)[1]


@pytest.fixture
def registered():
    """Register the example, and forget it again."""
    exec(compile(block("own_draw.py"), "own_draw.py", "exec"), {"__name__": "own_draw"})
    yield
    rules.known.remove("own_draw")


def test_names():
    assert set(rules.names()) >= {"block", "coupled", "deterministic", "rejection"}
    with pytest.raises(ConfigError, match=r"unknown acceptance rule 'blok'; did you mean 'block'"):
        rules.rule_of("blok")


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("stop_below", [0.0, 0.6])
def test_the_test_of_the_page(registered, depth, stop_below):
    page = {"__name__": "test_own_draw"}
    exec(compile(block("test_own_draw.py"), "test_own_draw.py", "exec"), page)
    page["test_chains"](depth=depth, stop_below=stop_below)


def test_the_example_judges_drafts(registered):
    config = {
        "method": "draft_model", "acceptance": "own_draw", "num_speculative_tokens": 3,
        "draft_p_min": 0.0,
    }  # fmt: skip
    tokenizer = ToyTokenizer(["a", "b", "c"])
    with assemble(ToyModel(ROWS), tokenizer, ToyModel(ROWS), config) as engine:
        stats = engine.generate([0], max_tokens=60, temperature=1.0).stats
    assert 0 < stats.num_accepted_draft_tokens < stats.num_draft_tokens
