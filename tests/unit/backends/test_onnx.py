"""The ONNX backend on graphs made for it: conventions, promises, bad input."""

import json
import shutil
import threading
import time

import numpy as np
import pytest

import edgespec
from edgespec import (
    Aborted,
    ConfigError,
    EngineConfig,
    EngineMissing,
    ModelError,
    ModelNotFound,
    TruncatedModel,
    UnknownArchitecture,
    VocabularyMismatch,
    hub,
)
from edgespec.backends import files
from edgespec.backends.base import FINAL

onnx = pytest.importorskip("onnx")
onnx_models = pytest.importorskip("tests.helpers.onnx_models")
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
TOKENS = [3, 5, 7, 9, 2, 4, 6]


def opened(path, **options):
    return backend.OnnxModel(path, EngineConfig(**({"n_ctx": 64, "n_threads": 1} | options)))


def cycle(alone=0.0):
    """Says the letters of the alphabet in order."""
    n = onnx_models.VOCAB
    probs = np.full((n, n), 0.1 / (n - 1))
    probs[np.arange(n), [2 + (i - 1) % 26 for i in range(n)]] = 0.9
    return onnx_models.table(probs, alone)


# --- how the cache is kept ----------------------------------------------------------------------


@pytest.mark.parametrize(("options", "kept"), [
    ({}, "shared"), ({"keep": True}, "shared"), ({"shared": False}, "grown"),
    ({"shared": False, "mask": True}, "grown"),
])  # fmt: skip
def test_the_cache_is_shared_where_the_graph_appends_in_place(tmp_path, options, kept):
    model = opened(onnx_models.save(tmp_path, **options))
    assert model.placement["cache"] == kept
    assert model.placement["provider"] == "CPU"
    assert model.n_past == 0
    model.close()


def test_a_shared_cache_stays_where_it_is(tmp_path):
    model = opened(onnx_models.save(tmp_path))
    where = [value.data_ptr() for value in model._cache._values]
    for _ in range(3):
        model.decode(TOKENS)
        model.truncate(4)
        model.decode([1])
    assert [value.data_ptr() for value in model._cache._values] == where
    model.close()


def test_shared_and_grown_give_the_same_text_whatever_was_rolled_back(tmp_path):
    model = opened(onnx_models.save(tmp_path))
    fresh = opened(model.path)
    fresh.use(backend.cache.GrownCache(fresh.graph, "cpu"))
    rng = np.random.default_rng(0)
    for _ in range(30):
        cut = int(rng.integers(model.n_past + 1))
        tokens = rng.integers(0, onnx_models.VOCAB, int(rng.integers(1, 6))).tolist()
        rows = []
        for each in (model, fresh):
            each.truncate(min(cut, 50))
            rows.append(each.decode(tokens, n_logits=len(tokens)).logits.copy())
        assert np.allclose(*rows, atol=1e-4)
    model.close()
    fresh.close()


@pytest.mark.parametrize(("options", "tree"), [
    ({}, False), ({"shared": False}, False), ({"shared": False, "mask": True}, True),
    ({"shared": False, "bias": True}, True), ({"bias": True}, True),
    ({"bias": True, "half": True}, True),
])  # fmt: skip
def test_trees_are_said_to_be_possible_only_with_a_mask_for_them(tmp_path, options, tree):
    model = opened(onnx_models.save(tmp_path, **options))
    assert (model.capabilities.max_leaves > 1) == tree
    assert model.placement["trees"].startswith("yes" if tree else "no: the graph takes no")


def test_nodes_that_could_not_be_kept_are_gone(tmp_path, monkeypatch):
    model = opened(onnx_models.save(tmp_path, bias=True))
    model.decode(TOKENS, 0)

    def no_room(*args):
        raise MemoryError

    monkeypatch.setattr(type(model._cache), "gather", no_room)
    model.decode_tree([1, 2, 3], (-1, -1))
    with pytest.raises(MemoryError):
        model.keep((1,))
    assert model.n_past == len(TOKENS) + 1


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("norm", ["", "skip", "plain"])
def test_hidden_states_are_those_of_the_layers_that_are_named(tmp_path, half, norm):
    options = {"hidden_states": (2, 0, -1, 1), "indexed": True, "half": half, "norm": norm}
    model = opened(onnx_models.save(tmp_path / "with", **options))
    assert model.capabilities.hidden_states
    assert (model.n_layer, model.hidden_size) == (2, onnx_models.WIDTH)
    model.tap((1, 2, 0, 1, FINAL))
    rows, hidden = model.decode(TOKENS, n_logits=len(TOKENS))
    assert hidden.shape == (len(TOKENS), 5, onnx_models.WIDTH)
    assert hidden.dtype == rows.dtype == np.float32
    assert hidden[:, :4, 0].tolist() == [[1, 2, 0, 1]] * len(TOKENS)
    head = onnx.numpy_helper.to_array(onnx.load(model.path).graph.initializer[-1])
    assert np.allclose(hidden[:, 4] @ head, rows, atol=0.05 if half else 1e-3)


def test_hidden_states_that_a_graph_does_not_give(tmp_path):
    model = opened(onnx_models.save(tmp_path, hidden_states=(1,)))
    with pytest.raises(ConfigError, match=r"hidden states final,2; `edgespec convert .*model.onnx "
                       r"--hidden-states final,2` adds them"):  # fmt: skip
        model.tap((1, 2, FINAL))
    for layer in (3, -2):
        with pytest.raises(ConfigError, match=f"has no layer {layer}; give 0 .* to 2"):
            model.tap((1, layer))
    assert model.decode(TOKENS).hidden is None
    without = opened(onnx_models.save(tmp_path / "without"))
    assert not without.capabilities.hidden_states
    assert (without.n_layer, without.hidden_size) == (2, 0)
    without.tap(())
    assert without.decode(TOKENS).hidden is None


def test_only_the_outputs_that_are_wanted_are_bound(tmp_path):
    model = opened(onnx_models.save(tmp_path, hidden_states=(0, 1, 2, -1), shared=False))
    for layers, n in (((), 0), ((1, 2), 2), ((2, 2), 1), ((), 0)):
        model.tap(layers)
        model.decode(TOKENS)
        assert len(model._buffers.native.get_outputs()) == 4 + 1 + n  # the cache and logits


def test_each_slot_taps_for_itself(tmp_path):
    model = opened(onnx_models.save(tmp_path, hidden_states=(1, 2), indexed=True))
    model.tap((2,))
    twin, other = model._twin(32), model._twin(32)
    assert twin.decode(TOKENS).hidden is None
    twin.tap((1, 2))
    found = twin.decode(TOKENS).hidden
    assert other.decode(TOKENS[::-1]).hidden is None
    assert model.decode(TOKENS[::-1]).hidden[:, :, 0].tolist() == [[2]] * len(TOKENS)
    assert found[:, :, 0].tolist() == [[1, 2]] * len(TOKENS)


# --- rows that lie on a device -------------------------------------------------------------------


def test_the_graph_that_finds_the_largest_is_what_it_is_said_to_be():
    from edgespec.backends.onnx.top_rows import GRAPH

    assert onnx.load(GRAPH) == onnx_models.top()


@pytest.mark.parametrize("options", [{}, {"keep": True}, {"shared": False}])
def test_the_largest_logits_alone_are_fetched(tmp_path, monkeypatch, options):
    model = opened(onnx_models.save(tmp_path, **options))
    whole = model.decode(TOKENS, n_logits=4).logits.copy()
    model.truncate(0)
    model.restrict(1)
    assert np.array_equal(model.decode(TOKENS, n_logits=4).logits, whole)  # a CPU gives whole rows
    monkeypatch.setattr(backend.model, "_RESTRICTED", ("cpu",))
    for top in (1, 5, 2, 0, 3, 1000):
        model.restrict(top)
        model.truncate(0)
        rows = model.decode(TOKENS, n_logits=4).logits
        n = top if 0 < top < 1000 else onnx_models.VOCAB
        for row, full in zip(rows, whole, strict=True):
            assert np.isfinite(row).sum() == n
            kept = np.argsort(-full)[:n]
            assert np.array_equal(row[kept], full[kept])
    assert model.decode([1], n_logits=0).logits.shape == (0, onnx_models.VOCAB)


@pytest.mark.parametrize("sampling", [
    {}, {"temperature": 0.8, "top_k": 5, "seed": 3},
    {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "seed": 3}, {"temperature": 0.8, "seed": 3},
    {"repetition_penalty": 1.3}, {"logit_bias": {7: 5.0}}, {"logprobs": 3},
])  # fmt: skip
@pytest.mark.parametrize("alone", [0.0, 5.0])
def test_fetching_little_changes_no_text(tmp_path, monkeypatch, sampling, alone):
    folder = onnx_models.save(tmp_path, cycle(alone)).parent
    texts = []
    for devices in ((), ("cpu",)):
        monkeypatch.setattr(backend.model, "_RESTRICTED", devices)
        with edgespec.load(folder, None, n_ctx=256) as engine:
            done = engine.generate("abcabcabc", max_tokens=40, **sampling)
            texts.append((done.token_ids, done.logprobs))
    assert texts[0] == texts[1]


# --- one token alone ----------------------------------------------------------------------------


@pytest.mark.parametrize("alone", [1.0, 5.0])
def test_batch_invariant_pairs_tokens_where_one_alone_gives_another_row(tmp_path, alone):
    path = onnx_models.save(tmp_path, cycle(alone))
    model = opened(path, batch_invariant=True)
    assert "as two, so that drafts change nothing" in model.placement["single tokens"]
    assert model.capabilities.min_tokens == 2
    model.expect_drafts(False)  # text without drafts has to be text with them
    several = model.decode([4, 5], n_logits=2).logits.copy()
    model.truncate(0)
    for token, row in zip([4, 5], several, strict=True):
        assert np.array_equal(model.decode([token]).logits[0], row)
    assert model.n_past == 2
    assert model.decode([6], n_logits=0).logits.shape == (0, model.vocab_size)


@pytest.mark.parametrize("shared", [True, False])
def test_keys_and_values_of_a_token_alone_are_paired_too(tmp_path, shared):
    path = onnx_models.save(tmp_path, alone=0.5, shared=shared)
    model = opened(path, batch_invariant=True)
    at_once = model.decode(TOKENS, n_logits=len(TOKENS)).logits.copy()
    model.truncate(0)
    one_by_one = np.concatenate([model.decode([token]).logits.copy() for token in TOKENS])
    assert np.allclose(one_by_one, at_once, atol=1e-3)


def alone_and_beside_another(model):
    """Return rows of one token: evaluated alone, and as the first of two."""
    rows = [model.decode([4]).logits[0].copy()]
    model.truncate(0)
    rows.append(model.decode([4, 5], n_logits=2).logits[0].copy())
    model.truncate(0)
    return rows


def test_kernels_that_round_in_two_ways_are_mixed(tmp_path):
    """A token is evaluated alone: neither row is nearer to float32 than the other."""
    model = opened(onnx_models.save(tmp_path, cycle(alone=0.5)))
    assert "near ties" in model.placement["single tokens"]
    assert model.capabilities.min_tokens == 1
    for expected in (True, False):
        model.expect_drafts(expected)
        alone, beside = alone_and_beside_another(model)
        assert abs(alone - beside).max() == pytest.approx(0.5, abs=1e-5)
    alike = opened(onnx_models.save(tmp_path, cycle()))
    assert "the same rows" in alike.placement["single tokens"]


def test_kernels_that_differ_by_more_than_rounding_are_not_mixed(tmp_path):
    model = opened(onnx_models.save(tmp_path, cycle(alone=5.0)))
    assert "more than rounding" in model.placement["single tokens"]
    assert model.capabilities.min_tokens == 2
    assert np.array_equal(*alone_and_beside_another(model))
    model.expect_drafts(False)
    alone, beside = alone_and_beside_another(model)
    assert abs(alone - beside).max() == pytest.approx(5.0, abs=1e-5)


@pytest.mark.parametrize(("config", "options", "padded"), [
    ({"method": "suffix"}, {}, True), ({"method": "none"}, {}, False),
    ({"method": "suffix"}, {"disable_spec_decode": True}, False),
    ({"method": "suffix"}, {"num_draft_tokens": 0}, False),
    ({"method": "suffix", "num_speculative_tokens": 0}, {}, False),
])  # fmt: skip
def test_requests_that_cannot_draft_are_never_padded(tmp_path, config, options, padded):
    folder = onnx_models.save(tmp_path, cycle(alone=5.0)).parent
    with edgespec.load(folder, None, n_ctx=64, speculative_config=config) as engine:
        for _ in range(2):
            engine.generate("abc", max_tokens=4, **options)
            assert np.array_equal(*alone_and_beside_another(engine.target)) == padded
            engine.generate("abc", max_tokens=4)  # another request decides for itself


def test_a_free_token_is_looked_up_after_a_single_one(tmp_path):
    found = {}
    for alone in (0.0, 5.0):
        folder = onnx_models.save(tmp_path / str(alone), cycle(alone)).parent
        with edgespec.load(
            folder, None, n_ctx=64, speculative_config={"method": "suffix"}
        ) as engine:
            (lookup,) = engine.sessions[0]._drafting.drafters
            found[alone] = lookup._min_match
    assert found == {0.0: 2, 5.0: 1}


def test_a_context_that_is_full_to_the_last_token_can_be_paired(tmp_path):
    path = onnx_models.save(tmp_path, cycle(alone=5.0))
    model = opened(path, n_ctx=8, batch_invariant=True)
    for i in range(8):
        model.decode([2 + i])
    assert model.n_past == 8
    with pytest.raises(edgespec.ContextFull):
        model.decode([1])


@pytest.mark.parametrize("alone", [0.0, 5.0])
def test_speculation_changes_nothing(tmp_path, alone):
    folder = onnx_models.save(tmp_path, cycle(alone)).parent
    texts = []
    for draft, method in ((None, "none"), (None, "auto"), (folder, "draft_model")):
        config = {"method": method, "draft_p_min": 0}
        config["num_speculative_tokens"] = 0 if method == "none" else 4
        options = {"n_ctx": 256, "batch_invariant": True, "speculative_config": config}
        with edgespec.load(folder, draft, **options) as engine:
            done = engine.generate("abcabcabc", max_tokens=60)
            texts.append(done.token_ids)
            assert (done.stats.num_accepted_draft_tokens > 20) == (method != "none")
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == 60


# --- the public engine --------------------------------------------------------------------------


def test_chat_inspect_and_describe(tmp_path):
    path = onnx_models.save(tmp_path / "letters", cycle())
    with edgespec.load(path.parent) as engine:
        assert engine.n_ctx == onnx_models.LONGEST
        assert engine.describe()["model"]["file"] == "letters/model.onnx"
        assert engine.describe()["model"]["placement"]["provider"] == "CPU"
        done = engine.chat().send("abc", max_tokens=5)
        assert done.token_ids
        assert engine.generate("xy", max_tokens=4).text == "zabc"
    info = edgespec.inspect(path)
    assert (info.n_layer, info.n_head_kv, info.key_length) == (1, 1, 1)
    assert info.kv_element_size == 4
    assert info.vocab_size == onnx_models.VOCAB
    assert info.has_chat_template
    assert info.engine["provider"] == "CPU"


def test_neighbours_are_judged_as_drafts(tmp_path):
    big = onnx_models.save(tmp_path / "big")
    small = onnx_models.save(tmp_path / "small", cycle())
    other = onnx_models.save(tmp_path / "other", cycle())
    text = (other.parent / "tokenizer.json").read_text()
    (other.parent / "tokenizer.json").write_text(text.replace('"a": 2', '"A": 2'))
    found = {fit.reference: fit for fit in edgespec.fitting_drafts(big)}
    assert found["small/model.onnx"].fits
    assert not found["other/model.onnx"].fits
    assert "token 2" in found["other/model.onnx"].why
    assert not edgespec.fitting_drafts(small)[0].fits
    with pytest.raises(VocabularyMismatch, match=r"other/model.onnx cannot draft for big/model"):
        edgespec.load(big, other)


def test_tune_and_doctor(tmp_path, monkeypatch):
    path = onnx_models.save(tmp_path, keep=True)
    found = edgespec.tune(path, None, budget_s=2)
    assert found.model == f"{tmp_path.name}/model.onnx"
    assert {choice.setting for choice in found.choices} <= {"n_threads"}
    labels = [c.label for choice in found.choices for c in choice.candidates]
    assert all(label.isdigit() for label in labels)
    assert found.profile.target(1) > 0
    subjects = {finding.subject: finding for finding in edgespec.diagnose(path, None)}
    assert subjects["profile"].text.split(":")[0] in ("fresh", "stale")  # of microseconds
    assert "provider CPU" in subjects["placement"].text
    assert "CPU" in subjects["onnxruntime"].text


def test_the_doctor_says_when_single_tokens_are_padded(tmp_path):
    found = {}
    for alone, invariant in ((5.0, False), (0.5, False), (0.5, True)):
        path = onnx_models.save(tmp_path / f"{alone}{invariant}", cycle(alone))
        notes = edgespec.diagnose(path, None, n_ctx=64, batch_invariant=invariant)
        found[alone, invariant] = [f for f in notes if f.subject == "kernels"]
    assert "more than rounding" in found[5.0, False][0].text
    assert "--accuracy-level 1" in found[5.0, False][0].remedy
    assert not found[0.5, False]
    assert "--batch-invariant" in found[0.5, True][0].remedy


# --- cancellation -------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [[1], [1 + i % 30 for i in range(400)]], ids=len)
def test_an_evaluation_is_stopped_from_within(tmp_path, tokens):
    model = opened(onnx_models.save(tmp_path), n_ctx=512)
    expected = model.decode(tokens).logits[0].copy()
    model.truncate(0)
    stop = threading.Event()
    run = model._session.run_with_iobinding

    def slow(*args):
        stop.set()
        while not args[1].terminate:
            time.sleep(0.001)
        run(*args)

    session = type("Session", (), {"run_with_iobinding": staticmethod(slow)})()
    whole, model._session = model._session, session
    with pytest.raises(Aborted):
        model.decode(tokens, abort=lambda: "cancelled" if stop.is_set() else None)
    model._session = whole
    assert model.n_past == 0
    assert np.allclose(model.decode(tokens).logits[0], expected, atol=1e-4)


# --- the tokenizer ------------------------------------------------------------------------------


def test_tokenizer(tmp_path):
    tokenizer = opened(onnx_models.save(tmp_path)).tokenizer
    ids = tokenizer.encode("hi there")
    assert b"".join(map(tokenizer.piece, ids)) == b"hi there"
    assert tokenizer.piece(1) == b""
    assert tokenizer.token_text(28) == "\u0120".encode()
    assert tokenizer.token_text(60) == b""
    assert tokenizer.is_eog(0)
    assert tokenizer.is_eog(1)
    assert not tokenizer.is_eog(2)
    assert tokenizer.encode("a<|im_end|>") == [2, 1]
    assert 1 not in tokenizer.encode("a<|im_end|>", parse_special=False)
    assert tokenizer.special() == {"bos_token": "", "eos_token": "<|im_end|>"}


def test_a_tokenizer_that_would_cut_and_has_holes(tmp_path):
    path = onnx_models.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["truncation"] = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    content["model"]["vocab"]["z"] = 60
    file.write_text(json.dumps(content))
    tokenizer = opened(path).tokenizer
    assert len(tokenizer.encode("abababab")) == 8
    assert tokenizer.encode("z") == [60]
    assert tokenizer.vocab_size == 61


def test_calls_of_harmony_end_a_generation_and_messages_do_not(tmp_path):
    path = onnx_models.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text())
    first = content["added_tokens"][0]
    for token, text in enumerate(("<|call|>", "<|end|>", "<|return|>"), 60):
        content["added_tokens"].append({**first, "id": token, "content": text, "special": True})
    file.write_text(json.dumps(content))
    tokenizer = opened(path).tokenizer
    texts = ("<|call|>", "<|end|>", "<|return|>")
    ends = [tokenizer.is_eog(*tokenizer.encode(text)) for text in texts]
    assert ends == [True, False, True]
    del content["added_tokens"][-1]
    file.write_text(json.dumps(content))
    tokenizer = opened(path).tokenizer
    assert not tokenizer.is_eog(*tokenizer.encode("<|call|>"))


def test_the_template_for_tools_is_read_from_settings_and_from_files(tmp_path):
    path = onnx_models.save(tmp_path)
    assert opened(path).tokenizer.tool_template is None
    file = tmp_path / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    file.write_text(json.dumps(settings | {"chat_template": named}))
    tokenizer = opened(path).tokenizer
    assert (tokenizer.chat_template, tokenizer.tool_template) == ("d", "t")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates/tool_use.jinja").write_text("T")
    (tmp_path / "chat_template.jinja").write_text("D")
    tokenizer = opened(path).tokenizer
    assert (tokenizer.chat_template, tokenizer.tool_template) == ("D", "T")
    (tmp_path / "chat_template.jinja").unlink()
    del settings["chat_template"]
    file.write_text(json.dumps(settings))
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "processor's"}))
    assert opened(path).tokenizer.chat_template == "processor's"


def test_companions_above_are_those_of_repositories_of_the_hub(tmp_path):
    path = onnx_models.save(tmp_path / "onnx")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        (path.parent / name).rename(tmp_path / name)
    assert opened(path).n_ctx == 64
    shutil.move(tmp_path / "onnx", tmp_path / "other")
    with pytest.raises(ModelNotFound, match=r"no tokenizer.json"):
        opened(tmp_path / "other/model.onnx")


# --- bad input ----------------------------------------------------------------------------------


def broken(folder, kind):
    path = onnx_models.save(folder)
    model = onnx.load(path)
    if kind == "missing data":
        onnx.save(model, path, save_as_external_data=True, location="w.data", size_threshold=1000)
        (folder / "w.data").unlink()
    elif kind == "truncated data":
        onnx.save(model, path, save_as_external_data=True, location="w.data", size_threshold=1000)
        with (folder / "w.data").open("r+b") as file:
            file.truncate(20_000)
    elif kind == "truncated graph":
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
    elif kind == "no graph":
        path.write_text("hello")
    elif kind == "opset":
        model.opset_import[0].version = 99
        onnx.save(model, path)
    elif kind == "operator":
        model.graph.node[3].domain = "com.nobody"
        onnx.save(model, path)
    elif kind == "no decoder":
        value = onnx.helper.make_tensor_value_info("pixels", 1, [1, 8])
        out = onnx.helper.make_tensor_value_info("out", 1, [1, 8])
        node = onnx.helper.make_node("Relu", ["pixels"], ["out"])
        graph = onnx.helper.make_graph([node], "g", [value], [out])
        opset = [onnx.helper.make_opsetid("", 17)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    elif kind == "another input":
        value = onnx.helper.make_tensor_value_info("speaker", 7, [1])
        model.graph.input.append(value)
        onnx.save(model, path)
    elif kind == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    elif kind == "damaged tokenizer":
        (folder / "tokenizer.json").write_text("{")
    elif kind == "damaged settings":
        (folder / "config.json").write_text("{")
    elif kind == "settings of another kind":
        (folder / "config.json").write_text("[1]")
    elif kind == "two graphs":
        shutil.copy(path, folder / "model_q4.onnx")
    return path


@pytest.mark.parametrize(("kind", "error", "says"), [
    ("missing data", ModelNotFound, "weights is missing"),
    ("truncated data", TruncatedModel, "damaged"),
    ("truncated graph", TruncatedModel, "damaged"),
    ("no graph", TruncatedModel, "no ONNX model"),
    ("opset", UnknownArchitecture, "pset 99.*update it"),
    ("operator", UnknownArchitecture, "com.nobody"),
    ("no decoder", UnknownArchitecture, "unknown inputs .'pixels'.*0 past keys"),
    ("another input", UnknownArchitecture, "unknown inputs .'speaker'"),
    ("no tokenizer", ModelNotFound, "no tokenizer.json"),
    ("damaged tokenizer", ModelError, "tokenizer.json cannot be read"),
    ("damaged settings", ModelError, "config.json is no JSON"),
    ("settings of another kind", ModelError, "holds no JSON object"),
    ("two graphs", ModelNotFound, "several .onnx files: model.onnx, model_q4.onnx"),
])  # fmt: skip
def test_bad_files(tmp_path, kind, error, says):
    broken(tmp_path, kind)
    with pytest.raises(error, match=says) as found:
        edgespec.load(tmp_path)
    assert "\n" not in str(found.value)
    assert "onnxruntime_src" not in str(found.value)


def test_a_cache_of_unknown_shape_is_found_in_a_companion(tmp_path):
    path = onnx_models.save(tmp_path)
    model = onnx.load(path)
    for node in (*model.graph.input, *model.graph.output):
        if "key" in node.name or "value" in node.name:
            for axis in (1, 3):
                node.type.tensor_type.shape.dim[axis].dim_param = f"d{axis}"
    onnx.save(model, path)
    with pytest.raises(UnknownArchitecture, match="shape of its cache"):
        opened(path)
    decoder = {"num_key_value_heads": onnx_models.KV_HEADS, "head_size": onnx_models.SIZE}
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": {"decoder": decoder}}))
    assert opened(path).decode(TOKENS).logits.shape == (1, onnx_models.VOCAB)


def test_names_of_a_genai_folder(tmp_path):
    path = onnx_models.save(tmp_path)
    text = onnx.load(path)
    for node in (*text.graph.input, *text.graph.output):
        node.name = node.name.replace("past_key_values.", "past.").replace("present.", "new.")
    for node in text.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                new = name.replace("past_key_values.", "past.").replace("present.", "new.")
                names[i] = new
    onnx.save(text, path)
    with pytest.raises(UnknownArchitecture, match="unknown inputs"):
        opened(path)
    decoder = {
        "inputs": {"past_key_names": "past.%d.key", "past_value_names": "past.%d.value"},
        "outputs": {"present_key_names": "new.%d.key", "present_value_names": "new.%d.value"},
    }
    (tmp_path / "genai_config.json").write_text(json.dumps({"model": {"decoder": decoder}}))
    assert opened(path).decode(TOKENS).logits.shape == (1, onnx_models.VOCAB)


def test_providers(tmp_path):
    path = onnx_models.save(tmp_path)
    with pytest.raises(ConfigError, match=r"no provider 'quantum'; it has .*cpu"):
        opened(path, provider="quantum")
    for name in ("cpu", "CPUExecutionProvider", "auto"):
        assert opened(path, provider=name).provider == "CPU"
    if not backend.supports_gpu_offload():
        with pytest.raises(ConfigError, match="onnx-cuda"):
            opened(path, provider="cuda")


def test_both_packages_at_once(tmp_path, monkeypatch):
    path = onnx_models.save(tmp_path)
    monkeypatch.setattr(backend.session, "version", lambda name: "1.31.1")
    backend.check_packages.cache_clear()
    with pytest.raises(ConfigError, match=r"onnxruntime 1.31.1 and onnxruntime-gpu 1.31.1 are"):
        opened(path)
    subjects = {finding.subject: finding for finding in edgespec.diagnose()}
    assert "both installed" in subjects["onnxruntime"].text
    monkeypatch.undo()
    backend.check_packages.cache_clear()
    opened(path)


def test_relative_paths_have_names(tmp_path, monkeypatch):
    onnx_models.save(tmp_path / "letters")
    monkeypatch.chdir(tmp_path / "letters")
    assert files.label(hub.resolve(".")) == "letters/model.onnx"
    assert files.label(hub.resolve("model.onnx")) == "letters/model.onnx"
    assert opened("model.onnx").fingerprint()["file"][0] == "letters/model.onnx"


def test_other_files_beside_a_graph_are_not_its_weights(tmp_path):
    path = onnx_models.save(tmp_path / "a[1]")
    size = path.stat().st_size
    for name, part in (("model.onnx_data_1", True), ("model.onnx.bak", False)):
        (path.parent / name).write_bytes(b"12")
        size += 2 * part
    assert files.size_of(path) == size


def test_references(tmp_path):
    path = onnx_models.save(tmp_path / "letters")
    assert hub.resolve(path) == path
    assert hub.resolve(path.parent) == path
    assert files.label(path) == "letters/model.onnx"
    (path.parent / "model.onnx.data").write_bytes(b"1234")
    assert files.size_of(path) == path.stat().st_size + 4
    with pytest.raises(ModelNotFound, match=r"without an .onnx file"):
        hub.resolve(tmp_path)
