"""The rules that benchmarks/mutants.toml breaks are still in the code, each in one place."""

from pathlib import Path

import pytest

from benchmarks import mutants

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", mutants.load(), ids=lambda mutant: mutant.name)
def test_a_rule_can_be_broken(mutant):
    assert (ROOT / mutant.file).read_text("utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert [path for path in mutant.tests if not (ROOT / path).exists()] == []
