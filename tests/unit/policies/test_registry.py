"""Policies by name: edgespec's own, and the how-to page's example in another package."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec import ConfigError, ToyModel, ToyTokenizer, assemble, policies
from edgespec.bench.replay import Replay, shipped_profiles, shipped_traces

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "write-a-policy.md"


def block(title):
    """Return the code block with that title on the page."""
    text = PAGE.read_text("utf-8")
    return re.search(rf'^```\w+ title="{title}"\n(.*?)^```$', text, re.M | re.S)[1]


@pytest.fixture
def registered():
    """Register the example in this process, and forget it again."""
    exec(compile(block("streak.py"), "streak.py", "exec"), {"__name__": "streak"})
    yield
    policies.known.remove("streak")


def answer(n_right, **config):
    """Return an answer of a toy model that counts, of which a draft model knows the beginning."""
    n = 16
    counts = [[float(j == (i + 1) % n) for j in range(n)] for i in range(n)]
    wrong = [row if i < n_right else counts[i - 2] for i, row in enumerate(counts)]
    tokenizer = ToyTokenizer([chr(ord("a") + i) for i in range(n)])
    config |= {"method": "draft_model", "policy": "streak"}
    with assemble(ToyModel(counts), tokenizer, ToyModel(wrong), config) as engine:
        return engine.generate([0], max_tokens=12)


def test_names():
    assert {"adaptive", "fixed"} <= set(policies.names())
    with pytest.raises(ConfigError, match="there is a policy 'auto' already, of edgespec"):
        policies.register("auto", "another one")(lambda context: None)


def test_the_example_drafts_one_token_and_then_two(registered):
    done = answer(16)
    assert done.text == "bcdefghijklm"
    # one drafted token of two, then two of three at a time, and a plain step for the last token
    assert done.stats.acceptance_histogram == [1, 1, 3]


def test_the_example_drafts_one_token_after_a_wrong_one(registered):
    done = answer(4)
    assert done.text == "bcdefghijklm"
    # b is right, then d and e, then nothing: two are drafted once more, and one at a time from then
    assert done.stats.drafted_per_position == [8, 2]


def test_options_of_the_example(registered):
    assert len(answer(16, options={"most": 4}).stats.acceptance_histogram) == 4 + 1
    with pytest.raises(ConfigError, match=r"unknown option 'mots'.*did you mean 'most'"):
        answer(16, options={"mots": 4})


def test_the_example_in_a_replay(registered):
    replay = Replay(shipped_profiles()["gpu-flat"], "suffix", policy="streak")
    trace = next(trace for trace in shipped_traces() if trace.category == "file_editing")
    stats = replay.run(trace)
    assert stats.num_accepted_draft_tokens > 0
    assert len(stats.drafted_per_position) == 2


def test_another_package_is_known_to_the_command_line_and_the_replay(tmp_path):
    (tmp_path / "streak.py").write_text(block("streak.py"), "utf-8")
    group, line = re.search(
        r'^\[project\.entry-points\."(.*?)"\]\n(\w+) = "streak"$', block("pyproject.toml"), re.M
    ).groups()
    info = tmp_path / "edgespec_streak-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: edgespec-streak\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{line} = streak\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "edgespec_cli", "bench", "replay", "--policy", "streak",
         "--spec-type", "suffix", "--profile", "gpu-flat-lookup", "--no-fixed", "--json"],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = map(json.loads, done.stdout.splitlines())
    speed = {(row["category"], row["policy"]): row["speedup"] for row in rows}
    assert speed["file_editing", "plain"] == 1
    assert speed["file_editing", "streak"] > 1.2


def test_an_unknown_policy():
    with pytest.raises(ConfigError, match=r"unknown policy 'adaptve'; did you mean 'adaptive'"):
        assemble(ToyModel([[1.0]]), ToyTokenizer("a"), None, {"policy": "adaptve"})
