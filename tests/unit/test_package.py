"""The package as a whole."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import edgespec
from edgespec import ConfigError, SamplingParams, SpeculativeConfig
from edgespec.config import EngineConfig, build


def test_all_is_sorted_and_real():
    assert edgespec.__all__ == sorted(edgespec.__all__)
    assert all(hasattr(edgespec, name) for name in edgespec.__all__)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each name needs a process of its own")
def test_each_name_is_found_first():
    """A name is not found only because another one has imported its module."""
    code = """if True:
        import edgespec, os, sys
        for name in edgespec.__all__:
            if not (child := os.fork()):
                hasattr(edgespec, name) or os._exit(1)
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                sys.exit(f"edgespec.{name} is not found")
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_brings_no_engine_and_no_terminal():
    code = (
        "import sys, json, edgespec; print(json.dumps([m for m in "
        "('llama_cpp', 'onnxruntime', 'huggingface_hub', 'jinja2', 'click', 'rich', 'torch') "
        "if m in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def test_aliases_and_unknown_keys():
    assert build(SpeculativeConfig, {"num_assistant_tokens": 7}).num_speculative_tokens == 7
    assert build(SpeculativeConfig, {"assistant_confidence_threshold": 0.2}).draft_p_min == 0.2
    with pytest.raises(ConfigError, match="given twice"):
        build(SpeculativeConfig, {"num_assistant_tokens": 7, "num_speculative_tokens": 7})
    with pytest.raises(ConfigError, match="unknown option 'fish'"):
        build(EngineConfig, {"fish": 1})


@pytest.mark.parametrize("options", [
    {"temperature": -1}, {"temperature": float("nan")}, {"temperature": float("inf")},
    {"top_k": -2}, {"top_p": -0.1}, {"top_p": 2}, {"min_p": 1.1}, {"repetition_penalty": 0},
    {"seed": -1}, {"max_tokens": 0}, {"stop": [""]}, {"logprobs": 101},
    {"time_limit_s": float("nan")}, {"num_draft_tokens": -1}, {"temperature": "warm"},
])  # fmt: skip
def test_impossible_sampling(options):
    with pytest.raises(ConfigError):
        SamplingParams(**options)


@pytest.mark.parametrize("options", [
    {"method": 1}, {"options": 1}, {"acceptance": 1}, {"num_speculative_tokens": 99},
    {"draft_p_min": 2}, {"prompt_lookup_min": 0}, {"draft_window": -1}, {"draft_window": 0.5},
    {"remember": "me"}, {"draft_memory": "long"},
])  # fmt: skip
def test_impossible_speculation(options):
    with pytest.raises(ConfigError):
        SpeculativeConfig(**options)


@pytest.mark.parametrize("options", [
    {"n_ctx": -1}, {"type_k": "q9"}, {"flash_attn": "maybe"}, {"on_busy": "cry"}, {"n_batch": 1},
    {"n_gpu_layers": -2}, {"max_cores": -1}, {"max_cores": 1.5}, {"prio": "urgent"},
])  # fmt: skip
def test_impossible_engines(options):
    with pytest.raises(ConfigError):
        EngineConfig(**options)


def test_values_that_turn_a_setting_off():
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0) == SamplingParams()
    assert SamplingParams(temperature=0.7, top_p=0) == SamplingParams()


def test_one_stop_string_may_be_bare():
    assert SamplingParams(stop="END").stop == ("END",)


def test_every_room_is_packaged():
    """A wheel holds the packages that pyproject.toml lists, and an editable install hides a gap."""
    root = Path(__file__).parents[2]
    text = (root / "pyproject.toml").read_text("utf-8")
    listed = re.search(r"^packages = \[(.*?)^\]", text, re.M | re.S)[1]
    found = root.glob("edgespec/**/__init__.py")
    there = {".".join(path.parent.relative_to(root).parts) for path in found}
    ours = {name for name in re.findall(r'"(.+?)"', listed) if name.split(".")[0] == "edgespec"}
    assert there == ours


def test_the_version_is_written_once():
    """Wheels take it from there, which .ci/packages.py checks."""
    root = Path(__file__).parents[2]
    assert 'version = { attr = "edgespec.__version__" }' in (root / "pyproject.toml").read_text()
    paths = [root / "pyproject.toml", *root.glob("edgespec/**/*.py"), *root.glob("cli/**/*.py")]
    written = [path for path in paths if f'"{edgespec.__version__}"' in path.read_text("utf-8")]
    assert written == [root / "edgespec" / "__init__.py"]


@pytest.mark.parametrize(("options", "threads"), [
    ({}, (4, 4)), ({"n_threads": 3}, (3, 3)), ({"n_threads": 3, "n_threads_batch": 8}, (3, 8)),
    ({"max_cores": 2}, (2, 2)), ({"max_cores": 2, "n_threads": 1, "n_threads_batch": 8}, (1, 2)),
    ({"max_cores": 16}, (4, 4)),
])  # fmt: skip
def test_threads_on_four_cores(options, threads):
    assert EngineConfig(**options).threads(4) == threads
