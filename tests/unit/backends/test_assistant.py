"""Gemma 4's assistants on llama.cpp, tiny and random, against NumPy."""

import numpy as np
import pytest

from edgespec import Aborted, ConfigError, ContextFull, DecodeError, ModelError
from edgespec.backends.base import FINAL
from tests.helpers import llama_heads, tiny_gemma4, tiny_models
from tests.helpers.gguf_files import ARRAY, BOOL, STRING, TOKENS, UINT32
from tests.helpers.llama_heads import (
    CONFIG,
    EXACT,
    LONG,
    N_CTX,
    TEXT,
    OtherEngine,
    Pair,
    lives,
    llama_cpp,
    stop,
)  # fmt: skip

pytestmark = pytest.mark.llama_cpp


def opened(folder, config=EXACT):
    """Open a target and its assistant."""
    paths = tiny_gemma4.write_target(folder), tiny_gemma4.write_assistant(folder)
    return Pair(*paths, config)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    made = opened(tmp_path_factory.mktemp("gemma4"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def in_flash(tmp_path_factory):
    made = opened(tmp_path_factory.mktemp("gemma4"), CONFIG)
    yield made
    made.close()


def near(found, expected, most=3e-3):
    """Return as `llama_heads.near`: the engine reads x · Φ(x) from a table of float16."""
    return llama_heads.near(found, expected, most)


def test_its_facts(pair):
    head = pair.head
    assert (head.kind, head.layers, head.max_depth, head.n_states) == ("mtp", (FINAL,), 0, 1)
    assert head.n_ctx == N_CTX
    assert llama_cpp.is_head(head.path)
    facts = llama_cpp.head_facts(head.path)
    assert (facts.kind, facts.layers, facts.sizes.hidden_size) == ("mtp", (FINAL,), 32)
    assert facts.read_size == facts.size
    assert facts.misfit(llama_cpp.target_sizes(pair.target.path)) == ""


@pytest.mark.parametrize("n", [2, 5, 40, 150])
def test_rows_are_those_of_numpy(pair, n):
    head, reference = pair.begin(LONG[:n]), tiny_gemma4.Reference(LONG[: n - 1])
    assert not pair.target._taps.of_outputs
    assert near(head.features.of(0, n - 1)[:, 0][-1], reference.states[-1])
    row, state = reference.guess(LONG[n - 1 : n])
    assert near(head.decode(LONG[:n]).logits[0], row)
    assert head.n_past == n
    row, state = reference.guess([9], state)
    assert near(head.grow([9], [-1]).logits[0], row)
    assert near(head.grow([7], [0]).logits[0], reference.guess([7], state)[0])
    assert head.n_past == n + 2


@pytest.mark.parametrize("flash", [False, True])
def test_a_tree_at_once(pair, in_flash, flash):
    head, reference = (in_flash if flash else pair).begin(TEXT), tiny_gemma4.Reference(TEXT[:-1])
    rows = head.decode_tree([*TEXT, 20, 21, 22], [-1, 0, -1]).logits
    for row, path in zip(rows, ([], [20], [20, 21], [22]), strict=True):
        expected, _ = reference.guess([TEXT[-1], *path])
        assert near(row, expected, 1e-2 if flash else 3e-3)


def test_the_target_is_left_as_it_was(in_flash, tmp_path):
    """To the last bit, whatever the head does in between."""
    head, target = in_flash.begin(TEXT), in_flash.target
    alone = llama_cpp.LlamaCppModel(tiny_gemma4.write_target(tmp_path), CONFIG)
    alone.decode(TEXT[:-1])
    text = list(TEXT)
    for i in range(5):
        head.decode(text[head.n_past :])
        head.grow([5, 6, 7], [-1, -1, -1])
        head.grow([8, 9], [0, 2])
        head.keep(())
        tree = [text[-1], 5, 8, 6], [-1, 0, -1]
        expected = alone.decode_tree(*tree).logits.copy()
        head.features.append(target.n_past, (found := target.decode_tree(*tree)).hidden[:1])
        assert np.array_equal(found.logits, expected)
        for model in (target, alone):
            model.keep([0])
        text += [5, 60 + i]
        head.truncate(len(text) - 3)
    alone.close()


def test_a_full_target_leaves_no_place_for_guesses(pair):
    head = pair.begin(LONG)
    head.decode(LONG)
    pair.target.decode(LONG[: N_CTX - pair.target.n_past])
    with pytest.raises(ContextFull):
        head.grow([5], [-1])
    assert head.n_past == len(LONG)
    assert pair.target.n_past == N_CTX


def test_an_abort_a_failure_and_ctrl_c_leave_both(pair, monkeypatch):
    head, reference = pair.begin(LONG), tiny_gemma4.Reference(LONG[:-1])
    row, state = reference.guess(LONG[-1:])
    for code, error in ((2, Aborted), (-3, DecodeError), (None, KeyboardInterrupt)):
        for grows in (False, True):
            head.truncate(0)
            head.decode(LONG[: 150 if grows else 100])
            stop(monkeypatch, code)
            with pytest.raises(error):
                head.grow([3], [-1]) if grows else head.decode(LONG[100:])
            monkeypatch.undo()
            assert head.n_past == (150 if grows else 100)
            assert pair.target.n_past == 149
            if not grows:
                assert near(head.decode(LONG[100:]).logits[0], row)
            assert near(head.grow([9], [-1]).logits[0], reference.guess([9], state)[0])


def test_a_target_that_has_another_cache_now_is_said(tmp_path):
    made = opened(tmp_path, CONFIG)
    head = made.begin(TEXT)
    head.decode(TEXT)
    made.target.tap([2])
    with pytest.raises(DecodeError, match="looks at a cache that its target has given up"):
        head.grow([5], [-1])
    assert made.target.decode([3]).logits.shape == (1, len(TOKENS))
    made.close()


def pattern(*layers):
    return {"attention__sliding_window_pattern": (ARRAY, (BOOL, list(layers)))}


MORE_TOKENS = [*TOKENS, b"more"]
REFUSED = {
    "some layers": ({"nextn_predict_layers": (UINT32, 2)}, "2 of its 3 layers guess, expected all"),
    "no windows": (pattern(False, False, False), "3 of its 3 layers guess, expected all, one with"),
    "two windows": (pattern(True, False), "a value for each layer"),
    "no pattern": (pattern() | {"attention__sliding_window_pattern": None}, "is None, expected a"),
    "window": ({"attention__sliding_window": (UINT32, 0)}, "sliding_window is 0, expected a numb"),
    "width": ({"embedding_length_out": (UINT32, 64)}, "64 numbers a state, and this one has 32"),
    "no width": ({"embedding_length_out": None}, "embedding_length_out is 0, expected a number"),
    "keys": (
        {"attention__key_length_swa": (UINT32, 16), "attention__value_length_swa": (UINT32, 16)},
        "layer 0 looks at 2 heads of 16 numbers with a sliding window, the target has 2 heads of 8",
    ),
    "whole keys": (
        {"attention__key_length": (UINT32, 32), "attention__value_length": (UINT32, 32)},
        "layer 2 looks at 2 heads of 32 numbers over the whole text",
    ),
    "values": (
        {"attention__value_length": (UINT32, 32)},
        "layer 2 looks at 2 heads of 16 numbers and values of 32 over the whole text, the target",
    ),
    "values not said": (
        {"attention__value_length_swa": None}, "8 numbers and values of 0 with a sliding window"
    ),
    "rotation not said": (
        {"rope__dimension_count_swa": None}, "16 numbers of a head are rotated, expected at most 8"
    ),
    "heads": ({"attention__head_count_kv": (UINT32, 4)}, "layer 0 looks at 4 heads of 8 numbers"),
    "odd heads": ({"attention__head_count": (UINT32, 5)}, "5.* heads over .*2.*, expected multipl"),
    "heads not said": ({"attention__head_count": None}, "expected some in each layer"),
    "no heads": ({"attention__head_count_kv": (UINT32, 0)}, "expected some in each layer"),
    "rotated": (
        {"rope__dimension_count_swa": (UINT32, 10)}, "10 numbers .* are rotated, expected at most 8"
    ),
    "not rotated": ({"rope__dimension_count": (UINT32, 0)}, "dimension_count is 0, expected some"),
    "oddly": ({"rope__dimension_count": (UINT32, 3)}, "3 numbers .* are rotated, expected an even"),
    "vocabulary": (
        {
            "tokenizer.ggml.tokens": (ARRAY, (STRING, MORE_TOKENS)),
            "tokenizer.ggml.scores": None,
            "tokenizer.ggml.token_type": (ARRAY, (5, [1] * len(MORE_TOKENS))),
        },
        "260 tokens of vocabulary, and this one has 259;",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(pair, tmp_path, case):
    changed, message = REFUSED[case]
    path = tiny_gemma4.write_assistant(tmp_path, **changed)
    with pytest.raises((ConfigError, ModelError), match=message):
        llama_cpp.open_head(path, EXACT, pair.target)


@pytest.mark.parametrize("name", sorted(tiny_gemma4.assistant_weights()))
def test_a_file_without_some_weights_is_refused(pair, tmp_path, name):
    weights = tiny_gemma4.assistant_weights()
    del weights[name]
    path = tiny_gemma4.write_assistant(tmp_path, weights)
    with pytest.raises(ModelError, match=name.rpartition(".")[0]):
        llama_cpp.open_head(path, EXACT, pair.target)


@pytest.mark.parametrize("name", sorted(tiny_gemma4.assistant_weights()))
def test_weights_of_another_shape_are_refused(pair, tmp_path, name):
    weights = tiny_gemma4.assistant_weights()
    weights[name] = np.zeros((3, 7), np.float32)
    path = tiny_gemma4.write_assistant(tmp_path, weights)
    with pytest.raises(ModelError, match=rf"{name.rpartition('.')[0]}|embeddings are \(7, 3\)"):
        llama_cpp.open_head(path, EXACT, pair.target)


def test_targets_that_cannot_be_assisted_are_said(tmp_path):
    path = tiny_gemma4.write_assistant(tmp_path)
    with pytest.raises(ConfigError, match="keys and values of its target, which runs on another"):
        llama_cpp.open_head(path, CONFIG, OtherEngine())
    target = llama_cpp.LlamaCppModel(tiny_models.write(tmp_path, "llama"), CONFIG)
    with pytest.raises(ConfigError, match="assists gemma4, the target has the architecture 'llama"):
        llama_cpp.open_head(path, CONFIG, target)
    target.close()
    last = [*tiny_gemma4.PATTERN[:-2], False, True]
    weights = tiny_gemma4.target_weights()
    for i, j in ((4, 5),):
        for name in [name for name in weights if name.startswith(f"blk.{i}.")]:
            other = name.replace(f"blk.{i}.", f"blk.{j}.")
            weights[name], weights[other] = weights[other], weights[name]
    other = tiny_gemma4.write_target(tmp_path, weights, **pattern(*last))
    target = llama_cpp.LlamaCppModel(other, CONFIG)
    with pytest.raises(ConfigError, match="layer 0 looks at 2 heads of 8 numbers with a sliding"):
        llama_cpp.open_head(path, CONFIG, target)
    target.close()


def test_nothing_ends_the_process(tmp_path):
    """Some of these files would, if they came to the engine."""
    program = f"""
        from pathlib import Path
        from edgespec import ConfigError, ModelError
        from tests.unit.backends import test_assistant as t
        folder = Path({str(tmp_path)!r})
        target = t.llama_cpp.LlamaCppModel(t.tiny_gemma4.write_target(folder), t.CONFIG)
        for case, (changed, _) in t.REFUSED.items():
            path = t.tiny_gemma4.write_assistant(folder, **changed)
            try:
                t.llama_cpp.open_head(path, t.CONFIG, target).decode(t.TEXT)
                print("opened", case)
            except (ConfigError, ModelError):
                pass
        head = t.llama_cpp.open_head(t.tiny_gemma4.write_assistant(folder), t.CONFIG, target)
        head.decode(t.LONG, 32)
        target.decode(t.TEXT)
        target.tap(head.layers)
        head.truncate(0)
        head.decode(t.TEXT * 9, 32)
        head.grow([4] * 32, [-1] * 32)
        print("lives")
    """
    lives(program)


@pytest.mark.parametrize("end", ["", "del target, head", "head.close(); target.close()"])
@pytest.mark.parametrize("renewed", [False, True])
def test_an_assistant_goes_before_its_target(tmp_path, end, renewed):
    program = f"""
        import gc
        from pathlib import Path
        from tests.unit.backends import test_assistant as t
        made = t.opened(Path({str(tmp_path)!r}), t.CONFIG)
        made.begin(t.TEXT).decode(t.TEXT)
        head, target = made.head, made.target
        {"target.tap([2])" if renewed else "pass"}
        del made
        {end or "pass"}
        gc.collect()
        print("lives")
    """
    lives(program)
