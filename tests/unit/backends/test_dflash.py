"""DFlash heads on llama.cpp, tiny and random, against NumPy."""

import numpy as np
import pytest

from edgespec import ConfigError, ContextFull, DecodeError, ModelError
from tests.helpers import tiny_dflash, tiny_models
from tests.helpers.gguf_files import ARRAY, BOOL, INT32, UINT32
from tests.helpers.llama_heads import (
    EXACT,
    LONG,
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

DEPTH = tiny_dflash.BLOCK - 1
WIDTH = tiny_models.WIDTH


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    with tapped(tmp_path_factory.mktemp("target"), tiny_dflash.LAYERS, EXACT) as model:
        yield model


@pytest.fixture(scope="module")
def states(target):
    """Return the target's states of LONG."""
    return states_of(target, LONG)


@pytest.fixture
def opened(tmp_path, states):
    with opening(tmp_path, tiny_dflash.write, states) as opened:
        yield opened


@pytest.fixture
def head(opened):
    return opened()


def block(states, n, token, start=0, known=0, reference=None):
    """Return the rows of all depths after a text of n tokens, the last of which is `token`."""
    reference = reference or tiny_dflash.Reference(tiny_dflash.dflash_weights())
    first = max(start - 1, known, 0)
    positions = np.arange(first, n - 1)
    return reference.rows(states[first : n - 1], positions, token, n - 1)[1:]


def rows_of(head, tokens):
    """Read tokens and return the rows of all depths after them."""
    rows = [head.decode(tokens).logits[0].copy()]
    for depth in range(DEPTH - 1):
        rows.append(head.grow([5], [depth - 1]).logits[0].copy())
    head.keep(())
    return np.array(rows)


def test_its_facts(head):
    assert (head.kind, head.layers, head.max_depth) == ("dflash", tiny_dflash.LAYERS, DEPTH)
    assert llama_cpp.is_head(head.path)
    assert not llama_cpp.has_own_head(head.path)


@pytest.mark.parametrize("n", [1, 2, 5, 40, 150])
def test_rows_are_those_of_numpy(head, states, n):
    expected = block(states, n, LONG[n - 1])
    for _ in range(2):  # the block leaves nothing after
        assert near(rows_of(head, LONG[:n]), expected)
        assert head.n_past == n
        head.truncate(n - 1)
        assert near(rows_of(head, LONG[n - 1 : n]), expected)
        head.truncate(0)


@pytest.mark.parametrize("n", [1, 5, 40, 150])
def test_windows_are_those_of_numpy(opened, states, n):
    head = opened(**windowed([True, False]))
    reference = tiny_dflash.Reference(tiny_dflash.dflash_weights(), windows=(9, 0))
    expected = block(states, n, LONG[n - 1], reference=reference)
    for _ in range(2):
        assert near(rows_of(head, LONG[:n]), expected)
        head.truncate(n // 2)
        assert near(rows_of(head, LONG[n // 2 : n]), expected)
        head.truncate(0)


def test_heads_for_targets_of_pictures_have_the_positions_of_text(opened, states):
    head = opened(rope__dimension_sections=(ARRAY, (INT32, [4, 0, 0, 0])))
    assert near(rows_of(head, LONG), block(states, len(LONG), LONG[-1]))


@pytest.mark.parametrize("start", [1, 37])
def test_a_cache_may_begin_later_in_the_text(head, states, start):
    head.start = start
    assert near(rows_of(head, LONG[start:90]), block(states, 90, LONG[89], start))


@pytest.mark.parametrize("known", [1, 30, 88, 89, 130])
def test_states_that_are_missing_at_first_take_no_cells(head, states, known):
    head.features = features_of(states[known:], known)
    assert near(rows_of(head, LONG[:90]), block(states, 90, LONG[89], known=min(known, 89)))
    assert head.n_past == 90


def test_states_that_are_missing_later_are_zeros(head, states):
    head.features = features_of(states[:40])
    head.decode(LONG[:60])
    gone = states.copy()
    gone[40:] = 0
    head.features = features_of(states[70:], 70)
    gone[70:] = states[70:]
    assert near(rows_of(head, LONG[60:90]), block(gone, 90, LONG[89]))


def test_nodes_have_the_row_of_their_depth(head, states):
    expected = block(states, len(TEXT), TEXT[-1])
    head.decode(TEXT, 0)
    parents = [[-1, -1], [0, 1, 0], [3]]
    depths = [[1, 1], [2, 2, 2], [3]]
    for call, found in zip(parents, depths, strict=True):
        assert near(head.grow([7] * len(call), call).logits, expected[found])
    assert head.n_past == len(TEXT) + 6
    rows = head.decode_tree([LONG[0], 4, 5, 6], (-1, 0, -1)).logits  # forgets the others
    assert rows.shape == (4, head.vocab_size)
    assert np.array_equal(rows[1], rows[3])
    assert head.n_past == len(TEXT) + 4
    head.keep(())
    assert head.n_past == len(TEXT) + 1


def test_the_block_fits_after_a_full_context(head, states):
    longer = np.tile(states, (4, 1, 1))[: head.n_ctx]
    head.features = features_of(longer)
    text = (LONG * 4)[: head.n_ctx]
    assert near(head.decode(text).logits[0], block(longer, head.n_ctx, text[-1])[0])
    with pytest.raises(ContextFull):
        head.grow([5], [-1])
    assert head.n_past == head.n_ctx


@pytest.mark.parametrize(("code", "error"), [(-3, DecodeError), (None, KeyboardInterrupt)])
def test_a_block_that_stops_leaves_a_usable_head(head, states, code, error, monkeypatch):
    stop(monkeypatch, code, n=2)  # the first call reads the text
    with pytest.raises(error):
        head.decode(TEXT)
    monkeypatch.undo()
    assert head.n_past == (0 if code else len(TEXT))
    head.truncate(len(TEXT) - 1)
    assert near(rows_of(head, TEXT[head.n_past :]), block(states, len(TEXT), TEXT[-1]))


def without(*names):
    weights = tiny_dflash.dflash_weights()
    return {name: value for name, value in weights.items() if name not in names}


def test_weights_of_the_target_are_used_where_a_head_has_none(opened, target, states):
    found = tiny_models.weights("llama")
    names = {"token_embd.weight": "embeddings", "output.weight": "output"}
    for lacking in (names, ["token_embd.weight"]):
        head = opened(target, without(*lacking))
        given = {names[name]: found[name] for name in lacking}
        weights = {"token_embd.weight": np.zeros(1), "output.weight": np.zeros(1)}
        reference = tiny_dflash.Reference(weights | without(*lacking), **given)
        expected = block(states, len(TEXT), TEXT[-1], reference=reference)
        target.tap([2])  # whatever becomes of the target's own context
        target.tap(tiny_dflash.LAYERS)
        assert near(rows_of(head, TEXT), expected)
    with pytest.raises(ConfigError, match="weights of its target, which runs on another engine"):
        opened(weights=without("token_embd.weight"))


def layers(*numbers):
    return {"target_layers": (ARRAY, (INT32, list(numbers)))}


def windowed(pattern, size=9):
    """Return the metadata of a head whose layers see so many tokens, where the pattern says so."""
    return {
        "attention__sliding_window": (UINT32, size),
        "attention__sliding_window_pattern": (ARRAY, (BOOL, pattern)),
    }


def more(**changed):
    return tiny_dflash.dflash_weights() | {n.replace("__", "."): v for n, v in changed.items()}


REFUSED = {
    "width": ({"embedding_length": (UINT32, 64)}, None, "64 numbers a state, and this one has 32;"),
    "layer": (layers(1, 3, 4, 7), None, "at least 7 layers, and this one has 6"),
    "no layers": (layers(), None, r"target_layers is \[\], expected some layers"),
    "fewer layers": (layers(1, 3), None, r"fc.weight is \(128, 32\), expected \(64, 32\)"),
    "heads": ({"attention__head_count_kv": (UINT32, 3)}, None, "4 heads over 3"),
    "rotated": ({"rope__dimension_count": (UINT32, 10)}, None, "10 numbers of a head are rotated"),
    "no block": ({"block_size": None}, None, "block_size is 0, expected a number"),
    "block of one": ({"block_size": (UINT32, 1)}, None, "a block has 1 tokens, expected 2 to 32"),
    "long block": ({"block_size": (UINT32, 33)}, None, "a block has 33 tokens, expected 2 to 32"),
    "no mask": ({"tokenizer.ggml.mask_token_id": None}, None, "mask_token_id is None"),
    "mask": ({"tokenizer.ggml.mask_token_id": (UINT32, 259)}, None, "mask_token_id is 259"),
    "embedding": (
        {}, more(token_embd__weight=np.zeros((100, 32), np.float32)), r"embeddings are \(32, 100\)"
    ),
    "markov": ({}, more(markov_w1__weight=np.zeros((4, 32), np.float32)), "has markov_w1.weight"),
    "sections": (
        {"rope__dimension_sections": (ARRAY, (INT32, [2, 1, 1, 0]))}, None, "one section of four"
    ),
    "window": ({"attention__sliding_window": (UINT32, 64)}, None, "pattern is None, expected"),
    "pattern": (windowed([True], 64), None, r"pattern is \[True\], expected a value for"),
    "no window": (windowed([True, False], 0), None, "sliding_window is 0, expected a number"),
    "half of its own": ({}, without("output.weight"), "embeddings and no output weights, expected"),
    "no norm": ({}, without("enc.output_norm.weight"), "enc.output_norm"),
    "no keys": ({}, without("blk.1.attn_k.weight"), "blk.1.attn_k"),
    "shape": ({}, more(output_norm__weight=np.ones(16, np.float32)), "output_norm"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(opened, case):
    metadata, weights, message = REFUSED[case]
    with pytest.raises((ConfigError, ModelError), match=message):
        opened(None, weights, **metadata)


def test_nothing_ends_the_process(tmp_path):
    """Some of these files would, if they came to the engine, and so would long texts at once."""
    refuses_all(tmp_path, "test_dflash", "tiny_dflash")
    program = f"""
        from edgespec import EngineConfig
        from pathlib import Path
        from tests.helpers.llama_heads import SETTINGS, OtherEngine
        from tests.unit.backends import test_dflash as t
        path = t.tiny_dflash.write(Path({str(tmp_path)!r}) / "head.gguf")
        for settings in ({{"n_batch": 512}}, {{"n_batch": 32}}, {{"flash_attn": "on"}}):
            config = EngineConfig(**(SETTINGS | settings))
            head = t.llama_cpp.open_head(path, config, OtherEngine())
            head.features = t.features_of(t.np.ones((150, 4, t.WIDTH), t.np.float32))
            for tokens in (t.LONG, t.LONG[:40]):
                head.decode(tokens)
        print("lives")
    """
    lives(program)
