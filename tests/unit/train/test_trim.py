"""ONNX draft models whose output layer is cut to frequent tokens."""

import contextlib
import json
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import edgespec
from edgespec import ConfigError, EngineConfig, ModelError, hub
from edgespec.backends.files import DRAFTED_IDS
from edgespec.convert import tools
from edgespec.loading import companions
from edgespec.loading.models import open_model
from edgespec.train import trim_file
from edgespec.train.kinds import trim
from edgespec.train.planning import TrainingPlan
from tests.helpers import gguf_files, head_files, head_folders, onnx_models
from tests.unit.train.test_planning import PLAN

IDS = np.array([0, 1, 2, 5, 9, 10, 33, 60])
TEXT = [3, 4, 5, 6]
SIZES = {
    "vocab_size": onnx_models.VOCAB, "hidden_size": onnx_models.WIDTH, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 64,
}  # fmt: skip


def write(folder, **options):
    path = onnx_models.save(folder, keep=True, **options)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | SIZES))
    return path


def opened(path):
    return contextlib.closing(open_model(path, EngineConfig(n_ctx=64, provider="cpu")))


@pytest.fixture
def trimmed(tmp_path):
    """Return a graph, and the graph that has its output layer for IDS alone."""
    whole, out = write(tmp_path / "whole"), write(tmp_path / "cut")
    np.save(out.parent / DRAFTED_IDS, IDS)
    job = {"graph": str(whole), "out": str(out), "ids": str(out.parent / DRAFTED_IDS)}
    tools.run_worker(sys.executable, job, tmp_path, print, {}, "edgespec.train.trim_file")
    return whole, out


def test_rows_over_all_tokens_have_the_kept_logits_alone(trimmed):
    whole, cut = trimmed
    with opened(whole) as model, opened(cut) as other:
        assert other.vocab_size == model.vocab_size == onnx_models.VOCAB
        assert other.graph.vocab_size == len(IDS)
        rows, found = (each.decode(TEXT, 4).logits.copy() for each in (model, other))
        assert np.allclose(found[:, IDS], rows[:, IDS], atol=1e-5)
        assert np.isneginf(np.delete(found, IDS, 1)).all()
        assert other.decode([7], 1).logits.shape == (1, onnx_models.VOCAB)


def test_slots_do_not_share_their_rows(trimmed):
    with opened(trimmed[1]) as model:
        twin = model._twin(64)
        row = model.decode(TEXT, 1).logits
        before = row.copy()
        twin.decode([8, 9, 10], 1)
        assert np.array_equal(row, before)


@pytest.mark.parametrize(("ids", "message"), [
    (IDS[:-1], r"rows of 8 tokens, and .* say 7"),
    (np.append(IDS[:-1], 64), "ids outside 64 tokens"),
])  # fmt: skip
def test_a_folder_whose_tokens_do_not_fit_its_graph(trimmed, ids, message):
    np.save(trimmed[1].parent / DRAFTED_IDS, ids)
    with pytest.raises(ModelError, match=message):
        open_model(trimmed[1], EngineConfig(n_ctx=64, provider="cpu"))


def test_a_trimmed_model_and_a_head_are_no_targets(trimmed, tmp_path):
    prompts, kind = tmp_path / "prompts.txt", tmp_path / "medusa"
    prompts.write_text("Stop.")
    kind.mkdir()
    head_folders.converted(tmp_path, head_files.medusa()).rename(kind / "onnx")
    for path, message in (
        (trimmed[1], "model.onnx is a draft model that knows only some tokens: name the model"),
        (kind / "onnx", r"head.onnx is a trained head, which only drafts .* name that model"),
        (kind, r"head.onnx is a trained head, which only drafts .* name that model"),
    ):
        with pytest.raises(ConfigError, match=message):
            edgespec.load(path)
        with pytest.raises(ConfigError, match=message):
            edgespec.plan_training(path, [prompts], tmp_path / "out")


@pytest.mark.parametrize("flat", [False, True])
def test_a_quantised_output_layer_that_is_also_the_embedding(flat):
    """The rows of weights, scales and zero points are kept; the embedding reads the originals."""
    n, k, kept = 12, 64, np.array([1, 4, 11])
    rng = np.random.default_rng(0)
    packed = rng.integers(256, size=(n, 2, 16), dtype=np.uint8)
    scales = rng.normal(size=n * 2 if flat else (n, 2)).astype(np.float32)
    zeros = rng.integers(256, size=n if flat else (n, 1), dtype=np.uint8)
    arrays = {"packed": packed, "scales": scales, "zeros": zeros}
    product = helper.make_node(
        "MatMulNBits", ["state", *arrays], ["logits"], domain="com.microsoft", N=n, K=k, bits=4,
        block_size=32,
    )  # fmt: skip
    embedding = helper.make_node("Gather", ["packed", "input_ids"], ["state"])
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [embedding, product], "g", [value("input_ids", TensorProto.INT64, [1, 3])],
        [value("logits", TensorProto.FLOAT, [1, 3, n])],
        [numpy_helper.from_array(each, name) for name, each in arrays.items()],
    )  # fmt: skip
    trim_file.cut(graph, product_of(graph), kept)
    left = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    assert set(left) == {"packed", *(f"{name}/drafted" for name in arrays)}
    assert np.array_equal(left["packed"], packed)
    for name, array in arrays.items():
        expected = array.reshape(n, -1)[kept]
        assert np.array_equal(left[f"{name}/drafted"].reshape(3, -1), expected)
        assert left[f"{name}/drafted"].ndim == array.ndim
    assert next(a.i for a in product_of(graph).attribute if a.name == "N") == 3
    assert graph.output[0].type.tensor_type.shape.dim[-1].dim_value == 3


def product_of(graph):
    return next(node for node in graph.node if node.op_type == "MatMulNBits")


def test_a_transposed_embedding_as_output_layer():
    value, weight = helper.make_tensor_value_info, np.arange(24, dtype=np.float32).reshape(6, 4)
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["state"]),
        helper.make_node("Transpose", ["embedding"], ["turned"]),
        helper.make_node("MatMul", ["state", "turned"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [value("input_ids", TensorProto.INT64, [1, 2])],
        [value("logits", TensorProto.FLOAT, [1, 2, 6])],
        [numpy_helper.from_array(weight, "embedding")],
    )  # fmt: skip
    trim_file.cut(graph, graph.node[2], np.array([2, 5]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    left = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    assert np.array_equal(left["turned/drafted"], weight[[2, 5]].T)


def test_a_matrix_that_only_a_branch_reads_stays():
    value, weight = helper.make_tensor_value_info, np.arange(24, dtype=np.float32).reshape(4, 6)
    state = value("state", TensorProto.FLOAT, None)
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Gather", ["matrix", "input_ids"], ["row"], axis=1),
             helper.make_node("Transpose", ["row"], ["state"])], name, [], [state]
        )
        for name in ("then", "else")
    }  # fmt: skip
    nodes = [
        helper.make_node("If", ["is_first"], ["state"], **branches),
        helper.make_node("MatMul", ["state", "matrix"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [value("input_ids", TensorProto.INT64, [2]),
                     value("is_first", TensorProto.BOOL, [])],
        [value("logits", TensorProto.FLOAT, [2, 6])], [numpy_helper.from_array(weight, "matrix")],
    )  # fmt: skip
    trim_file.cut(graph, graph.node[1], np.array([2, 5]))
    left = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    assert set(left) == {"matrix", "matrix/drafted"}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    found = ReferenceEvaluator(model).run(
        None, {"input_ids": np.array([1, 3]), "is_first": np.array(True)}
    )
    assert np.array_equal(found[0], (weight.T[[1, 3]] @ weight)[:, [2, 5]])


@pytest.fixture
def training(tmp_path, monkeypatch):
    """Return a function that trims a draft model for a target of the same kind."""
    monkeypatch.setattr(hub, "models_dir", lambda: tmp_path / "models")
    plan = PLAN | {"n_tokens": 400, "disk": 1 << 20, "free_disk": 1 << 30}
    monkeypatch.setattr(trim, "plan_of_draft", lambda *_, **__: TrainingPlan(**plan))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"{a}{b}" for a in "abcdefg" for b in "hijklm"))
    target, draft = write(tmp_path / "target"), write(tmp_path / "draft")

    def trained(**options):
        given = {"python": sys.executable, "kind": "trim", "n_tokens": 400, "start": draft.parent}
        out = tmp_path / "out"
        return target, edgespec.train_head(target, [prompts], out, **given | options)

    return trained


def test_a_model_trimmed_to_all_that_is_said_drafts_as_before(training):
    """The draft model is the target, and says what the target says."""
    target, made = training(vocabulary=63)
    assert made.simulated == ()
    assert made.served.acceptance_length == made.paired.before.acceptance_length > 3
    assert (made.paired.difference_low, made.paired.difference_high) == (0, 0)
    card = (made.checkpoint / "README.md").read_text()
    assert "| drafts | 63 of 64 tokens" in card
    assert "| | served by edgespec (95% interval) | served before |" in card
    if made.registered:
        found = companions.found(target, target)
        assert [(each.path, each.role) for each in found] == [(made.registered, "sibling")]
    with edgespec.load(target, made.path) as engine:
        assert engine.generate([3, 4], max_tokens=8, temperature=0.0).token_ids


def test_a_folder_as_on_the_hub_is_trimmed(training, tmp_path):
    hub_folder, inner = tmp_path / "on-hub", tmp_path / "on-hub" / "onnx"
    inner.mkdir(parents=True)
    for path in (tmp_path / "draft").iterdir():
        is_graph = path.name.startswith("model.onnx")
        path.rename((inner if is_graph else hub_folder) / path.name)
    (inner / "model_q4.onnx").write_bytes(b"of another precision")
    _, made = training(vocabulary=40, start=inner / "model.onnx")
    assert made.path.name == "trimmed-on-hub"
    assert [path.name for path in made.path.glob("*.onnx")] == ["model.onnx"]
    assert "| made from | on-hub |" in (made.checkpoint / "README.md").read_text()


def test_too_few_tokens_accept_less(training):
    _, made = training(vocabulary=3)
    assert made.served.acceptance_length < made.paired.before.acceptance_length
    assert made.paired.difference_high <= 0


def test_a_gguf_and_a_trimmed_model_are_refused(training, tmp_path):
    with pytest.raises(ConfigError, match=r"llama.cpp refuses models .* edgespec convert"):
        training(start=gguf_files.write(tmp_path / "tiny.gguf"))
    _, made = training(vocabulary=40)
    with pytest.raises(ConfigError, match="begun with another --from, or none"):
        training(start=made.path, vocabulary=20)
