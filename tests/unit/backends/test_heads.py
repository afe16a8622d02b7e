"""EAGLE-3 heads on llama.cpp, tiny and random, against NumPy."""

import numpy as np
import pytest

from edgespec import ConfigError, DecodeError, ModelError
from tests.helpers import tiny_heads, tiny_models
from tests.helpers.gguf_files import ARRAY, INT32, STRING, TOKENS, UINT32
from tests.helpers.llama_heads import (
    CONFIG,
    LONG,
    N_CTX,
    TEXT,
    features_of,
    lives,
    llama_cpp,
    near,
    opening,
    refuses_all,
    states_of,
    stop,
    tapped,
)  # fmt: skip

pytestmark = pytest.mark.llama_cpp


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    with tapped(tmp_path_factory.mktemp("target"), tiny_heads.LAYERS, CONFIG) as model:
        yield model


@pytest.fixture(scope="module")
def states(target):
    """Return the target's states of LONG."""
    return states_of(target, LONG)


@pytest.fixture
def opened(tmp_path, states):
    with opening(tmp_path, tiny_heads.write, states) as opened:
        yield opened


@pytest.fixture
def head(opened):
    return opened()


def read(reference, tokens, states, start=0, known=0):
    """Let the reference read tokens of a text from `start` on; the target's states before `known`
    are missing.
    """
    rows = []
    for position, token in enumerate(tokens, start):
        before = position - 1
        state = reference.fuse(states[before]) if before >= known else np.zeros(tiny_models.WIDTH)
        row, own = reference.step(token, state)
        rows.append(row)
    return np.array(rows), own


def test_its_facts(head):
    assert (head.kind, head.layers, head.max_depth) == ("eagle3", tiny_heads.LAYERS, 0)
    assert head.n_ctx == N_CTX


@pytest.mark.parametrize("changed", [{}, tiny_heads.NORMED_FIRST], ids=["plain", "normed first"])
@pytest.mark.parametrize("n", [1, 5, 40, 150])
def test_rows_are_those_of_numpy(opened, states, changed, n):
    head = opened(**changed)
    reference = tiny_heads.Reference(tiny_heads.head_weights(), bool(changed))
    expected, own = read(reference, LONG[:n], states)
    wanted = min(n, 20)
    assert near(head.decode(LONG[:n], wanted).logits, expected[-wanted:])
    assert head.n_past == n
    token = LONG[n % len(LONG)]
    row, own = reference.step(token, own)
    assert near(head.grow([token], [-1]).logits[0], row)
    row, _ = reference.step(7, own)
    assert near(head.grow([7], [0]).logits[0], row)


def test_rows_are_minus_infinity_outside_the_heads_vocabulary(head):
    row = head.decode(TEXT).logits[0]
    drafted = tiny_heads.head_weights()["d2t"]
    assert np.isfinite(row[drafted]).all()
    assert np.isneginf(np.delete(row, drafted)).all()


def test_a_head_may_draft_all_tokens(opened, states):
    weights = tiny_heads.head_weights()
    del weights["d2t"]
    weights["output.weight"] = (
        np.random.default_rng(5).normal(size=(len(TOKENS), tiny_models.WIDTH)).astype(np.float32)
    )
    head = opened(weights=weights)
    expected, _ = read(tiny_heads.Reference(weights), TEXT, states)
    assert near(head.decode(TEXT, len(TEXT)).logits, expected)


@pytest.mark.parametrize("start", [1, 37])
def test_a_cache_may_begin_later_in_the_text(head, states, start):
    head.start = start
    reference = tiny_heads.Reference(tiny_heads.head_weights())
    expected, _ = read(reference, LONG[start : start + 50], states, start)
    assert near(head.decode(LONG[start : start + 50], 10).logits, expected[-10:])


@pytest.mark.parametrize("known", [0, 1, 30, 99, 100, 130])
def test_states_that_are_missing_are_zeros(head, states, known):
    head.features = features_of(states[known:], known)
    reference = tiny_heads.Reference(tiny_heads.head_weights())
    expected, _ = read(reference, LONG[:100], states, known=known)
    assert near(head.decode(LONG[:100], 10).logits, expected[-10:])


def test_without_any_states_all_are_zeros(head):
    head.features.truncate(0)
    reference = tiny_heads.Reference(tiny_heads.head_weights())
    expected, _ = read(reference, TEXT, None, known=1000)
    assert near(head.decode(TEXT).logits[0], expected[-1])


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [(-3, DecodeError, "llama_encode failed with code -3"), (None, KeyboardInterrupt, "^$")],
)
@pytest.mark.parametrize("n", [1, 3])
def test_an_encoder_that_stops_leaves_a_usable_head(head, code, error, message, n, monkeypatch):
    expected = head.decode(LONG, 3).logits.copy()
    head.truncate(0)
    stop(monkeypatch, code, "llama_encode", n)
    with pytest.raises(error, match=message):
        head.decode(LONG)
    monkeypatch.undo()
    assert head.n_past == (0 if n == 1 else 64)
    assert near(head.decode(LONG[head.n_past :], 3).logits, expected)


def borrowing(*names):
    weights = tiny_heads.head_weights()
    for name in names:
        del weights[name]
    return weights


def test_weights_of_the_target_are_used_where_a_head_has_none(opened, target, states):
    found = tiny_models.weights("llama")
    for names, given in (
        (["token_embd.weight"], {"embeddings": found["token_embd.weight"]}),
        (["output.weight", "d2t"], {"output": found["output.weight"]}),
        (
            ["token_embd.weight", "output.weight", "d2t"],
            {"embeddings": found["token_embd.weight"], "output": found["output.weight"]},
        ),
    ):
        weights = borrowing(*names)
        head = opened(target, weights)
        reference = tiny_heads.Reference({"output.weight": np.zeros(1)} | weights, **given)
        expected, _ = read(reference, TEXT, states)
        assert near(head.decode(TEXT, 5).logits, expected[-5:])
        target.tap([2])  # whatever becomes of the target's own context
        target.tap([tiny_models.N_LAYER])
        target.tap(tiny_heads.LAYERS)
        assert near(head.decode([7]).logits[0], read(reference, [7], states, len(TEXT))[0][0])


def test_is_head(tmp_path):
    assert llama_cpp.is_head(tiny_heads.write(tmp_path / "head.gguf"))
    assert not llama_cpp.is_head(tiny_models.write(tmp_path, "llama"))
    path = tmp_path / "text.gguf"
    path.write_text("no head")
    with pytest.raises(ModelError, match="is not a GGUF"):
        llama_cpp.is_head(path)


def layers(*numbers):
    return {"target_layers": (ARRAY, (INT32, list(numbers)))}


def more(**changed):
    return tiny_heads.head_weights() | {n.replace("__", "."): v for n, v in changed.items()}


DRAFTED = tiny_heads.head_weights()["d2t"]
MORE_TOKENS = [*TOKENS, b"more"]
REFUSED = {
    "width": ({"target_hidden_size": (UINT32, 64)}, None, "64 numbers a state, and this one has"),
    "vocabulary": (
        {
            "tokenizer.ggml.tokens": (ARRAY, (STRING, MORE_TOKENS)),
            "tokenizer.ggml.scores": None,
            "tokenizer.ggml.token_type": (ARRAY, (INT32, [1] * len(MORE_TOKENS))),
        },
        None,
        "260 tokens of vocabulary, and this one has 259;",
    ),
    "layer": (layers(1, 3, 7), None, "at least 7 layers, and this one has 6"),
    "negative layer": (layers(-1, 3, 5), None, "is \\[-1, 3, 5\\], expected 3 layers"),
    "two layers": (layers(1, 3), None, r"is \[1, 3\], expected 3 layers"),
    "no layers": ({"target_layers": None}, None, "is None, expected 3 layers"),
    "layers of another name": (
        {"target_layers": None, "target_layer_ids": layers(1, 3, 5)["target_layers"]},
        None,
        "is None, expected 3 layers",
    ),
    "deep": ({"block_count": (UINT32, 2)}, None, "has 2 layers, expected one"),
    "heads": (
        {"attention__head_count_kv": (UINT32, 3)}, None, "4 heads over 3, expected a multiple"
    ),
    "values": (
        {"attention__value_length": (UINT32, 4)}, None, "keys have 8 numbers and its values 4"
    ),
    "rotated": ({"rope__dimension_count": (UINT32, 10)}, None, "10 numbers of a head are rotated"),
    "another embedding": (
        {}, more(token_embd__weight=np.zeros((100, 32), np.float32)), r"embeddings are \(32, 100\)"
    ),
    "tokens beyond": ({}, more(d2t=DRAFTED + 200), "d2t has tokens from .* expected 0 to 258"),
    "offsets": ({}, more(d2t=DRAFTED - np.arange(64)), "d2t has tokens twice"),
    "float d2t": ({}, more(d2t=DRAFTED.astype(np.float32)), "d2t is of type 0"),
    "another kind": (
        {"general.architecture": (STRING, b"dspark")}, None, "of the architecture 'dspark'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(opened, case):
    metadata, weights, message = REFUSED[case]
    with pytest.raises((ConfigError, ModelError), match=message):
        opened(None, weights, **metadata)


def test_weights_of_another_engines_target_are_refused(opened):
    with pytest.raises(
        ConfigError, match="embeddings and output weights of its target, which runs"
    ):
        opened(weights=borrowing("token_embd.weight", "output.weight", "d2t"))


def test_a_vocabulary_of_its_own_needs_an_output_of_its_own(opened, target):
    with pytest.raises(ModelError, match="drafts 64 tokens with the target's output weights"):
        opened(target, borrowing("output.weight"))


@pytest.mark.parametrize("name", ["fc.weight", "blk.0.attn_norm_2.weight", "blk.0.ffn_up.weight"])
def test_a_file_without_some_weights_is_refused(opened, name):
    with pytest.raises(ModelError, match=name.rpartition(".")[0]):
        opened(weights=borrowing(name))


def test_a_library_without_the_functions_is_said(opened, monkeypatch):
    monkeypatch.setattr("edgespec.backends.llama_cpp.heads.HEADS", ("llama_no_such_function",))
    with pytest.raises(ConfigError, match="heads need llama_no_such_function, which"):
        opened()


def test_nothing_ends_the_process(tmp_path):
    """Some of these files would, if they came to the engine."""
    refuses_all(tmp_path, "test_heads", "tiny_heads")


@pytest.mark.parametrize("end", ["", "del target, head", "head.close(); target.close()"])
def test_a_head_that_borrows_weights_goes_before_its_target(tmp_path, end):
    """Also where the target's context was made anew after the head was opened."""
    path = tiny_heads.write(tmp_path / "head.gguf", borrowing("token_embd.weight"))
    program = f"""
        import gc
        from tests.unit.backends import test_heads as t
        target = t.llama_cpp.LlamaCppModel({str(tiny_models.write(tmp_path, "qwen2"))!r}, t.CONFIG)
        head = t.llama_cpp.open_head(t.tiny_heads.Path({str(path)!r}), t.CONFIG, target)
        target.tap(head.layers)
        head.features = t.features_of(target.decode(t.TEXT).hidden)
        head.decode(t.TEXT)
        {end or "pass"}
        gc.collect()
        print("lives")
    """
    lives(program)
