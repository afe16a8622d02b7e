"""Drafters by name: this package's own, and the how-to page's example in another package."""

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from edgespec import (
    ConfigError,
    ToyModel,
    ToyTokenizer,
    assemble,
    drafters,
)
from edgespec.costs.curves import Curve
from edgespec.costs.profiles import Profile
from edgespec.drafters.suffix import SuffixDrafter

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "write-a-drafter.md"
FREE = Profile(Curve((1,), (1, 32), ((1.0, 1.0),)), overhead=0.0)


def block(title):
    """Return the code block with that title on the page."""
    return re.search(rf'^```\w+ title="{title}"\n(.*?)^```$', PAGE.read_text("utf-8"), re.M | re.S)[
        1
    ]


@pytest.fixture
def package(tmp_path):
    """Write the page's package as pip would install it; return an environment that has it."""
    (tmp_path / "bigram.py").write_text(block("bigram.py"), "utf-8")
    group, line = re.search(
        r'^\[project\.entry-points\."(.*?)"\]\n(\w+) = "bigram"$', block("pyproject.toml"), re.M
    ).groups()
    info = tmp_path / "edgespec_bigram-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: edgespec-bigram\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{line} = bigram\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}


def run(environment, *words):
    done = subprocess.run(
        [sys.executable, "-m", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def registered():
    """Register the example in this process, and forget it again."""
    drafters.names()  # edgespec's own are registered by now
    before = dict(drafters.known._entries)
    exec(compile(block("bigram.py"), "bigram.py", "exec"), {"__name__": "bigram"})
    yield
    drafters.known._entries.clear()
    drafters.known._entries.update(before)


def test_the_test_of_the_page(registered):
    page = {"__name__": "test_bigram"}
    exec(compile(block("test_bigram.py"), "test_bigram.py", "exec"), page)
    page["test_it_guesses_what_followed_and_the_text_stays_the_same"]()


def test_names():
    assert {"draft_model", "suffix"} <= set(drafters.names())
    assert drafters.entry("ngram") is drafters.entry("suffix")
    automatic = {"suffix", "forced", "memory", "recycling", "runner_ups", "draft_model"}
    assert {entry.name for entry in drafters.chosen("auto")} == automatic
    assert [entry.name for entry in drafters.chosen("draft_model, suffix")] == [
        "suffix", "draft_model",
    ]  # fmt: skip
    assert drafters.chosen("none") == []


@pytest.mark.parametrize("name", ["suffix", "ngram", "auto", "none"])
def test_a_name_that_is_taken(name):
    with pytest.raises(ConfigError, match=f"there is a drafter '{name}' already, of edgespec"):
        drafters.register(name, "another one")(lambda context: SuffixDrafter())


@pytest.mark.parametrize("name", ["my-drafter", "a,b", "Upper", ""])
def test_a_name_that_cannot_be_written(name):
    with pytest.raises(ConfigError, match=f"'{name}' cannot name a drafter"):
        drafters.register(name, "another one")(lambda context: SuffixDrafter())


@pytest.mark.parametrize("method", ["none,suffix", "suffix, auto"])
def test_methods_that_stand_alone(method):
    with pytest.raises(ConfigError, match="auto and none cannot be combined"):
        drafters.chosen(method)


def test_a_broken_package_is_left_out(package, tmp_path):
    (tmp_path / "bigram.py").write_text("import a_module_that_is_not_there\n")
    done = subprocess.run(
        [sys.executable, "-m", "edgespec_cli", "run", "--help"],
        env=package, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "suffix" in done.stdout
    assert "bigram" not in done.stdout
    script = "import edgespec; edgespec.drafters.names()"
    said = subprocess.run(
        [sys.executable, "-c", script], env=package, capture_output=True, text=True, check=True
    ).stderr
    assert "the drafter bigram of the package edgespec-bigram is left out" in said


def test_a_package_that_registers_nothing_is_told(package, tmp_path):
    (tmp_path / "bigram.py").write_text("def make(context): ...\n")
    script = "import edgespec; edgespec.drafters.names()"
    said = subprocess.run(
        [sys.executable, "-c", script], env=package, capture_output=True, text=True, check=True
    ).stderr
    assert "left out: ConfigError: bigram registers no drafter; put @edgespec.drafters.reg" in said


def test_a_file_that_registers_nothing_is_told(monkeypatch):
    forgotten = types.ModuleType("edgespec.drafters.trigram")
    forgotten.__file__ = "drafters/trigram.py"
    monkeypatch.setitem(sys.modules, forgotten.__name__, forgotten)
    with pytest.raises(ConfigError, match=r"trigram.py registers no drafter: put @register"):
        drafters.entry("trigram")


def test_another_package_is_known_to_the_command_line_and_the_replay(package):
    assert "bigram" in run(package, "edgespec_cli", "run", "--help")
    asked = ("--spec-type", "bigram", "--profile", "gpu-flat", "--no-fixed", "--json")
    rows = map(json.loads, run(package, "edgespec_cli", "bench", "replay", *asked).splitlines())
    found = {(row["category"], row["policy"]): row["speedup"] for row in rows}
    assert found["file_editing", "plain"] == 1
    assert found["file_editing", "bigram"] > 1.2


def test_the_example_drafts(registered):
    cycle = [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    texts = []
    for config in ("none", "bigram", "suffix,bigram"):
        with assemble(
            ToyModel(cycle),
            ToyTokenizer(["a", "b", "c"]),
            speculative_config={"method": config, "num_speculative_tokens": 3},
        ) as engine:
            done = engine.generate([0, 1, 2, 0, 1], max_tokens=40)
            texts.append(done.text)
            assert (config == "none") == (not done.stats.num_accepted_draft_tokens)
    assert texts == [texts[0]] * 3


def test_the_example_that_reads_hidden_states(registered):
    """It finds the place after which the text went on as it does now."""
    exec(compile(block("nearest.py"), "nearest.py", "exec"), {"__name__": "nearest"})
    texts, cycle = [], np.eye(7)[[1, 2, 3, 4, 5, 6, 0]]
    for method in ("none", "nearest"):
        config = {"method": method, "num_speculative_tokens": 3, "draft_p_min": 0.0}
        toy = ToyModel(cycle) if method == "none" else NoPositions(cycle)
        with assemble(toy, ToyTokenizer("abcdefg"), speculative_config=config) as engine:
            done = engine.generate([*range(7), *range(4)], max_tokens=12)
            texts.append(done.text)
    assert texts == ["efgabcdefgab"] * 2
    assert done.stats.num_accepted_draft_tokens == done.stats.num_draft_tokens > 4


class NoPositions(ToyModel):
    """A model whose states tell the token alone: those of equal tokens are equal."""

    def _states(self, positions, tokens):
        states = super()._states(positions, tokens)
        return None if states is None else states * np.array([0, 1, 1], np.float32)


def test_options_of_the_example(registered):
    for options, says in (
        ({"longst": 2}, "unknown option 'longst' of the drafters; did you mean 'longest'?"),
        ({"longest": 2}, None),
        ({"longest": "two"}, None),
    ):
        config = {"method": "bigram", "options": options}
        make = lambda config=config: assemble(  # noqa: E731
            ToyModel([[0.5, 0.5]] * 2), ToyTokenizer(["a", "b"]), None, config, profile=FREE
        )
        if says:
            with pytest.raises(ConfigError, match=re.escape(says)):
                make()
        else:
            make().close()


def test_options_reach_the_drafter(registered):
    config = {"method": "bigram", "num_speculative_tokens": 4, "options": {"longest": 1}}
    cycle = [[0.0, 1.0], [1.0, 0.0]]
    with assemble(ToyModel(cycle), ToyTokenizer(["a", "b"]), None, config) as engine:
        done = engine.generate([0, 1, 0, 1], max_tokens=20)
    assert len(done.stats.drafted_per_position) == 1


def test_what_a_drafter_says_about_its_settings_is_told_as_it_is():
    target = ToyModel([[0.5, 0.5]] * 2)
    with pytest.raises(ConfigError, match=r"^the method that was chosen needs a draft model"):
        assemble(target, ToyTokenizer("ab"), None, {"method": "draft_model"}, profile=FREE)


@pytest.mark.parametrize(("method", "options", "says"), [
    ("auto", {"top_k": 2}, "'top_k' is for draft models and heads, and none is loaded; name one"),
    ("suffix", {"top_k": 2}, "'top_k' is for draft models and heads, and none is loaded"),
    ("suffix", {"shape": 2}, "'shape': the drafters that are used (suffix) have no options"),
    ("none", {"shape": 2}, "the drafters that are used (none) have no options"),
])  # fmt: skip
def test_an_option_that_nothing_takes(method, options, says):
    entries = [entry for entry in drafters.chosen(method) if not entry.uses_model]
    with pytest.raises(ConfigError, match=re.escape(says)):
        drafters.check_options(options, entries)


def test_own_drafters_are_in_one_order_whichever_was_imported_first():
    code = (
        "import edgespec.drafters.suffix; from edgespec import drafters; "
        "print(*(entry.name for entry in drafters.known.own()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted(done.stdout.split())
    assert "memory" in done.stdout
