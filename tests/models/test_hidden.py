"""Hidden states out of llama.cpp, on real weights."""

import numpy as np
import pytest

from edgespec import EngineConfig
from edgespec.backends.base import FINAL
from tests.helpers import libllama

llama_cpp = libllama.require()

from edgespec.backends.llama_cpp import hidden  # noqa: E402

pytestmark = pytest.mark.llama_cpp

TEXT = "The history of the bicycle begins in 1817, when a two-wheeled running machine"


@pytest.fixture
def model(smollm2):
    model = llama_cpp.LlamaCppModel(smollm2, EngineConfig(n_ctx=256, n_batch=64, n_threads=2))
    yield model
    model.close()


def states(model, layers, n_rows=1):
    """Return the states and rows of the text, and those of eight further tokens."""
    tokens = model.tokenizer.encode(TEXT)
    model.tap(layers)
    model.truncate(0)
    first = model.decode(tokens, n_rows)
    found = [first.hidden.copy(), first.logits.copy()]
    more = model.decode(tokens[:8], 8)
    return [*found, more.hidden.copy(), more.logits.copy()]


def test_given_and_watched_states_are_equal_to_the_last_bit(model, monkeypatch):
    layers = (0, 2, 15, 27)
    given = states(model, layers)
    assert not model._taps.watch
    monkeypatch.setattr(hidden, "LAYER_INPUTS", ("llama_no_such_function",))
    model.tap(())
    watched = states(model, layers)
    assert model._taps.watch
    assert all(map(np.array_equal, given, watched))


def test_final_states_of_both_kinds_are_equal_to_the_last_bit(model):
    given = states(model, (FINAL,))
    assert not model._taps.watch
    watched = states(model, (FINAL, model.n_layer))
    assert model._taps.watch
    assert np.array_equal(given[0][:, 0], watched[0][:, 0])
    assert np.array_equal(given[2][:, 0], watched[2][:, 0])


def test_rows_are_those_without_taps_to_the_last_bit(model):
    tokens = model.tokenizer.encode(TEXT)
    plain = model.decode(tokens, 1).logits.copy()
    assert np.array_equal(states(model, (2, 15, 27))[1], plain)


def test_a_model_without_taps(gemma):
    model = llama_cpp.LlamaCppModel(gemma, EngineConfig(n_ctx=256, n_batch=64, n_threads=2))
    found = states(model, (0, 1, model.n_layer, FINAL))[0]
    first = found[:, 0]
    assert np.isfinite(found).all()
    tokens = model.tokenizer.encode(TEXT)
    again = tokens.index(tokens[-1]), len(tokens) - 1
    assert np.array_equal(first[again[0]], first[again[1]])  # an embedding, of the token only
    model.close()


@pytest.mark.parametrize("layers", [(2, 30, FINAL), (2, 15, 27)], ids=str)
@pytest.mark.long("measures the widths of real weights")
def test_rows_that_do_not_depend_on_their_number_stay_so(smollm2, layers):
    config = EngineConfig(n_ctx=256, n_batch=64, n_threads=1, batch_invariant=True)
    model = llama_cpp.LlamaCppModel(smollm2, config)
    tokens = model.tokenizer.encode(TEXT)
    model.decode(tokens[:-3], 0)
    alone = np.concatenate([model.decode([token]).logits.copy() for token in tokens[-3:]])
    model.tap(layers)
    model.truncate(len(tokens) - 3)
    outputs = model.decode(tokens[-3:], 3)
    assert outputs.hidden.shape == (3, len(layers), model.hidden_size)
    if not model.rows_apart:
        pytest.skip("this processor has no kernels whose rows are equal")
    assert np.array_equal(outputs.logits, alone)
    model.truncate(0)
    found = model.decode(tokens, 3)
    assert np.array_equal(found.logits, alone)
    assert len(found.hidden) == len(tokens)
    model.close()
