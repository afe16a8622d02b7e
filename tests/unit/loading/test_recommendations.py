"""What files and the catalogue recommend for sampling: read, bounded, and taken by engines."""

import json
import logging
from pathlib import Path

import msgspec
import pytest

import edgespec
from edgespec import SamplingParams, hub
from edgespec.errors import ConfigError
from edgespec.hub import catalogue as catalogue_module
from edgespec.hub.catalogue import parse
from edgespec.loading import recommendations
from edgespec.loading.recommendations import LLAMA_CPP, defaults_of, published, remote_defaults
from tests.helpers import gguf_files, libllama
from tests.helpers.catalogue import TOML

llama_cpp = libllama.require()
KEY = "general__sampling__"
INT, FLOAT, STRING = gguf_files.INT32, gguf_files.FLOAT32, gguf_files.STRING


@pytest.fixture(autouse=True)
def as_it_is(monkeypatch):
    """Undo what tests/conftest.py does."""
    monkeypatch.setattr(recommendations, "defaults_of", defaults_of)
    monkeypatch.setattr(recommendations, "remote_defaults", remote_defaults)


@pytest.fixture
def catalogue(monkeypatch):
    """Let the catalogue recommend something for a model."""
    known = catalogue_module.load()
    told = msgspec.structs.replace(
        known["smollm2-135m"], sampling={"temperature": 0.2, "top_p": 0.9}
    )
    monkeypatch.setattr(catalogue_module, "load", lambda: known | {"smollm2-135m": told})


def gguf(folder, **keys):
    fields = {f"{KEY}{key}": field for key, field in keys.items()}
    return gguf_files.write(folder / "tiny.gguf", **fields)


def loaded(path, **options):
    with edgespec.load(path, None, n_ctx=64, **options) as engine:
        return engine.sampling


@pytest.mark.parametrize(("key", "field", "name", "value"), [
    ("temp", (FLOAT, 0.6), "temperature", 0.6),
    ("top_k", (INT, 20), "top_k", 20),
    ("top_p", (FLOAT, 0.95), "top_p", 0.95),
    ("min_p", (FLOAT, 0.1), "min_p", 0.1),
    ("penalty_repeat", (FLOAT, 1.1), "repetition_penalty", 1.1),
])  # fmt: skip
def test_each_key_of_a_gguf(tmp_path, key, field, name, value):
    sampling = loaded(gguf(tmp_path, **{key: field}))
    assert sampling.params({}) == SamplingParams(**{"temperature": 1.0, name: value})
    assert sampling.source == "published with the model"


def test_a_gguf_that_recommends_nothing(tmp_path):
    sampling = loaded(gguf(tmp_path))
    assert sampling.params({}) == SamplingParams(0.8, 40, 0.95, 0.05)
    assert str(sampling).endswith("(llama.cpp's defaults, as none are published)")
    assert loaded(gguf(tmp_path), sampling={"temperature": 0}).params({}) == SamplingParams()
    with pytest.raises(ConfigError, match="sampling is made of temperature, top_k"):
        loaded(gguf(tmp_path), sampling={"max_tokens": 3})


def test_penalties_that_look_back_at_nothing_are_off(tmp_path):
    keys = {"temp": (FLOAT, 0.5), "penalty_repeat": (FLOAT, 1.1), "penalty_last_n": (INT, 0)}
    assert loaded(gguf(tmp_path, **keys)).params({}) == SamplingParams(0.5)
    keys["penalty_last_n"] = INT, 64
    assert loaded(gguf(tmp_path, **keys)).params({}).repetition_penalty == 1.1


@pytest.mark.parametrize(("key", "field"), [
    ("temp", (FLOAT, float("nan"))), ("temp", (FLOAT, float("inf"))), ("temp", (FLOAT, -1.0)),
    ("temp", (FLOAT, 1e30)), ("temp", (STRING, b"warm")), ("temp", (STRING, b"9" * 5000)),
    ("temp", (gguf_files.BOOL, True)),
    ("top_k", (INT, -2)), ("top_k", (gguf_files.UINT64, 2**63)), ("top_k", (FLOAT, 0.5)),
    ("top_p", (FLOAT, -0.5)), ("top_p", (FLOAT, 1.5)), ("min_p", (FLOAT, -0.1)),
    ("penalty_repeat", (FLOAT, 0.0)), ("penalty_repeat", (FLOAT, 1e9)), ("mirostat", (INT, 2)),
    ("xtc_probability", (FLOAT, 0.5)),
])  # fmt: skip
def test_what_is_hostile_or_not_done_here_is_left_out_with_one_line(tmp_path, caplog, key, field):
    good = {"min_p": (FLOAT, 0.25)} if key != "min_p" else {"top_p": (FLOAT, 0.25)}
    with caplog.at_level(logging.WARNING, "edgespec.loading"):
        sampling = loaded(gguf(tmp_path, **good, **{key: field}))
    name = {"min_p": "top_p"}.get(key, "min_p")
    assert sampling.params({}) == SamplingParams(**{"temperature": 1.0, name: 0.25})
    (line,) = [r.getMessage() for r in caplog.records if "sampling" in r.getMessage()]
    assert line.startswith("tiny.gguf recommends sampling that is not used: ")
    assert len(line) < 200


def test_only_hostile_values_are_none(tmp_path):
    assert loaded(gguf(tmp_path, temp=(FLOAT, -1.0))) == LLAMA_CPP


@pytest.mark.parametrize(("config", "expected"), [
    ({}, None),
    ({"eos_token_id": [1, 2], "max_new_tokens": 2048, "transformers_version": "4"}, None),
    ({"do_sample": True}, None),
    ({"do_sample": False}, SamplingParams()),
    ({"do_sample": False, "temperature": 0.7, "repetition_penalty": 1.1}, SamplingParams()),
    ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, SamplingParams(0.6, top_p=0.9)),
    ({"temperature": 0.6, "top_k": 20, "max_new_tokens": 9}, SamplingParams(0.6, 20)),
    ({"do_sample": True, "top_k": 64, "top_p": 0.95}, SamplingParams(1.0, 64, 0.95)),
    ({"temperature": None, "top_k": 20, "min_p": 0.1}, SamplingParams(1.0, 20, min_p=0.1)),
    ({"temperature": 0.0, "repetition_penalty": 1.2}, SamplingParams()),
    ({"do_sample": "no", "temperature": [0.5], "top_k": "20", "top_p": True}, None),
    ({"temperature": 10**400, "top_k": {"a": 1}, "do_sample": 7, "num_beams": []}, None),
])  # fmt: skip
def test_generation_config(config, expected):
    found = published(json.loads(json.dumps(config)), "model.onnx")
    params = None if found is None else recommendations.SamplingDefaults(found).params({})
    assert params == expected


def test_generation_config_beside_a_graph(tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from tests.helpers import onnx_models

    graph = onnx_models.save(tmp_path / "letters")
    assert loaded(graph).params({}) == SamplingParams(0.8, 40, 0.95, 0.05)
    for config, expected in (
        ({"do_sample": True, "temperature": 0.6, "max_new_tokens": 1}, SamplingParams(0.6)),
        ({"do_sample": False, "top_k": 5}, SamplingParams()),
    ):
        (graph.parent / "generation_config.json").write_text(json.dumps(config))
        assert loaded(graph).params({}) == expected
    assert loaded(graph).params({"temperature": 0.5}) == SamplingParams(0.5, 5)


# --- the catalogue -------------------------------------------------------------------------------


def test_the_catalogue_speaks_for_files_that_do_not(tmp_path, catalogue):
    path = gguf(tmp_path).rename(tmp_path / hub.entry("smollm2-135m").file().filename)
    assert loaded(path).params({}) == SamplingParams(0.2, top_p=0.9)
    assert loaded(path).source == "from edgespec's catalogue"
    gguf(tmp_path, temp=(FLOAT, 0.5)).rename(path)
    assert loaded(path).params({}) == SamplingParams(0.5)


def test_entries_are_recognised_by_name_and_by_file():
    listed, other = Path(hub.entry("smollm2-135m").file().filename), Path("x.gguf")
    assert recommendations.entry_of("smollm2-135m:Q4_1", other).name == "smollm2-135m"
    assert recommendations.entry_of(listed, listed).name == "smollm2-135m"
    assert recommendations.entry_of(other, other) is None


def test_a_table_of_the_catalogue():
    table = "sampling = {temperature = 0.6, top_k = 20, top_p = 0.95}\n"
    assert parse(table + TOML, "x.toml").sampling == {
        "temperature": 0.6, "top_k": 20, "top_p": 0.95,
    }  # fmt: skip
    for wrong, says in (
        ("{temprature = 0.6}", "did you mean 'temperature'"),
        ("{top_p = 2}", "top_p must be between 0 and 1"),
        ("{temperature = 'warm'}", "sampling.* must be a .*number"),
        ("{top_k = 0.5}", "top_k must be a whole number"),
    ):
        with pytest.raises(ConfigError, match=f"x.toml.*{says}"):
            parse(f"sampling = {wrong}\n{TOML}", "x.toml")


# --- targets on other machines -------------------------------------------------------------------


@pytest.mark.parametrize(("url", "served", "expected"), [
    ("ws://big:1", "smollm2-135m", SamplingParams(0.2, top_p=0.9)),
    ("wss://big:1", "SmolLM2-135M.gguf", SamplingParams(0.2, top_p=0.9)),
    ("ws://big:1", "SmolLM2-135M-Instruct.Q4_1.gguf", SamplingParams(0.2, top_p=0.9)),
    ("ws://big:1", "somebodys-model", SamplingParams()),
    ("ws://big:1", "\0" * 9 + ":/..", SamplingParams()),
    ("ws://big:1", "", SamplingParams()),
    ("vllm+http://big:1", "smollm2-135m", SamplingParams()),
    ("sglang+https://big:1", "smollm2-135m", SamplingParams()),
])  # fmt: skip
def test_a_device_takes_what_it_knows_of_the_target(url, served, expected, catalogue):
    assert remote_defaults(url, served, None, None).params({}) == expected


def test_a_device_with_a_local_target_takes_what_that_publishes(tmp_path):
    def engine(path, **sampling):
        remote = edgespec.RemoteConfig("ws://127.0.0.1:9", local=path, timeout_s=0.1)
        options = {"n_ctx": 64, "speculative_config": {"method": "none"}}
        with edgespec.connect(remote, **options, **sampling) as there:
            return there.sampling.params({})

    publishing = gguf(tmp_path, temp=(FLOAT, 0.5))
    assert engine(publishing) == SamplingParams(0.5)
    assert engine(publishing, sampling={"temperature": 0}) == SamplingParams()
    assert engine(gguf(tmp_path)) == SamplingParams()


# --- seeds ---------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_text_with_and_without_speculation(tmp_path):
    path = gguf(tmp_path, temp=(FLOAT, 0.7), top_k=(INT, 20), penalty_repeat=(FLOAT, 1.05))
    config = {"method": "suffix", "num_speculative_tokens": 4, "draft_p_min": 0.0}
    asked = {"max_tokens": 40, "ignore_eos": True, "seed": 5}
    with edgespec.load(path, None, n_ctx=64, speculative_config=config) as engine:
        drafted = engine.generate("abababab", **asked)
        plain = engine.generate("abababab", **asked, disable_spec_decode=True)
        other = engine.generate("abababab", **asked | {"seed": 6})
    assert drafted.stats.num_draft_tokens
    assert drafted.token_ids == plain.token_ids != other.token_ids
