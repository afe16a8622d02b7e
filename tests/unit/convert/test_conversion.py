"""Converting: what is asked of the tools, and what happens to what they make.

The tools themselves (torch and more) are not installed for tests: a small program stands in
for them and makes a graph that is known.
"""

import contextlib
import json
import stat
import sys
from pathlib import Path

import numpy as np
import pytest

import edgespec
from edgespec import ConfigError, ConversionError, EngineMissing, ModelNotFound, hub
from edgespec.convert.worker import find_head, keep_wanted_rows

onnx = pytest.importorskip("onnx")
onnx_models = pytest.importorskip("tests.helpers.onnx_models")
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
PROMPT = [3, 5, 7]


@pytest.fixture
def source(tmp_path):
    """Return a folder that looks like Hugging Face's."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"1234")
    return folder


@pytest.fixture
def made(tmp_path):
    """Return a folder as the tools make it: a graph, and what its source says."""
    path = onnx_models.save(tmp_path / "made")
    model = backend.OnnxModel(path, edgespec.EngineConfig(n_ctx=128))
    row = model.decode(PROMPT).logits[0]
    greedy, logits = [], []
    for _ in range(48):
        logits.append(row.copy())
        greedy.append(int(row.argmax()))
        row = model.decode(greedy[-1:]).logits[0]
    model.close()
    np.savez(path.parent / "reference.npz", prompt=PROMPT, greedy=greedy, logits=logits)
    return path.parent


def tools(tmp_path, body):
    """Return a program that stands in for the converter's Python."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, shutil, sys\njob = json.loads(sys.argv[-1])\n"
        "print(json.dumps({'step': 'building'}), flush=True)\nprint('native noise')\n" + body
    )
    path = tmp_path / "python"
    path.write_text(
        f'#!/bin/sh\ncase "$3" in *_inputs|*_outputs) exec {sys.executable} "$@";; '
        f'esac\nexec {sys.executable} {script} "$4"\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def copying(made):
    return f"shutil.copytree({str(made)!r}, job['folder'], dirs_exist_ok=True)\n"


def test_what_is_made_is_checked_and_noted(tmp_path, source, made):
    log = tmp_path / "job.json"
    body = copying(made) + f"open({str(log)!r}, 'w').write(json.dumps(job))\n"
    body += "print(json.dumps({'warning': 'beware'}))\n"
    steps = []
    out = tmp_path / "out"
    found = edgespec.convert(
        source, out, precision="int8", accuracy_level=1, hidden_states=[1, -1],
        builder_options={"block_size": "64"}, python=tools(tmp_path, body),
        progress=steps.append,
    )  # fmt: skip
    assert found.path == out
    assert (found.agreement, found.greedy_equal, found.n_greedy) == (1.0, 48, 48)
    assert found.divergence < 1e-6
    assert found.warnings == ("beware",)
    adding = ["adding outputs of hidden states", "adding attention_bias and position_ids"]
    assert steps == ["building", *adding, "checking the result against the source"]
    job = json.loads(log.read_text())
    assert job["precision"] == "int8"
    assert job["accuracy_level"] == 1
    assert job["builder_options"] == {"block_size": "64"}
    assert not (out / "reference.npz").exists()
    assert json.loads((out / "edgespec.json").read_text())["source"] == {"folder": "source"}
    info = edgespec.inspect(out)
    assert info.quantisation == "int8"
    assert info.engine["trees"] == "yes"
    with contextlib.closing(backend.OnnxModel(out / "model.onnx")) as model:
        model.tap((1, -1))
        assert model.decode(PROMPT).hidden.shape == (3, 2, onnx_models.WIDTH)
    assert sorted(p.name for p in tmp_path.iterdir() if "partial" in p.name) == []


def test_what_is_too_far_from_its_source_is_not_kept(tmp_path, source, made):
    known = dict(np.load(made / "reference.npz"))
    known["logits"] = np.random.default_rng(0).permutation(known["logits"].T).T
    known["greedy"] = known["logits"].argmax(1)
    np.savez(made / "reference.npz", **known)
    with pytest.raises(ConversionError, match=r"too far from its source.*higher precision"):
        edgespec.convert(source, tmp_path / "out", python=tools(tmp_path, copying(made)))
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


def test_a_tool_that_fails_says_why(tmp_path, source):
    body = "sys.exit('no such architecture: lorem')\n"
    with pytest.raises(ConversionError, match="building failed: no such architecture: lorem"):
        edgespec.convert(source, tmp_path / "out", python=tools(tmp_path, body))
    assert not (tmp_path / "out.partial").exists()


def test_refusals(tmp_path, source, monkeypatch):
    with pytest.raises(ConfigError, match="unknown precision 'int3'"):
        edgespec.convert(source, precision="int3")
    with pytest.raises(ConfigError, match="accuracy_level"):
        edgespec.convert(source, accuracy_level=7)
    with pytest.raises(ConfigError, match=r"numbers of layers from 0 on, .*got \(1, -2\)"):
        edgespec.convert(source, hidden_states=(1, -2))
    with pytest.raises(ConfigError, match="is there already"):
        edgespec.convert(source, tmp_path)
    with pytest.raises(ModelNotFound, match="no Hugging Face folder"):
        edgespec.convert(tmp_path, tmp_path / "out")
    with pytest.raises(ConfigError, match="ONNX graph already"):
        edgespec.convert(onnx_models.save(tmp_path / "graph"), tmp_path / "out")
    (tmp_path / "other.gguf").write_bytes(b"no such format")
    with pytest.raises(ConfigError, match=r"other.gguf is no GGUF"):
        edgespec.convert(tmp_path / "other.gguf", tmp_path / "out", offline=True)
    with pytest.raises(ConfigError, match="cannot be started"):
        edgespec.convert(source, tmp_path / "out", python=tmp_path / "absent")
    usage = type("Usage", (), {"free": 5})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(ConversionError, match="free some space"):
        edgespec.convert(source, tmp_path / "out")


def test_the_result_has_a_place_in_the_catalogue(monkeypatch, tmp_path):
    from edgespec.convert.conversion import default_folder

    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path))
    for source, given, name in (
        ("smollm2-135m", "x/SmolLM2.gguf", "smollm2-135m"),
        ("SmolLM2-135M:Q4_1", "x/SmolLM2.gguf", "smollm2-135m"),
        ("./some/file.v1.gguf", "./some/file.v1.gguf", "file.v1"),
        ("hf:org/repo/a-1.5B-q8.gguf", "/cache/a-1.5B-q8.gguf", "a-1.5B-q8"),
        ("./Qwen2.5-1.5B", "./Qwen2.5-1.5B", "Qwen2.5-1.5B"),
    ):
        assert default_folder(source, Path(given), "int4") == tmp_path / f"{name}-onnx-int4"
    assert hub.models_dir() == tmp_path


@pytest.mark.parametrize("shared", [True, False])
def test_rows_that_nobody_wants_are_not_computed(tmp_path, shared):
    path = onnx_models.save(tmp_path, shared=shared)
    before = backend.OnnxModel(path, edgespec.EngineConfig(n_ctx=64))
    assert keep_wanted_rows(path)
    after = backend.OnnxModel(path, edgespec.EngineConfig(n_ctx=64))
    assert ["num_logits_to_keep" in model.graph.inputs for model in (before, after)] == [
        False,
        True,
    ]
    tokens = list(range(2, 20))
    for n in (0, 1, 5, 18):
        rows = []
        for model in (before, after):
            model.truncate(0)
            rows.append(model.decode(tokens, n_logits=n).logits.copy())
        assert np.allclose(*rows, atol=1e-4)


def test_the_new_input_may_be_left_out(tmp_path):
    import onnxruntime as ort

    path = onnx_models.save(tmp_path)
    assert keep_wanted_rows(path)
    session = ort.InferenceSession(path)
    assert "num_logits_to_keep" not in [node.name for node in session.get_inputs()]
    given = {node.name: np.zeros((1, 2, 0, 16), np.float32) for node in session.get_inputs()}
    given["input_ids"] = np.array([[3, 5, 7]])
    given["attention_mask"] = np.ones((1, 3), np.int64)
    assert session.run(["logits"], given)[0].shape == (1, 3, onnx_models.VOCAB)


def test_a_head_that_is_not_known_is_left_alone(tmp_path):
    path = onnx_models.save(tmp_path, onnx_models.table(np.full((4, 4), 0.25)))
    content = path.read_bytes()
    assert find_head(onnx.load(path).graph) is None
    assert not keep_wanted_rows(path)
    assert path.read_bytes() == content
