"""What every batched model promises, run against each of them."""

import numpy as np
import pytest

from edgespec import ContextFull, EngineConfig
from edgespec.backends.base import BatchItem
from edgespec.backends.separate import SeparateModels
from edgespec.loading.local import open_model
from tests.helpers.serving import Shared, toy

ONNX = {
    "onnx, shared cache": {},
    "onnx, grown cache, mask": {"shared": False, "mask": True},
    "onnx, rows that differ alone": {"alone": 0.5},
}
SHARING = ["toys that share prefixes", "llama.cpp"]
SEPARATE = ["separate toys", "llama.cpp, invariant", *ONNX]


class Toys:
    """Toy models as one that can be batched."""

    def __init__(self, shared):
        self._shared, self.model = shared, toy()

    def batched(self, n_slots, n_ctx):
        models = [toy() for _ in range(n_slots)]
        return Shared(models, n_ctx) if self._shared else SeparateModels(models)

    def __getattr__(self, name):
        return getattr(self.model, name)


@pytest.fixture
def model(request, tmp_path):
    """A model whose weights can be batched, and which is the reference itself."""
    name = request.param
    if name in ONNX:
        onnx_models = pytest.importorskip("tests.helpers.onnx_models")
        made = open_model(onnx_models.save(tmp_path, **ONNX[name]), EngineConfig(n_ctx=64))
    elif name.startswith("llama.cpp"):
        pytest.importorskip("llama_cpp")
        config = EngineConfig(n_ctx=256, batch_invariant="invariant" in name)
        made = open_model(request.getfixturevalue("smollm2"), config)
    else:
        made = Toys(shared="share" in name)
    yield made
    made.close()


every = pytest.mark.parametrize("model", [*SHARING, *SEPARATE], indirect=True)
separate = pytest.mark.parametrize("model", SEPARATE, indirect=True)
sharing = pytest.mark.parametrize("model", SHARING, indirect=True)


def ids(model, n, factor=7):
    return [(factor * i + 3) % min(4000, model.vocab_size) for i in range(n)]


def rows_of(batched, *items):
    return [outputs.logits.copy() for outputs in batched.decode(items)]


def same(batched, found, alone):
    """Equal where sequences are evaluated one by one, else up to the noise between widths."""
    if not batched.shares_prefixes:
        return np.array_equal(found, alone)
    return np.abs(found - alone).max() < 1 and (found.argmax(1) == alone.argmax(1)).all()


@every
def test_each_slot_gives_the_rows_of_a_lone_model(model):
    batched = model.batched(3, 256)
    texts = [[i + 1, 2, 3, 4, i + 2] for i in range(3)]
    rows = rows_of(batched, *(BatchItem(i, text, 2) for i, text in enumerate(texts)))
    batched.truncate(1, 3)
    again = rows_of(batched, BatchItem(1, texts[1][3:], 2), BatchItem(0, [7], 1))
    for text, found in zip(texts, rows, strict=True):
        model.truncate(0)
        assert same(batched, found, model.decode(text, n_logits=2).logits)
    assert [part.shape for part in again] == [(n, model.vocab_size) for n in (2, 1)]
    assert (again[0].argmax(1) == rows[1].argmax(1)).all()
    if not batched.shares_prefixes:
        assert np.allclose(again[0], rows[1], atol=1e-5)
    batched.close()
    model.truncate(0)
    assert model.decode([1]).logits.shape == (1, model.vocab_size), "the weights are the model's"


@separate
def test_separate_slots_do_not_see_each_other(model):
    batched = model.batched(3, 256)
    assert not batched.shares_prefixes
    text = ids(model, 40)
    batched.decode([BatchItem(0, [9] * 30), BatchItem(1, text[:35])])
    rows = rows_of(
        batched, BatchItem(0, [9, 9, 9], 3), BatchItem(1, text[35:], 5), BatchItem(2, text, 2)
    )
    model.decode(text[:35], n_logits=0)
    assert np.array_equal(model.decode(text[35:], n_logits=5).logits, rows[1])
    batched.close()


@sharing
def test_a_slot_begins_with_the_prefix_of_another(model):
    batched = model.batched(3, 512)
    text, other = ids(model, 40), ids(model, 12, factor=5)
    batched.decode([BatchItem(0, text)])
    batched.copy(0, 2, 30)
    rows = rows_of(batched, BatchItem(2, other, 3), BatchItem(1, text[:20], 1))
    assert [len(part) for part in rows] == [3, 1]
    model.decode(text[:30], n_logits=0)
    alone = model.decode(other, n_logits=3).logits
    assert same(batched, rows[0], alone)
    batched.truncate(2, 30)
    again = rows_of(batched, BatchItem(2, other, 1))
    assert again[0][0].argmax() == alone[2].argmax()
    batched.close()


@sharing
def test_slots_share_their_memory(model):
    batched = model.batched(3, 256)
    batched.decode([BatchItem(0, [5] * 200)])
    with pytest.raises(ContextFull):
        batched.decode([BatchItem(1, [5] * 100)])
    batched.truncate(0, 100)
    assert len(rows_of(batched, BatchItem(1, [5] * 100, 1))[0]) == 1
    batched.close()
