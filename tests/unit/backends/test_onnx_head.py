"""Heads on onnxruntime against their papers in NumPy: rows, trees, what is forgotten, failures."""

import json

import numpy as np
import pytest

from edgespec import (
    Aborted,
    ContextFull,
    DecodeError,
    EngineMissing,
)
from edgespec.backends.base import Head
from edgespec.sampling.trees import path_to
from tests.helpers import head_files as files
from tests.helpers import mtp_files
from tests.helpers.head_makers import OF_STATES
from tests.helpers.selection import every

pytest.importorskip("onnx")
pytest.importorskip("gguf")
pytest.importorskip("edgespec.backends.llama_cpp", exc_type=EngineMissing)
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
folders = pytest.importorskip("tests.helpers.head_folders")
opened_heads = pytest.importorskip("tests.helpers.opened_heads")
close = opened_heads.close

TEXT = [7, 3, 60, 12, 5, 33, 3]
KINDS = OF_STATES | {
    "eagle3, normed residual": lambda: files.eagle3(norm_before_residual=True, fc="fc_norm"),
    "eagle3, normed output": lambda: files.eagle3(norm_output=True, fc="norm_before_fc", bias=True),
    "eagle3, whole vocabulary": lambda: files.eagle3(part=False, embedding=True),
    "eagle without bias": lambda: files.eagle(bias=False),
    "medusa, two blocks": lambda: files.medusa(n_blocks=2),
    "mlp speculator, tied": lambda: files.mlp_speculator(tied=True, scale_input=True),
    "dflash of speculators": lambda: files.dflash(speculators=True, bias=True),
    "dflash with windows": lambda: files.dflash(
        layer_types=["sliding_attention", "full_attention"], sliding_window=4,
        input_embedding_scale=2.5, output_multiplier=0.5, final_logit_softcapping=1.5,
    ),
    "dflash with windows to both sides": lambda: files.dflash(
        use_swa=True, swa_window_size=3, is_causal=False
    ),
    "mtp of Qwen3.5, untied": lambda: mtp_files.qwen(tied=False),
    "mtp of Qwen3.5, the target's matrices": lambda: mtp_files.qwen(own=False),
    "mtp of MiMo": lambda: mtp_files.mimo(),
}  # fmt: skip


@pytest.fixture(scope="module", params=every(3, KINDS, "more kinds of heads"))
def converted(request, tmp_path_factory):
    made = KINDS[request.param]()
    return folders.converted(tmp_path_factory.mktemp("heads"), made), made


@pytest.fixture
def opened(converted):
    found = opened_heads.Opened(*converted)
    found.head.features.append(0, found.taps)
    yield found
    found.head.close()


@pytest.fixture
def eagle3(tmp_path):
    made = files.eagle3()
    found = opened_heads.Opened(folders.converted(tmp_path, made), made)
    found.head.features.append(0, found.taps)
    yield found
    found.head.close()


def test_contracts(opened):
    assert isinstance(opened.head, Head)
    assert opened.head.kind == opened.made.kind
    assert opened.head.tokenizer == "the target's"
    taps = opened.made.kind in ("eagle3", "dflash")
    assert opened.head.layers == ((2, 4, 5) if taps else (-1,))
    guessing = opened.made.kind in ("medusa", "mlp_speculator", "dflash")
    assert opened.head.max_depth == (files.N_GUESSES if guessing else 0)
    assert json.dumps(opened.head.fingerprint())


def test_rows_are_those_of_the_reference(opened):
    found = opened.head.decode(TEXT, 3).logits
    assert found.shape == (3, files.VOCAB)
    assert found.dtype == np.float32
    for i, row in enumerate(found.copy()):
        text = TEXT[: len(TEXT) - 2 + i]
        close(row, opened.rows(text)[0])


def test_one_by_one_equals_at_once(opened):
    for i, token in enumerate(TEXT):
        row = opened.head.decode([token]).logits[0]
        close(row, opened.rows(TEXT[: i + 1])[0])
    assert opened.head.n_past == len(TEXT)


def test_guesses_along_a_chain(opened):
    path = [9, 8, 41, 2, 30][: opened.depth(5)]
    expected = opened.rows(TEXT, path)
    close(opened.head.decode(TEXT).logits[0], expected[0])
    for i, token in enumerate(path):
        row = opened.head.grow([token], [i - 1]).logits[0]
        close(row, expected[i + 1])
    assert opened.head.n_past == len(TEXT) + len(path)


GROWTHS = [
    ([-1, -1],), ([-1], [0, 0]), ([-1, -1], [0, 1, -1], [2, 2, 3, 4]),
    ([-1, -1, -1], [2, 0], [4, 3, 0], [5, 6, 7, 5]),
]  # fmt: skip


@pytest.mark.parametrize("calls", GROWTHS, ids=str)
def test_nodes_of_a_tree_equal_their_paths(opened, calls):
    opened.head.decode(TEXT, 0)
    tokens, parents = [], []
    for call in calls[: opened.depth(9)]:
        new = [(11 * (len(tokens) + i) + 4) % files.VOCAB for i in range(len(call))]
        tokens, parents = [*tokens, *new], [*parents, *call]
        rows = opened.head.grow(new, call).logits
        for i, row in enumerate(rows):
            path = path_to(parents, len(parents) - len(call) + i)
            close(row, opened.rows(TEXT, [tokens[node] for node in path])[-1])


@pytest.mark.parametrize("n_accepted", range(4))
def test_what_was_accepted_is_read_with_the_targets_own_states(opened, n_accepted):
    draft = [9, 8, 41][: opened.depth(3)]
    opened.head.decode(TEXT)
    for i, token in enumerate(draft):
        opened.head.grow([token], [i - 1])
    opened.head.keep(())
    assert opened.head.n_past == len(TEXT)
    text = [*TEXT, *draft[:n_accepted], 17]
    found = opened.head.decode(text[len(TEXT) :]).logits[0].copy()
    after = opened.head.grow([21], [-1]).logits[0].copy()
    fresh = opened.another()
    fresh.features.append(0, opened.taps)
    close(found, fresh.decode(text).logits[0])
    close(after, fresh.grow([21], [-1]).logits[0])
    close(np.stack([found, after]), opened.rows(text, [21]))
    fresh.close()


def test_a_tree_all_at_once(opened):
    parents = [-1, 0, 0, -1, 3] if opened.depth(9) > 1 else [-1, -1]
    nodes = [9, 8, 41, 2, 30][: len(parents)]
    rows = opened.head.decode_tree([*TEXT, *nodes], parents).logits
    close(rows[0], opened.rows(TEXT)[0])
    for i in range(len(nodes)):
        path = [nodes[node] for node in path_to(parents, i)]
        close(rows[i + 1], opened.rows(TEXT, path)[-1])


def test_truncating_and_going_on(opened):
    opened.head.decode([1, 2, 3, 4, 5])
    opened.head.grow([6], [-1])
    opened.head.truncate(99)
    assert opened.head.n_past == 6
    opened.head.truncate(5)
    assert opened.head.n_past == 5
    opened.head.grow([6], [-1])
    opened.head.truncate(0)
    close(opened.head.decode(TEXT).logits[0], opened.rows(TEXT)[0])
    state = opened.head.checkpoint()
    opened.head.decode([1, 2])
    opened.head.restore(state)
    assert opened.head.n_past == len(TEXT)
    close(opened.head.decode([17]).logits[0], opened.rows([*TEXT, 17])[0])


def test_a_text_that_begins_later_goes_in_with_its_own_states(opened):
    opened.head.start = 5
    found = opened.head.decode(TEXT).logits[0]
    taps = opened.taps[4 : 4 + len(TEXT)]
    close(found, opened.reference.rows(TEXT, taps, [])[0])


@pytest.mark.parametrize(("first", "n"), [(3, 60), (0, 4), (2, 3), (50, 2)])
def test_states_that_are_missing_are_zeros(opened, first, n):
    opened.head.features.truncate(0)
    opened.head.features.append(first, opened.taps[first : first + n])
    found = opened.head.decode(TEXT).logits[0]
    taps = np.zeros_like(opened.taps[: len(TEXT)])
    for i in range(len(TEXT)):
        if first <= i - 1 < first + n:
            taps[i] = opened.taps[i - 1]
    close(found, opened.reference.rows(TEXT, taps, [])[0])


def test_a_long_text_is_read_in_pieces(opened):
    opened.options["n_ctx"] = 400
    head, n = opened.another(), 300
    taps = folders.states(n, len(head.layers))
    head.features.append(0, taps)
    text = [(13 * i + 5) % files.VOCAB for i in range(n)]
    found = head.decode(text, 2).logits.copy()
    before = np.concatenate([np.zeros_like(taps[:1]), taps[:-1]])
    close(found[1], opened.reference.rows(text, before, [])[0])
    close(found[0], opened.reference.rows(text[:-1], before[:-1], [])[0])
    head.close()


def test_tokens_outside_the_heads_vocabulary_are_never_guessed(eagle3):
    outside = np.setdiff1d(np.arange(files.VOCAB), files.D2T)
    for rows in (eagle3.head.decode(TEXT, 2).logits, eagle3.head.grow([1, 2, 3], [-1] * 3).logits):
        assert np.isneginf(rows[:, outside]).all()
        assert np.isfinite(rows[:, files.D2T]).all()


def test_rows_lie_in_a_buffer_that_is_used_again(eagle3):
    eagle3.head.decode(TEXT, 4)
    first = eagle3.head.grow([1, 2], [-1, -1]).logits
    second = eagle3.head.grow([3, 4], [0, 1]).logits
    assert np.shares_memory(first, second)


def test_no_rows_and_no_tokens(opened):
    assert opened.head.decode(TEXT, 0).logits.shape == (0, files.VOCAB)
    close(opened.head.grow([9], [-1]).logits[0], opened.rows(TEXT, [9])[1])
    assert opened.head.decode([], 0).logits.shape == (0, files.VOCAB)
    assert opened.head.n_past == len(TEXT)


# --- what fails ---------------------------------------------------------------------------------


def test_beyond_the_context_nothing_is_appended(opened):
    room = opened.head.n_ctx
    text = [(5 * i + 1) % files.VOCAB for i in range(room - 1)]
    opened.head.decode(text, 0)
    with pytest.raises(ContextFull):
        opened.head.decode([1, 2])
    assert opened.head.n_past == room - 1
    opened.head.grow([1], [-1])
    with pytest.raises(ContextFull):
        opened.head.grow([1], [-1])
    assert opened.head.n_past == room - 1
    opened.head.decode([1])
    with pytest.raises(ContextFull):
        opened.head.grow([1], [-1])


def test_nodes_that_cannot_be(opened):
    with pytest.raises(ValueError, match="decode it first"):
        opened.head.grow([1], [-1])
    opened.head.decode(TEXT)
    for parents in ([0], [-2], [5]):
        with pytest.raises(ValueError, match="there are 0 nodes"):
            opened.head.grow([1], parents)
    with pytest.raises(ValueError, match="at most 32 a call"):
        opened.head.grow([1] * 33, [-1] * 33)
    with pytest.raises(ValueError, match="keeps no guesses"):
        opened.head.keep([0])
    opened.head.truncate(3)
    with pytest.raises(ValueError, match="decode it first"):
        opened.head.grow([1], [-1])
    opened.head.decode(TEXT[3:])
    if opened.head.max_depth:
        opened.head.grow([1], [-1])
        opened.head.grow([1], [0])
        with pytest.raises(ValueError, match="guesses 3 tokens"):
            opened.head.grow([1], [1])
        assert opened.head.n_past == len(TEXT)  # no node is left


@pytest.mark.parametrize("call", ["decode", "grow"])
def test_a_call_that_fails_leaves_a_usable_head(opened, monkeypatch, call):
    head = opened.head
    head.decode(TEXT[:4], 0)
    if call == "decode":
        head.grow([1], [-1])
    run = head._run
    with monkeypatch.context() as patch:
        patch.setattr(head, "_run", lambda session, binding, **rest: run(_Broken(), None, **rest))
        with pytest.raises(DecodeError, match="no memory"):
            head.decode(TEXT[4:]) if call == "decode" else head.grow([2], [-1])
    assert head.n_past == 4
    close(head.decode(TEXT[4:]).logits[0], opened.rows(TEXT)[0])
    close(head.grow([9], [-1]).logits[0], opened.rows(TEXT, [9])[1])


class _Broken:
    def run_with_iobinding(self, *_):
        raise RuntimeError("no memory")


def test_an_interrupted_guess_leaves_no_node(opened, monkeypatch):
    head = opened.head
    head.decode(TEXT)
    head.grow([1], [-1])

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(head._steps, "guess", interrupted)
        with pytest.raises(KeyboardInterrupt):
            head.grow([2], [0])
    assert head.n_past == len(TEXT)
    close(head.grow([9], [-1]).logits[0], opened.rows(TEXT, [9])[1])


def test_an_abort_leaves_a_usable_head(opened):
    with pytest.raises(Aborted):
        opened.head.decode(TEXT * 5, abort=lambda: "cancelled")
    opened.head.truncate(0)
    close(opened.head.decode(TEXT).logits[0], opened.rows(TEXT)[0])


def test_close_twice(opened):
    opened.head.close()
    opened.head.close()
