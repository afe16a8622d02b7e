"""Hybrid models, whose recurrent state llama.cpp can take back a few tokens while their states are
given to a head: only where that is the state of the text that is left.
"""

import numpy as np
import pytest

from edgespec import Aborted, CannotTruncate, EngineConfig, OutOfMemory
from edgespec.backends.base import FINAL
from edgespec.cache.token_cache import TokenCache
from tests.helpers import libllama, tiny_mtp
from tests.helpers.gguf_files import UINT32
from tests.helpers.stopping import stop_within
from tests.helpers.tiny_models import N_LAYER

libllama.require()

from edgespec.backends.llama_cpp import LlamaCppModel, hidden  # noqa: E402
from edgespec.backends.llama_cpp.context import ROLLBACK  # noqa: E402

pytestmark = pytest.mark.llama_cpp

CONFIG = EngineConfig(n_ctx=256, n_batch=64, n_threads=1, flash_attn="on")
TEXT = [3 + (7 * i) % 250 for i in range(40)]


@pytest.fixture(scope="module", params=["qwen35", "qwen35moe"])
def path(request, tmp_path_factory):
    return tiny_mtp.write(tmp_path_factory.mktemp("hybrid"), request.param)


@pytest.fixture(scope="module")
def models(path):
    made = [LlamaCppModel(path, CONFIG) for _ in range(2)]
    yield made
    for model in made:
        model.close()


@pytest.fixture
def model(models):
    models[0].truncate(0)
    models[0].tap([FINAL])
    return models[0]


@pytest.fixture
def expected(models):
    """Return the row after a text, evaluated at once."""

    def row(tokens):
        models[1].truncate(0)
        return models[1].decode(tokens).logits[0].copy()

    return row


def near(found, row):
    assert np.abs(found - row).max() < 0.02 * np.abs(row).max()
    return True


def test_it_goes_back_only_while_it_gives_states(model):
    assert not model.capabilities.truncate
    assert model.capabilities.max_leaves == 1
    assert model.capabilities.rollback == ROLLBACK
    model.tap([2])
    assert model.capabilities.rollback == ROLLBACK
    model.tap(())
    assert model.capabilities.rollback == 0
    model.decode(TEXT)
    with pytest.raises(CannotTruncate, match="the memory of this model cannot be cut"):
        model.truncate(39)


def test_it_goes_back_for_heads_that_are_not_in_its_file(tmp_path):
    behind = f"blk.{N_LAYER}."
    weights = {n: w for n, w in tiny_mtp.mtp_weights("qwen35").items() if not n.startswith(behind)}
    changed = {"block_count": (UINT32, N_LAYER), "nextn_predict_layers": None}
    path = tiny_mtp.write(tmp_path, "qwen35", weights=weights, **changed)
    model = LlamaCppModel(path, CONFIG)
    assert model.capabilities.rollback == 0
    model.tap([1])
    assert model.capabilities.rollback == ROLLBACK
    model.close()


def test_an_architecture_that_cannot_go_back_is_not_asked_to(tmp_path):
    model = LlamaCppModel(tiny_mtp.write(tmp_path, "qwen3next"), CONFIG)
    context = model.native.context
    model.tap([FINAL])
    assert model.capabilities.rollback == 0
    assert model.native.context == context
    model.close()


@pytest.mark.parametrize("tapped", [(), [FINAL]], ids=["to plain", "from plain"])
def test_text_and_checkpoints_outlive_the_change(model, expected, tapped):
    model.tap([] if tapped else [FINAL])
    model.decode(TEXT)
    state = model.checkpoint()
    model.decode([7, 8])
    model.tap(tapped)
    assert model.n_past == len(TEXT) + 2
    assert near(model.decode([9]).logits[0], expected([*TEXT, 7, 8, 9]))
    model.restore(state)
    assert near(model.decode([5]).logits[0], expected([*TEXT, 5]))


def test_what_was_taken_back_stays_so_behind_the_change(model, expected):
    model.decode(TEXT)
    model.decode([7, 8, 9, 10])
    model.truncate(len(TEXT) + 2)
    model.tap(())
    assert near(model.decode([5]).logits[0], expected([*TEXT, 7, 8, 5]))


def test_without_memory_it_does_not_go_back(model, expected, monkeypatch):
    model.tap(())
    model.decode(TEXT)

    def full(*_):
        raise OutOfMemory("no room")

    monkeypatch.setattr(hidden, "new_context", full)
    model.tap([FINAL])
    assert model.capabilities.rollback == 0
    outputs = model.decode([9])
    assert outputs.hidden.shape == (1, 1, model.hidden_size)
    assert near(outputs.logits[0], expected([*TEXT, 9]))
    model.tap(())
    assert model.decode([10]).hidden is None


@pytest.mark.parametrize("n_drafted", [1, 2, 3, 6])
@pytest.mark.parametrize("n_dropped", range(ROLLBACK + 1))
def test_rejected_tokens_are_dropped_step_after_step(model, expected, n_drafted, n_dropped):
    if n_dropped > n_drafted:
        return
    model.decode(TEXT)
    text = list(TEXT)
    for step in range(4):
        tokens = [50 + step, *range(60, 60 + n_drafted)]
        model.decode(tokens, len(tokens))
        text += tokens[: len(tokens) - n_dropped]
        model.truncate(len(text))
    assert model.n_past == len(text)
    assert near(model.decode([99]).logits[0], expected([*text, 99]))


@pytest.mark.parametrize(
    ("calls", "n_past"),
    [([40], 36), ([40, 1], 40), ([38, 3], 38), ([40, 1], 39), ([36, 5], 37)],
    ids=["more", "a whole call", "a whole longer call", "more than a call", "more than ever"],
)
def test_what_is_gone_is_not_taken_back(model, expected, calls, n_past):
    """The engine says of most of these that it can do them, and gives the state of another text."""
    text = []
    for n in calls:
        tokens = [(7 * len(text) + i) % 250 + 3 for i in range(n)]
        model.decode(tokens)
        text += tokens
    with pytest.raises(CannotTruncate, match="tokens cannot be dropped after an evaluation of"):
        model.truncate(n_past)
    assert near(model.decode([9]).logits[0], expected([*text, 9]))


def test_it_goes_back_once_behind_an_evaluation(model, expected):
    model.decode(TEXT)
    model.truncate(39)
    with pytest.raises(CannotTruncate):
        model.truncate(38)
    assert near(model.decode([9]).logits[0], expected([*TEXT[:39], 9]))
    model.truncate(0)
    assert near(model.decode(TEXT).logits[0], expected(TEXT))


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_calls_leaves_the_state_of_the_text(model, expected, seed):
    rng, text, kept = np.random.default_rng(seed), [], None
    for _ in range(60):
        action = rng.integers(5)
        if action < 2 and len(text) < 200:
            tokens = [int(token) for token in rng.integers(3, 250, rng.integers(1, 7))]
            row = model.decode(tokens).logits[0].copy()
            text += tokens
            assert near(row, expected(text))
        elif action == 2:
            kept = list(text), model.checkpoint()
        elif action == 3 and kept and kept[0] == text[: len(kept[0])]:
            text = list(kept[0])
            model.restore(kept[1])
        elif n_dropped := min(int(rng.integers(1, 5)), len(text)):
            try:
                model.truncate(len(text) - n_dropped)
                del text[len(text) - n_dropped :]
            except CannotTruncate:
                pass
        assert model.n_past == len(text)


@pytest.mark.parametrize("layers", [[2], [6]])
def test_tapped_in_between(model, expected, layers):
    model.decode(TEXT)
    model.truncate(38)
    model.tap(layers)
    with pytest.raises(CannotTruncate):
        model.truncate(37)
    assert near(model.decode([9, 10, 11], 3).logits[0], expected([*TEXT[:38], 9]))
    model.truncate(39)
    assert near(model.decode([12]).logits[0], expected([*TEXT[:38], 9, 12]))


def test_behind_an_abort_nothing_is_left(model, expected, monkeypatch):
    model.decode(TEXT)
    stop_within(monkeypatch)
    with pytest.raises(Aborted):
        model.decode(TEXT)
    assert model.n_past in (0, len(TEXT))
    model.truncate(0)
    assert near(model.decode(TEXT).logits[0], expected(TEXT))


def test_short_drafts_take_few_checkpoints(model, expected, monkeypatch):
    taken = []
    checkpoint = model.checkpoint
    monkeypatch.setattr(model, "checkpoint", lambda: taken.append(1) or checkpoint())
    cache, text = TokenCache(model), list(TEXT)
    cache.decode(text, 1)
    for step in range(20):
        cache.protect(3)
        cache.decode([50 + step, 60, 61, 62], 4)
        text += [50 + step, 60]
        cache.truncate(len(text))
    assert len(taken) == 1
    assert cache.tokens == text
    cache.truncate(len(text) - 1)  # again: goes back to the checkpoint
    assert cache.tokens == text[:-1]
    assert near(cache.decode([9]).logits[0], expected([*text[:-1], 9]))
    cache.protect(ROLLBACK + 1)
    cache.protect()
    assert len(taken) == 3
