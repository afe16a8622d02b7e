"""Formats of a model beside each other: perplexity, agreement, and what is recommended."""

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import edgespec
from edgespec import EngineMissing, Format, ToyModel, hub
from edgespec.measure import tuning
from edgespec.measure.formats import compare, formats, read, recommend
from tests.helpers import libllama

onnx_models = pytest.importorskip("tests.helpers.onnx_models")
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)


def test_perplexity_is_the_tables():
    probs = np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    tokens = [0, 1, 1, 2, 0] * 20
    expected = np.exp(-np.mean([np.log(probs[a, b]) for a, b in itertools.pairwise(tokens)]))
    model = ToyModel(probs, n_ctx=128)
    perplexity, likeliest = read(model, tokens)
    assert perplexity == pytest.approx(expected, rel=1e-12)
    assert likeliest.tolist() == [int(probs[t].argmax()) for t in tokens[:-1]]
    assert model.n_past == 0


def form(quantisation, ms, perplexity, agreement=None):
    return Format(Path(f"{quantisation}.gguf"), quantisation, 1, ms, 2 * ms, perplexity, agreement)


@pytest.mark.parametrize(("found", "says"), [
    ([form("Q4", 50, 8.0), form("ONNX", 40, 8.1)], "ONNX: 1.2 times as fast as Q4, at .* 1.2%"),
    ([form("Q4", 50, 8.0), form("ONNX", 40, 9.0)], "ONNX where speed .*Q4 where.* 12% higher"),
    ([form("Q4", 50, 8.0), form("ONNX", 49, 8.1)], "Q4: its perplexity is the lowest"),
    ([form("Q4", 30, 8.0), form("ONNX", 31, 7.9)], "ONNX: its perplexity is the lowest"),
    ([form("Q4", 31, 8.0), form("F16", 90, 7.9), form("ONNX", 30, 7.95)], "ONNX: 3.0 times .* F16"),
])  # fmt: skip
def test_recommendation(found, says):
    assert re.match(says, recommend(found))


@pytest.fixture
def short(monkeypatch):
    """Shorten the text: the graphs of tests have a token for each letter."""
    monkeypatch.setattr(
        "edgespec.measure.formats.TEXT", "the quick brown fox jumps over the lazy dog"
    )


def test_agreement_needs_16_bit_weights(tmp_path, short):
    first = onnx_models.save(tmp_path / "a", seed=0)
    second = onnx_models.save(tmp_path / "b", seed=1)
    config = edgespec.EngineConfig(n_threads=1)
    without = compare([("Q4", first), ("ONNX-INT4", second)], config)
    assert [one.agreement for one in without] == [None, None]
    assert all(one.perplexity > 1 and one.ms > 0 for one in without)
    found = compare([("ONNX-INT4", second), ("F16", first)], config)
    assert found[1].agreement == 1.0
    assert found[0].agreement < 1
    assert found[0].to_dict()["file"] == "b/model.onnx"


def test_what_cannot_be_loaded_is_left_out(tmp_path, short):
    path = onnx_models.save(tmp_path / "a")
    said = []
    (tmp_path / "broken.onnx").write_text("hello")
    found = compare([("x", tmp_path / "broken.onnx"), ("y", path)], progress=said.append)
    assert [one.quantisation for one in found] == ["y"]
    assert any("left out" in line for line in said)


@pytest.mark.long("measures real weights in two formats")
def test_tune_compares_what_is_there_in_both_formats(tmp_path, monkeypatch, request):
    libllama.require()
    gguf = request.getfixturevalue("smollm2")
    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path))
    entry = hub.entry("smollm2-135m")
    (tmp_path / entry.files[0].filename).symlink_to(gguf)
    assert [name for name, _ in formats("smollm2-135m")] == ["Q4_1"]
    assert formats("./a.gguf") == []
    monkeypatch.setattr(onnx_models, "VOCAB", 49152)
    onnx_models.save(tmp_path / "smollm2-135m-onnx-int4")
    assert [name for name, _ in formats("smollm2-135m")] == ["Q4_1", "ONNX-INT4"]
    monkeypatch.setattr(tuning, "other_load", lambda *_: None)  # others may run the tests, too
    monkeypatch.setattr(tuning, "LoadMeter", lambda: SimpleNamespace(look=lambda: None))
    monkeypatch.setattr(tuning, "search", lambda *_, **__: [])
    found = edgespec.tune("smollm2-135m", None, budget_s=300)
    assert [one.quantisation for one in found.formats] == ["Q4_1", "ONNX-INT4"]
    assert found.formats[0].perplexity < 40 < found.formats[1].perplexity
    assert "Q4_1" in found.recommendation
    assert found.to_dict()["recommendation"] == found.recommendation
