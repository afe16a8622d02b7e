"""Converting heads: from a checkpoint to a folder that runs, in every precision, and refusals."""

import json
import sys

import numpy as np
import pytest

import edgespec
from edgespec import (
    ConfigError,
    ConversionError,
    EngineConfig,
    EngineMissing,
    ModelError,
    TruncatedModel,
    UnknownArchitecture,
)
from edgespec.backends.base import Capabilities, Model
from edgespec.convert import tools
from edgespec.convert.heads import conversion, fitting, graphs, target_weights
from edgespec.convert.heads.fitting import agreements
from tests.helpers import gguf_files, mtp_files, tiny_heads
from tests.helpers import head_files as files
from tests.helpers.head_makers import OF_STATES

onnx = pytest.importorskip("onnx")
gguf = pytest.importorskip("gguf")
pytest.importorskip("edgespec.backends.llama_cpp", exc_type=EngineMissing)
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
folders = pytest.importorskip("tests.helpers.head_folders")
onnx_models = pytest.importorskip("tests.helpers.onnx_models")

TEXT = [7, 3, 60, 12, 5]


@pytest.fixture
def source(tmp_path):
    return files.write(tmp_path / "source", files.eagle3(), "specforge")


@pytest.fixture
def target(tmp_path):
    return folders.gguf_target(tmp_path / "target.gguf")


def rows(folder, n_guesses=1):
    """Return rows after a text and after a guess."""
    head = backend.open_head(folder, EngineConfig(n_ctx=64, n_threads=1), folders.target())
    head.features.append(0, folders.states(len(TEXT), len(head.layers)))
    found = [head.decode(TEXT).logits[0].copy()]
    found += [head.grow([9], [-1]).logits[0].copy()] * n_guesses
    head.close()
    return np.stack(found)


def test_a_head_is_made_in_the_tools_own_process(tmp_path, source, target):
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    steps = []
    made = edgespec.convert_head(
        source, target, tmp_path / "head", precision="fp32", progress=steps.append
    )
    assert steps == [
        "reading the checkpoint", "reading the target's embedding and output matrix",
        "writing the head as graphs in fp32", "checking that it runs",
    ]  # fmt: skip
    assert (made.kind, made.layers, made.candidates, made.warnings) == ("eagle3", (2, 4, 5), (), ())
    assert made.license == "apache-2.0"
    assert made.size == sum(file.stat().st_size for file in made.path.iterdir())
    assert sorted(file.name for file in made.path.iterdir()) == [
        "d2t.npy", "fuse.onnx", "head.json", "head.onnx",
    ]  # fmt: skip
    assert json.loads((made.path / "head.json").read_text()) == {
        "format": 1, "kind": "eagle3", "layers": [2, 4, 5], "hidden_size": 32, "vocab_size": 259,
        "n_layer": 8, "max_depth": 0, "n_ctx_train": 256, "source": "source",
        "license": "apache-2.0", "precision": "fp32", "target": target.name,
    }  # fmt: skip
    assert json.dumps(made.to_dict())
    expected = folders.Reference(files.eagle3())
    states = folders.states(len(TEXT), 3)
    before = np.concatenate([np.zeros_like(states[:1]), states[:-1]])
    finite = np.isfinite(found := rows(made.path))
    assert np.allclose(found[finite], expected.rows(TEXT, before, [9])[finite], atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in OF_STATES if kind != "eagle3"])
def test_other_kinds_are_made_there_as_well(tmp_path, target, kind):
    source = files.write(tmp_path / "source", OF_STATES[kind]())
    made = edgespec.convert_head(source, target, tmp_path / "head")
    assert (made.kind, made.precision, made.warnings) == (kind, "int8", ())
    assert np.isfinite(rows(made.path)).all()


@pytest.mark.parametrize("make", [*OF_STATES.values(), mtp_files.mimo])
@pytest.mark.parametrize(("precision", "most"), [("int8", 0.03), ("int4", 0.4)])
def test_quantised_heads_are_near(tmp_path, make, precision, most):
    exact = rows(folders.converted(tmp_path / "exact", make()))
    found = rows(folders.converted(tmp_path / precision, make(), precision=precision))
    finite = np.isfinite(exact)
    assert np.array_equal(finite, np.isfinite(found))
    apart = (found[finite] - exact[finite]).std() / exact[finite].std()
    assert 1e-4 < apart < most


@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_are_quantised_to_their_nearest_levels(bits):
    matrix = np.random.default_rng(0).normal(size=(6, 80)).astype(np.float32)
    matrix[2, :32] = 0
    packed, scales = graphs.quantised(matrix, bits)
    assert packed.shape == (6, 3, 32 * bits // 8)
    node = onnx.helper.make_node("MatMulNBits", ["x", "p", "s"], ["y"], K=80, N=6, bits=bits)
    weights = {
        "p": onnx.numpy_helper.from_array(packed, "p"),
        "s": onnx.numpy_helper.from_array(scales, "s"),
    }
    found = target_weights._dequantised(weights, node)
    step = abs(scales).reshape(6, 3).repeat(32, axis=1)[:, :80]
    assert found.shape == matrix.shape
    assert (abs(found - matrix) <= 1.001 * step).all()  # the opposite of the largest is cut
    assert (abs(found - matrix) <= 0.501 * step).mean() > 0.95


def test_a_target_with_one_matrix_for_both(tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "run_worker", folders.run_here)
    made = files.eagle()
    embedding = made.weights.pop("embed_tokens.weight")
    source = files.write(tmp_path / "source", made, "eagle bin")
    target = folders.gguf_target(tmp_path / "target.gguf", tied=True)
    head = edgespec.convert_head(source, target, tmp_path / "head", precision="fp32")
    made.weights["embed_tokens.weight"] = folders.target_weights()["embed_tokens.weight"]
    made.weights["lm_head.weight"] = made.weights["embed_tokens.weight"]
    states = folders.states(len(TEXT), 1)
    before = np.concatenate([np.zeros_like(states[:1]), states[:-1]])
    expected = folders.Reference(made).rows(TEXT, before, [9])
    assert np.allclose(rows(head.path), expected, atol=3e-5)
    assert not np.allclose(embedding, made.weights["embed_tokens.weight"])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16", "BF16"])
def test_quantised_targets_give_their_matrices(tmp_path, kind):
    path, embedding = tmp_path / "x.gguf", folders.target_weights()["embed_tokens.weight"]
    kind = gguf.GGMLQuantizationType[kind]
    packed = gguf.quants.quantize(embedding, kind)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("token_embd.weight", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for name in ("embed_tokens", "lm_head"):
        found = target_weights.from_gguf(path, name)
        assert found.dtype == np.float32
        assert np.array_equal(found, gguf.quants.dequantize(packed, kind))


def test_graphs_give_their_matrices(tmp_path):
    path = onnx_models.save(tmp_path)
    model = onnx.load(path)
    weights = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    lookup = next(node for node in model.graph.node if node.op_type == "Gather")
    product = next(node for node in model.graph.node if "logits" in node.output)
    embedding = target_weights.from_graph(path, "embed_tokens")
    assert np.array_equal(embedding, weights[lookup.input[0]])
    output = target_weights.from_graph(path, "lm_head")
    assert np.array_equal(output, weights[product.input[1]].T)
    onnx.save(onnx_models.table(np.full((4, 4), 0.25)), path)
    with pytest.raises(SystemExit, match="no output matrix that can be read"):
        target_weights.from_graph(path, "lm_head")


def test_a_quantised_matrix_that_is_shared_is_read_for_both(tmp_path):
    matrix = folders.target_weights()["lm_head.weight"]
    packed, scales = graphs.quantised(matrix, 4)
    constants = {"w": packed, "s": scales, "shape": np.array([files.VOCAB, 16])}
    nodes = [
        onnx.helper.make_node("Reshape", ["w", "shape"], ["flat"]),
        onnx.helper.make_node("GatherBlockQuantized", ["flat", "input_ids", "s"], ["x"]),
        onnx.helper.make_node("MatMulNBits", ["x", "w", "s"], ["logits"], K=32, N=files.VOCAB),
    ]
    made = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = onnx.helper.make_graph(nodes, "tiny", [], [], made)
    onnx.save(onnx.helper.make_model(graph), tmp_path / "model.onnx")
    for name in ("embed_tokens", "lm_head"):
        found = target_weights.from_graph(tmp_path / "model.onnx", name)
        assert abs(found - matrix).max() < 0.6
        assert np.corrcoef(found.ravel(), matrix.ravel())[0, 1] > 0.99


def test_both_readings_of_layers_are_told(tmp_path, monkeypatch, target):
    monkeypatch.setattr(tools, "run_worker", folders.run_here)
    made = files.eagle3(eagle_aux_hidden_state_layer_ids=[1, 4, 6])
    source = files.write(tmp_path / "source", made, "specforge")
    head = edgespec.convert_head(source, target, tmp_path / "one")
    assert (head.layers, head.candidates) == ((1, 4, 6), ((2, 5, 7),))
    assert "read as [1, 4, 6] or [2, 5, 7] it guesses an unknown share" in head.warnings[0]
    assert "[1, 4, 6] is taken" in head.warnings[0]
    head = edgespec.convert_head(source, target, tmp_path / "two", layers=[2, 5, 7])
    assert (head.layers, head.warnings) == ((2, 5, 7), ())
    assert json.loads((head.path / "head.json").read_text())["layers"] == [2, 5, 7]
    with pytest.raises(ConfigError, match="3 numbers are expected"):
        edgespec.convert_head(source, target, tmp_path / "three", layers=[2])


def test_weights_that_are_too_many_lie_beside_the_graph(tmp_path, monkeypatch):
    whole = rows(folders.converted(tmp_path / "whole", files.eagle3()))
    monkeypatch.setattr(graphs, "_MOST_INLINE", 0)
    folder = folders.converted(tmp_path / "split", files.eagle3())
    assert (folder / "head.onnx.data").stat().st_size > 10_000
    assert (folder / "head.onnx").stat().st_size < 20_000
    assert np.array_equal(rows(folder), whole)


def test_refusals_leave_nothing(tmp_path, source, target, monkeypatch):
    monkeypatch.setattr(tools, "run_worker", folders.run_here)
    out = tmp_path / "head"

    def refused(error, said, given=source, model=target, **options):
        with pytest.raises(error, match=said):
            edgespec.convert_head(given, model, out, **options)
        assert not out.exists()
        assert not out.with_name("head.partial").exists()

    refused(ConfigError, "unknown precision 'int3'", precision="int3")
    refused(ConfigError, "target.gguf is a model and no trained head", target)
    head = tiny_heads.write(tmp_path / "head.gguf")
    refused(ConfigError, "drafts as it is.*-md .*head.gguf", head)
    head.write_bytes(head.read_bytes()[:99])
    refused(TruncatedModel, "head.gguf is damaged", head)
    other = folders.gguf_target(tmp_path / "other.gguf", n_layer=3)
    made = files.eagle3(target_num_hidden_layers=8)
    refused(ConfigError, "made for another target.*8 layers",
            files.write(tmp_path / "deep", made, "specforge"), other)  # fmt: skip
    narrow = files.eagle3(head_dim=8)
    for name in "qkvo":
        weight = narrow.weights[f"{name}.weight"]
        narrow.weights[f"{name}.weight"] = weight[:, :32] if name == "o" else weight[::2]
    refused(UnknownArchitecture, "multiples of 16",
            files.write(tmp_path / "narrow", narrow, "specforge"))  # fmt: skip
    turned = mtp_files.qwen()
    turned.config["text_config"]["rope_parameters"]["partial_rotary_factor"] = 0.25
    refused(UnknownArchitecture, "32 numbers, 8 of them rotated",
            files.write(tmp_path / "turned", turned, "mtp"))  # fmt: skip
    broken = files.eagle3()
    broken.weights["norm.weight"][:] = np.nan
    refused(ConversionError, "rows that are no numbers",
            files.write(tmp_path / "broken", broken, "specforge"))  # fmt: skip
    monkeypatch.setattr(conversion, "_write_note", lambda *_: 1 / 0)
    refused(ZeroDivisionError, "division")
    out.mkdir()
    with pytest.raises(ConfigError, match="is there already"):
        edgespec.convert_head(source, target, out)


def test_a_tool_that_fails_says_why(tmp_path, source, target):
    target.write_bytes(target.read_bytes().replace(b"token_embd.weight", b"token_embx.weight"))
    with pytest.raises((ConversionError, ModelError), match="token_embd"):
        edgespec.convert_head(source, target, tmp_path / "head", python=sys.executable)
    good = folders.gguf_target(tmp_path / "good.gguf")
    with pytest.raises(ConfigError, match="cannot be started"):
        edgespec.convert_head(source, good, tmp_path / "head", python=tmp_path / "absent")


def test_without_onnx_the_tools_are_asked_for(tmp_path, source, target, monkeypatch):
    monkeypatch.setattr(tools.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path / "models"))
    with pytest.raises(ConversionError, match="tools are not installed"):
        edgespec.convert_head(source, target, tmp_path / "head", offline=True)


def test_the_folder_of_a_target_says_its_width(tmp_path):
    path = onnx_models.save(tmp_path / "graph")
    with pytest.raises(ModelError, match="does not say how wide"):
        fitting.target_sizes(path)
    (path.parent / "genai_config.json").write_text(
        json.dumps({"model": {"decoder": {"hidden_size": 32}}})
    )
    assert fitting.target_sizes(path) == fitting.TargetSizes(32, onnx_models.VOCAB, 2, 64)
    sizes = {"hidden_size": 48, "num_hidden_layers": 6}  # some layers may have no cache
    (path.parent / "config.json").write_text(json.dumps({"text_config": sizes}))
    assert fitting.target_sizes(path) == fitting.TargetSizes(48, onnx_models.VOCAB, 6, 64)


def test_layers_for_multi_token_prediction_are_no_layers_of_the_target(tmp_path):
    known = gguf_files.fields()
    known["llama.block_count"] = (gguf_files.UINT32, 9)
    known["llama.nextn_predict_layers"] = (gguf_files.UINT32, 1)
    path = tmp_path / "target.gguf"
    path.write_bytes(gguf_files.gguf_bytes(known, {}))
    assert fitting.target_sizes(path).n_layer == 8


class Counting(Model):
    """A target that says the next number, whose layers' states are their own numbers."""

    vocab_size, hidden_size, n_layer, n_ctx = files.VOCAB, files.HIDDEN, files.TARGET_LAYERS, 512
    capabilities = Capabilities(32, 64, hidden_states=True)
    n_past, closed = 0, False

    def __init__(self):
        self.tokenizer, self.layers = self, ()

    def encode(self, text):
        return [3, 4, 5]

    def tap(self, layers):
        self.layers = tuple(layers)

    def truncate(self, n_past):
        self.n_past = min(self.n_past, n_past)

    def decode(self, tokens, n_logits=1, abort=None):
        self.n_past += len(tokens)
        layers = np.array(self.layers, np.float32)[None, :, None]
        hidden = np.broadcast_to(layers, (len(tokens), len(self.layers), self.hidden_size))
        row = np.eye(1, self.vocab_size, (tokens[-1] + 1) % self.vocab_size)
        return edgespec.types.Outputs(row, hidden if self.layers else None)

    def close(self):
        self.closed = True


class Guessing:
    """A head that guesses the next number, where it reads the layers that it was made for."""

    def __init__(self, layers):
        self.made_for, self.n_past = layers, 0

    def truncate(self, n_past):
        self.n_past = min(self.n_past, n_past)

    def decode(self, tokens, n_logits=1, abort=None):
        self.n_past += len(tokens)
        first = self.n_past - n_logits - 1
        states = self.features.of(max(first, 0), max(first, 0) + n_logits)
        rows = np.zeros((n_logits, files.VOCAB))
        for row, state, token in zip(rows, states, tokens[len(tokens) - n_logits :], strict=True):
            right = state[:, 0].tolist() == list(self.made_for)
            row[(token + (1 if right else 2)) % files.VOCAB] = 1
        return edgespec.types.Outputs(rows)


@pytest.mark.parametrize(("made_for", "shares"), [
    ((1, 4, 6), [1.0, 0.0]), ((2, 5, 7), [0.0, 1.0]), ((2, 4, 6), [0.0, 0.0]),
])  # fmt: skip
def test_agreement_tells_the_readings_apart(made_for, shares):
    target = Counting()
    candidates = [(1, 4, 6), (2, 5, 7)]
    assert agreements(Guessing(made_for), target, candidates, [3, 4, 5]) == shares
    assert target.layers == ()


@pytest.mark.parametrize("made_for", [(1, 4, 6), (2, 5, 7)])
def test_the_reading_that_guesses_more_is_taken(tmp_path, monkeypatch, target, made_for):
    monkeypatch.setattr(tools, "run_worker", folders.run_here)
    tried = []

    def measured(head, model, candidates, prompt):
        tried.append((head.kind, candidates, prompt))
        return [0.5 if layers == made_for else 0.25 for layers in candidates]

    monkeypatch.setattr(fitting, "agreements", measured)
    opened = Counting()
    monkeypatch.setattr(fitting, "open_model", lambda path, config: opened)
    made = files.eagle3(eagle_aux_hidden_state_layer_ids=[1, 4, 6])
    source = files.write(tmp_path / "source", made, "specforge")
    head = edgespec.convert_head(source, target, tmp_path / "head")
    assert tried == [("eagle3", [(1, 4, 6), (2, 5, 7)], [3, 4, 5])]
    assert head.layers == made_for
    assert json.loads((head.path / "head.json").read_text())["layers"] == list(made_for)
    assert "50%" in head.warnings[0]
    assert f"{list(made_for)} is taken" in head.warnings[0]
    assert opened.closed


def test_both_readings_run_along_with_a_real_graph(tmp_path):
    folder = folders.converted(tmp_path, files.eagle3())
    target = Counting()
    head = backend.open_head(folder, EngineConfig(n_ctx=128, n_threads=1), target)
    shares = agreements(head, target, [(2, 4, 5), (3, 5, 6)], [3, 4, 5])
    assert all(0 <= share <= 1 for share in shares)
    assert head.n_past == target.n_past == 3 + fitting.N_TOKENS - 1
    head.close()
