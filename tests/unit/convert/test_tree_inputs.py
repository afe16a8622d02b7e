"""Graphs that are given the inputs of trees: chains as before, trees like their paths."""

import json
import random

import numpy as np
import pytest

import edgespec
from edgespec import ConfigError, ConversionError, EngineConfig, EngineMissing
from edgespec.convert.tree_inputs import add_tree_inputs
from tests.helpers.trees import differences

onnx = pytest.importorskip("onnx")
onnx_models = pytest.importorskip("tests.helpers.onnx_models")
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)


def opened(path):
    return backend.OnnxModel(path, EngineConfig(n_ctx=256, n_threads=1))


def rows_of(model):
    """Return rows of chains of several lengths, past a window too."""
    rows = []
    for n in (20, 1, 2, 7, 1):
        tokens = [(5 * i + n) % 28 + 2 for i in range(n)]
        rows.append(model.decode(tokens, n_logits=n).logits.copy())
    return np.concatenate(rows)


@pytest.mark.parametrize("options", [
    {}, {"keep": True}, {"half": True}, {"window": 8}, {"window": 8, "half": True},
])  # fmt: skip
def test_chains_are_as_before_and_trees_like_their_paths(tmp_path, options):
    path = onnx_models.save(tmp_path, **options)
    config = {"max_position_embeddings": 512, "sliding_window": options.get("window")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    rounding = 0.2 if "half" in options else 1e-3  # logits spread by 20 to 30
    before = opened(path)
    assert before.placement["trees"].startswith("no: the graph takes no attention_bias")
    assert before.capabilities.max_leaves == 1
    assert add_tree_inputs(path, path) == ""
    model = opened(path)
    assert model.placement["trees"] == "yes"
    assert model.capabilities.max_leaves == 31
    assert max(differences(model, random.Random(0), 30)) < rounding  # the first without a past
    model.truncate(0)
    assert np.allclose(rows_of(before), rows_of(model), atol=rounding)
    assert max(differences(model, random.Random(0), 30)) < rounding
    model.truncate(0)
    before.truncate(0)
    assert np.allclose(rows_of(before), rows_of(model), atol=rounding)


def copies(outputs):
    return outputs._make(None if array is None else array.copy() for array in outputs)


def assert_same_end(found, expected, n):
    """Hidden states are of the n tokens of the call, not of those read again before them."""
    if expected.hidden is None:
        assert found.hidden is None
        return
    assert len(found.hidden) == n
    assert np.allclose(found.hidden, expected.hidden[-n:], atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"keep": True}, {"hidden_states": (1, -1)}])
def test_paths_that_cannot_be_moved_are_read_again(tmp_path, monkeypatch, options):
    """On other devices rows of the cache stay where they are."""

    def gather(cache, n_past, positions):
        pairs = enumerate(positions, n_past)
        return next((i - n_past for i, at in pairs if i != at), len(positions))

    monkeypatch.setattr(backend.cache.SharedCache, "gather", gather)
    path = onnx_models.save(tmp_path, **options)
    add_tree_inputs(path, path)
    model = opened(path)
    assert model.placement["trees"] == "yes"
    assert max(differences(model, random.Random(0), 30)) < 1e-3
    model.tap(options.get("hidden_states", ()))
    model.truncate(0)
    model.decode_tree([3, 5, 7, 9], (-1, -1, 1))
    model.keep((1, 2))
    assert model.n_past == model.checkpoint() == 3
    model.truncate(2)
    long = [2 + i % 28 for i in range(model.capabilities.max_batch)]
    found = copies(model.decode(long, 2))
    assert model.n_past == 2 + len(long)
    model.truncate(0)
    expected = model.decode([3, 7, *long], 2)
    assert np.allclose(found.logits, expected.logits, atol=1e-3)
    assert_same_end(found, expected, len(long))
    model.truncate(0)
    model.decode_tree([3, 5, 7, 9], (-1, -1, 1))
    model.keep((1, 2))
    found = copies(model.decode([4, 6], 2))
    model.truncate(0)
    expected = model.decode([3, 7, 9, 4, 6], 2)
    assert np.allclose(found.logits, expected.logits, atol=1e-3)
    assert_same_end(found, expected, 2)


def test_others_may_leave_the_new_inputs_out(tmp_path):
    import onnxruntime as ort

    path = onnx_models.save(tmp_path)
    rows = []
    for _ in range(2):
        session = ort.InferenceSession(path)
        given = {node.name: np.zeros((1, 2, 0, 16), np.float32) for node in session.get_inputs()}
        given["input_ids"] = np.array([[3, 5, 7]])
        given["attention_mask"] = np.ones((1, 3), np.int64)
        rows.append(session.run(["logits"], given)[0])
        add_tree_inputs(path, path)
    assert np.allclose(*rows, atol=1e-5)


@pytest.mark.parametrize(("options", "reason"), [
    ({"shared": False}, "no GroupQueryAttention"), ({"bias": True}, "an attention_bias already"),
])  # fmt: skip
def test_graphs_that_cannot_take_them_stay_as_they_are(tmp_path, options, reason):
    path = onnx_models.save(tmp_path, **options)
    content = path.read_bytes()
    assert reason in add_tree_inputs(path, path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(("n_ctx", "trees"), [(8, "yes"), (64, "no: its window of 8 tokens")])
def test_windows_of_other_graphs_count_places_in_the_cache(tmp_path, n_ctx, trees):
    path = onnx_models.save(tmp_path, bias=True, window=8)
    (tmp_path / "config.json").write_text(json.dumps({"sliding_window": 8}))
    model = backend.OnnxModel(path, EngineConfig(n_ctx=n_ctx, n_threads=1))
    assert model.placement["trees"].startswith(trees)


def test_a_graph_that_is_there_is_changed_in_place(tmp_path):
    path = onnx_models.save(tmp_path)
    files = sorted(file.name for file in tmp_path.iterdir())
    steps = []
    assert edgespec.add_tree_inputs(tmp_path, progress=steps.append) == path
    assert steps[0] == "adding attention_bias and position_ids"
    assert edgespec.inspect(path).engine["trees"] == "yes"
    content = path.read_bytes()
    with pytest.raises(ConfigError, match="evaluates token trees already"):
        edgespec.add_tree_inputs(path)
    assert path.read_bytes() == content
    assert sorted(file.name for file in tmp_path.iterdir()) == files


def test_a_graph_that_would_give_other_rows_stays_as_it_was(tmp_path):
    path = onnx_models.save(tmp_path / "graph")
    content, other = path.read_bytes(), onnx_models.save(tmp_path / "other", seed=1)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{{\"step\": \"copying\"}}'\n"
                      f"cp {other} {path.parent}/model.partial.onnx\n")  # fmt: skip
    python.chmod(0o755)
    with pytest.raises(ConversionError, match="would give other logits"):
        edgespec.add_tree_inputs(path, python=python)
    assert path.read_bytes() == content
    assert not path.with_name("model.partial.onnx").exists()


def test_only_graphs_are_changed(tmp_path):
    path = onnx_models.save(tmp_path / "plain", shared=False)
    with pytest.raises(ConversionError, match="no GroupQueryAttention"):
        edgespec.add_tree_inputs(path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="no ONNX graph"):
        edgespec.add_tree_inputs(tmp_path / "model.gguf")
