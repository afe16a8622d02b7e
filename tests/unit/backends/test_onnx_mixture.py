"""Mixture of Attentions beside a tiny ONNX target, whose cache it reads, against NumPy."""

import json

import numpy as np
import pytest

from edgespec import (
    ConfigError,
    ContextFull,
    DecodeError,
    EngineConfig,
    EngineMissing,
    ToyModel,
)
from edgespec.backends.base import Head
from edgespec.backends.cached_features import CachedFeatures
from edgespec.loading.assembly import assemble
from edgespec.sampling.trees import path_to
from tests.helpers import head_files as files
from tests.helpers import moa_files

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
folders = pytest.importorskip("tests.helpers.head_folders")
onnx_models = pytest.importorskip("tests.helpers.onnx_models")

TEXT = [7, 3, 20, 12, 5, 13, 3, 9]
CONFIG = EngineConfig(n_ctx=96, n_threads=1, batch_invariant=True)


def saved(folder, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_models, "VOCAB", files.VOCAB)
        path = onnx_models.save(folder, keep=True, **options)
    sizes = {"hidden_size": files.HIDDEN, "max_position_embeddings": 512}
    (folder / "config.json").write_text(json.dumps(sizes))
    return path


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("target"), bias=True)


@pytest.fixture(scope="module")
def folder(graph, tmp_path_factory):
    return folders.converted(tmp_path_factory.mktemp("head"), moa_files.moa(), target=graph)


@pytest.fixture
def target(graph):
    model = backend.OnnxModel(graph, CONFIG)
    yield model
    model.close()


@pytest.fixture
def head(target, folder):
    opened = backend.open_head(folder, CONFIG, target)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def reference(graph):
    weights = {w.name: onnx.numpy_helper.to_array(w) for w in onnx.load(graph).graph.initializer}
    nodes = onnx.load(graph).graph.node
    lookup = next(n for n in nodes if n.op_type == "Gather" and n.input[1] == "input_ids")
    product = next(n for n in nodes if "logits" in n.output)
    matrices = {
        "embed_tokens.weight": weights[lookup.input[0]],
        "lm_head.weight": weights[product.input[1]].T,
    }
    return moa_files.Reference(moa_files.moa(), matrices)


def expected(reference, target, text, path=(), start=0):
    """Return rows after each token of a text that the target has evaluated but for the last, and
    of a path after it.
    """
    kept = target.cached(max(start - 1, 0), start + len(text) - 1)
    if not start:
        kept = np.concatenate([np.zeros_like(kept[:1]), kept])
    return reference.rows(text, kept, path)


def close(found, wanted):
    assert abs(found - wanted).max() <= 1e-5 * max(1, abs(wanted).max())


def evaluated(target, text):
    target.truncate(0)
    target.decode(text, 0)


def test_contracts(target, head):
    assert isinstance(head, Head)
    assert isinstance(head.features, CachedFeatures)
    assert (head.kind, head.layers, head.max_depth) == ("moa", (), 0)
    note = json.loads((head.path.parent / "head.json").read_text())
    assert (note["cached_size"], note["n_layer"]) == (moa_files.KEPT, 2)
    assert json.dumps(head.fingerprint())


@pytest.mark.parametrize("options", [{}, {"shared": False}, {"half": True}], ids=str)
def test_a_target_lends_what_its_graph_gives(tmp_path, options):
    path = saved(tmp_path, **options)
    model = backend.OnnxModel(path, CONFIG)
    model.decode(TEXT[:3], 0)
    model.decode([1, 1], 0)
    model.truncate(3)
    model.decode(TEXT[3:], 0)
    assert model.n_cached == len(TEXT)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = {node.name: node for node in session.get_inputs()}
    kind = np.float16 if options.get("half") else np.float32
    fed = {name: np.zeros((1, 2, 0, 16), kind) for name in given if name.startswith("past")}
    fed |= {"input_ids": np.array([TEXT]), "attention_mask": np.ones((1, len(TEXT)), np.int64)}
    fed |= {"position_ids": np.arange(len(TEXT))[None], "num_logits_to_keep": np.array([1])}
    names = [f"present.{i}.{kind}" for i in range(2) for kind in ("key", "value")]
    found = dict(zip(names, session.run(names, {n: v for n, v in fed.items() if n in given}),
                     strict=True))  # fmt: skip
    lent = model.cached(2, 7)
    assert lent.shape == (5, 2, moa_files.KEPT)
    assert lent.dtype == np.float32
    for layer in range(2):
        for group in range(2):
            for part, kind in enumerate(("key", "value")):
                first = 32 * group + 16 * part
                wanted = found[f"present.{layer}.{kind}"][0, group, 2:7]
                assert np.allclose(lent[:, layer, first : first + 16], wanted, atol=2e-2)
    assert model.cached(4, 4).shape == (0, 2, moa_files.KEPT)
    model.close()


def test_the_path_of_a_tree_is_lent_as_a_chain_is(target):
    target.decode_tree([*TEXT, 1, 2, 3], (-1, -1, 1))
    target.keep((1, 2))
    found = target.cached(0, target.n_cached)
    evaluated(target, [*TEXT, 2, 3])
    assert np.allclose(found, target.cached(0, len(TEXT) + 2), atol=1e-5)


def test_rows_are_those_of_the_reference(target, head, reference):
    evaluated(target, TEXT[:-1])
    found = head.decode(TEXT, 3).logits
    close(found, expected(reference, target, TEXT)[-3:])
    head.truncate(0)
    for i in range(len(TEXT)):
        close(head.decode([TEXT[i]]).logits, expected(reference, target, TEXT)[i : i + 1])


def test_a_text_is_read_from_its_second_token_on(target, head, reference):
    evaluated(target, TEXT[:-1])
    head.start = 1
    found = head.decode(TEXT[1:]).logits[0]
    close(found, expected(reference, target, TEXT[1:], start=1)[-1])


def test_the_first_token_alone(target, head, reference):
    evaluated(target, [5])
    found = head.decode(TEXT[:1]).logits[0].copy()
    zeros = np.zeros((1, 2, moa_files.KEPT))
    close(found, reference.rows(TEXT[:1], zeros, ())[0])
    after = head.grow([4], [-1]).logits[0]
    assert np.isfinite(after).all()


def test_guesses_along_a_chain(target, head, reference):
    evaluated(target, TEXT[:-1])
    path = [9, 8, 41, 2, 30]
    wanted = expected(reference, target, TEXT, path)[len(TEXT) - 1 :]
    close(head.decode(TEXT).logits[0], wanted[0])
    for i, token in enumerate(path):
        close(head.grow([token], [i - 1]).logits[0], wanted[i + 1])


@pytest.mark.parametrize("calls", [
    ([-1, -1],), ([-1], [0, 0]), ([-1, -1], [0, 1, -1], [2, 2, 3, 4]),
], ids=str)  # fmt: skip
def test_nodes_of_a_tree_equal_their_paths(target, head, reference, calls):
    evaluated(target, TEXT[:-1])
    head.decode(TEXT, 0)
    tokens, parents = [], []
    for call in calls:
        new = [11 * (len(tokens) + i) % 200 + 4 for i in range(len(call))]
        tokens, parents = [*tokens, *new], [*parents, *call]
        rows = head.grow(new, call).logits
        for i, row in enumerate(rows):
            path = [tokens[n] for n in path_to(parents, len(parents) - len(call) + i)]
            close(row, expected(reference, target, TEXT, path)[-1])


@pytest.mark.parametrize("n_accepted", range(4))
def test_what_was_accepted_is_read_with_the_targets_own_keys(
    target, head, folder, reference, n_accepted
):
    draft = [9, 8, 41]
    evaluated(target, TEXT[:-1])
    head.decode(TEXT)
    for i, token in enumerate(draft):
        head.grow([token], [i - 1])
    head.keep(())
    target.decode([TEXT[-1], *draft], 0)
    target.truncate(len(TEXT) + n_accepted)
    text = [*TEXT, *draft[:n_accepted], 17]
    found = head.decode(text[len(TEXT) :]).logits[0].copy()
    after = head.grow([21], [-1]).logits[0].copy()
    fresh = backend.open_head(folder, CONFIG, target)
    close(found, fresh.decode(text).logits[0])
    close(after, fresh.grow([21], [-1]).logits[0])
    close(np.stack([found, after]), expected(reference, target, text, [21])[-2:])
    fresh.close()


def test_truncating_and_failures_leave_a_usable_head(target, head, reference, monkeypatch):
    evaluated(target, TEXT[:-1])
    head.decode([1, 2, 3])
    head.truncate(0)
    run = head._run
    with monkeypatch.context() as patch:
        patch.setattr(head, "_run", lambda session, binding, **rest: run(_Broken(), None, **rest))
        with pytest.raises(DecodeError, match="no memory"):
            head.decode(TEXT)
    assert head.n_past == 0
    close(head.decode(TEXT).logits[0], expected(reference, target, TEXT)[-1])
    with pytest.raises(ContextFull):
        head.decode([1] * (head.n_ctx - len(TEXT) + 1))
    assert head.n_past == len(TEXT)


class _Broken:
    def run_with_iobinding(self, *_):
        raise RuntimeError("no memory")


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 1.0, "seed": 7}], ids=str)
def test_text_is_the_targets(graph, folder, sampling):
    texts = []
    for drafts in (False, True):
        opened = backend.OnnxModel(graph, CONFIG)
        head = backend.open_head(folder, CONFIG, opened) if drafts else None
        method = {"method": "draft_model", "num_speculative_tokens": 3, "draft_p_min": 0.0}
        method = method | {"options": {"top_k": 4}} if drafts else {"method": "none"}
        with assemble(opened, opened.tokenizer, head, method) as engine:
            found = engine.generate(TEXT, max_tokens=40, ignore_eos=True, **sampling)
            texts.append(found.token_ids)
            assert not head or head.start == 0  # its own attention sees the first token, too
            assert found.stats.drafts_by_source.keys() == ({"moa"} if drafts else set())
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("precision", "most"), [("int8", 0.03), ("int4", 0.4)])
def test_quantised_heads_are_near(tmp_path, graph, target, head, precision, most):
    evaluated(target, TEXT[:-1])
    made = folders.converted(tmp_path, moa_files.moa(), target=graph, precision=precision)
    other = backend.open_head(made, CONFIG, target)
    exact, found = (np.stack([each.decode(TEXT).logits[0], each.grow([9], [-1]).logits[0]])
                    for each in (head, other))  # fmt: skip
    assert 1e-4 < (found - exact).std() / exact.std() < most
    other.close()


def test_targets_that_lend_nothing_are_refused(folder):
    other = ToyModel(lambda _: (), vocab_size=files.VOCAB)
    other.hidden_size, other.n_layer = 32, 2
    with pytest.raises(ConfigError, match="only ONNX models lend theirs"):
        backend.open_head(folder, CONFIG, other)
    other.cached_size = 128
    with pytest.raises(
        ConfigError, match="64 numbers of keys and values a layer, and this one has"
    ):
        backend.open_head(folder, CONFIG, other)


def test_gguf_targets_are_refused_before_anything_is_made(tmp_path):
    with pytest.raises(ConfigError, match=r"64 keys and values, and only ONNX"):
        folders.converted(tmp_path, moa_files.moa())
    assert not (tmp_path / "head").exists()
