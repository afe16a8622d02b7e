"""Graphs that are given outputs of hidden states: those of the right layers, logits as before."""

import numpy as np
import pytest

import edgespec
from edgespec import ConfigError, ConversionError, EngineConfig, EngineMissing
from edgespec.convert.hidden_outputs import add_hidden_states
from edgespec.convert.tree_inputs import add_tree_inputs
from edgespec.convert.worker import keep_wanted_rows

onnx = pytest.importorskip("onnx")
onnx_models = pytest.importorskip("tests.helpers.onnx_models")
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
ALL = [0, 1, 2, -1]
TOKENS = [3, 5, 7, 9, 2, 4, 6]


def evaluated(path, layers=()):
    model = backend.OnnxModel(path, EngineConfig(n_ctx=64, n_threads=1))
    model.tap(layers)
    rows, hidden = model.decode(TOKENS, len(TOKENS))
    return rows.copy(), hidden


@pytest.mark.parametrize("norm", ["", "skip", "plain"])
@pytest.mark.parametrize("options", [
    {}, {"shared": False}, {"half": True}, {"half": True, "shared": False}, {"bias": True},
    {"shared": False, "mask": True, "keep": True}, {"keep": True},
], ids=str)  # fmt: skip
def test_what_goes_into_each_layer_is_found(tmp_path, norm, options):
    options = options | {"norm": norm, "indexed": True}
    named = onnx_models.save(tmp_path / "named", **options, hidden_states=ALL)
    path = onnx_models.save(tmp_path / "graph", **options)
    before, _ = evaluated(path)
    assert add_hidden_states(path, path, ALL) == ""
    rows, hidden = evaluated(path, ALL)
    _, expected = evaluated(named, ALL)
    assert hidden[:, :3, 0].tolist() == [[0, 1, 2]] * len(TOKENS)
    close = {"atol": 0.1, "rtol": 0.02} if "half" in options else {"atol": 1e-3}
    assert np.allclose(hidden, expected, **close)
    assert np.allclose(rows, before, **close)


@pytest.mark.parametrize("norm", ["", "skip", "plain"])
@pytest.mark.parametrize("layers", [[1], ALL])
def test_a_graph_computes_nothing_more(tmp_path, norm, layers):
    path = onnx_models.save(tmp_path, norm=norm)
    before = onnx.load(path).graph
    assert add_hidden_states(path, path, layers) == ""
    after = onnx.load(path).graph
    added = len(after.node) - len(before.node)
    assert added == (norm == "" and layers == ALL)  # the final states are those of layer 2
    for old, new in zip(before.node, after.node, strict=False):
        assert old.op_type == new.op_type
        more = 3 if norm == "skip" and 2 in layers and "hidden_states.2" in new.output else 0
        assert len(new.output) == len(old.output) + more


def test_all_that_is_added_to_graphs_goes_together(tmp_path):
    path = onnx_models.save(tmp_path, norm="skip", indexed=True)
    before, _ = evaluated(path)
    assert keep_wanted_rows(path)
    assert add_hidden_states(path, path, [-1, 2]) == ""
    assert add_tree_inputs(path, path) == ""
    assert add_hidden_states(path, path, [2, 1]) == ""  # 2 is there
    rows, hidden = evaluated(path, (1, 2, -1))
    assert hidden[:, :2, 0].tolist() == [[1, 2]] * len(TOKENS)
    assert np.allclose(rows, before, atol=1e-3)
    assert hidden.shape == (len(TOKENS), 3, onnx_models.WIDTH)
    outputs = [value.name for value in onnx.load(path).graph.output]
    assert len(outputs) == len(set(outputs))


def test_sums_that_other_programs_share_constants_of_are_told_apart(tmp_path):
    """Exporters give all norms one epsilon, of which every value after the first norm is made."""
    path = onnx_models.save(tmp_path, norm="plain", indexed=True, shared=False)
    model = onnx.load(path)
    arrays = {}
    for tensor in list(model.graph.initializer):
        key = (tensor.data_type, tuple(tensor.dims), onnx.numpy_helper.to_array(tensor).tobytes())
        first = arrays.setdefault(key, tensor.name)
        if first != tensor.name:
            model.graph.initializer.remove(tensor)
            for node in model.graph.node:
                node.input[:] = [first if name == tensor.name else name for name in node.input]
    onnx.save(model, path)
    assert add_hidden_states(path, path, [0, 1, 2]) == ""
    assert evaluated(path, (0, 1, 2))[1][:, :, 0].tolist() == [[0, 1, 2]] * len(TOKENS)


def refusal(tmp_path, change):
    """Return why a graph that was changed cannot give hidden states; it stays as it was."""
    path = onnx_models.save(tmp_path, norm="skip")
    model = onnx.load(path)
    change(model.graph)
    onnx.save(model, path)
    content = path.read_bytes()
    found = add_hidden_states(path, path, [1])
    assert path.read_bytes() == content
    return found


def test_graphs_that_are_not_recognised_are_refused(tmp_path):
    def other_head(graph):
        graph.node[-1].op_type = "Einsum"

    def other_keys(graph):
        for value in graph.output:
            value.name = value.name.replace(".1.key", ".3.key")

    def other_sums(graph):
        for node in graph.node:
            if node.op_type.startswith("Skip"):
                node.op_type = "Special"

    for change, says in (
        (other_head, "no matrix product was found"), (other_keys, "no outputs present.0.key"),
        (other_sums, "no layer was found that adds"),
    ):  # fmt: skip
        assert says in refusal(tmp_path / change.__name__, change)


def test_a_layer_that_is_not_found_is_named(tmp_path):
    """Its attention and the rest are beside each other, so neither sum is made of the other."""

    def beside(graph):
        read = next(n for n in graph.node if n.op_type == "SimplifiedLayerNormalization").output[0]
        behind = next(n for n in graph.node if n.op_type.startswith("Skip")).output[0]
        for node in graph.node:
            node.input[:] = [read if name == behind else name for name in node.input]

    path = onnx_models.save(tmp_path, norm="skip", indexed=True)
    model = onnx.load(path)
    beside(model.graph)
    onnx.save(model, path)
    assert "the keys of layer 0 are made of 0 sums" in add_hidden_states(path, path, [1, 0])
    assert add_hidden_states(path, path, [1, 2]) == ""
    assert evaluated(path, (1, 2))[1][:, :, 0].tolist() == [[1, 2]] * len(TOKENS)


def test_a_table_has_no_layers(tmp_path):
    path = onnx_models.save(tmp_path, onnx_models.table(np.full((4, 4), 0.25)))
    assert "no matrix product" in add_hidden_states(path, path, [0])


def test_a_graph_that_is_there_is_changed_in_place(tmp_path):
    path = onnx_models.save(tmp_path, norm="skip")
    files = sorted(file.name for file in tmp_path.iterdir())
    steps = []
    assert edgespec.add_hidden_states(tmp_path, [1, -1], progress=steps.append) == path
    assert steps[0] == "adding outputs of hidden states"
    assert evaluated(path, (1, -1))[1].shape == (len(TOKENS), 2, onnx_models.WIDTH)
    content = path.read_bytes()
    with pytest.raises(ConfigError, match="gives these hidden states already"):
        edgespec.add_hidden_states(path, (-1, 1))
    with pytest.raises(ConversionError, match="has 2 layers, so there is no 3"):
        edgespec.add_hidden_states(path, (1, 3))
    for layers in ((1, -2), "1", [True]):
        with pytest.raises(ConfigError, match="numbers of layers from 0 on"):
            edgespec.add_hidden_states(path, layers)
    assert path.read_bytes() == content
    edgespec.add_hidden_states(path, (0, 1))
    assert evaluated(path, (0, 1, -1))[1].shape[1] == 3
    assert sorted(file.name for file in tmp_path.iterdir()) == files


@pytest.mark.parametrize(("options", "says"), [
    ({"seed": 1, "hidden_states": (1,)}, "would give other logits"),
    ({}, r"hidden states \[1\] are not given"),
])  # fmt: skip
def test_a_graph_that_comes_out_wrong_stays_as_it_was(tmp_path, options, says):
    path = onnx_models.save(tmp_path / "graph")
    content, other = path.read_bytes(), onnx_models.save(tmp_path / "other", **options)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{{\"step\": \"copying\"}}'\n"
                      f"cp {other} {path.parent}/model.partial.onnx\n")  # fmt: skip
    python.chmod(0o755)
    with pytest.raises(ConversionError, match=says):
        edgespec.add_hidden_states(path, [1], python=python)
    assert path.read_bytes() == content
    assert not path.with_name("model.partial.onnx").exists()
