"""One llama.cpp context of several texts: hidden states are switched, it is made larger and
smaller, one text is full, windows slide. What each text holds stays.
"""

import numpy as np
import pytest

from edgespec import ContextFull, EngineConfig
from edgespec.backends.base import FINAL, BatchItem
from edgespec.backends.llama_cpp import LlamaCppModel
from edgespec.backends.llama_cpp import hidden as hidden_module
from tests.helpers import libllama
from tests.helpers.selection import first

libllama.require()
pytestmark = pytest.mark.llama_cpp


def opened(path, n_ctx=256):
    return LlamaCppModel(path, EngineConfig(n_ctx=n_ctx, n_batch=64, n_threads=1))


def ids(n, factor):
    return [(factor * i * i + 7 * i + 100) % 4000 + 100 for i in range(n)]


SENTENCES = [
    "The history of the bicycle begins in 1817, when a two-wheeled machine was shown in Mannheim by"
    " the baron Karl von Drais, who",
    "def add(first, second):\n    return first + second\n\n\ndef subtract(first, second):\n",
    "Apples, pears, plums, cherries and quinces grow on trees; carrots and lettuce grow",
]


@pytest.fixture(params=first(1, ["smollm2", "gemma"], "a model with windows as well"))
def model(request):
    made = opened(request.getfixturevalue(request.param))
    yield made
    made.close()


@pytest.fixture
def texts(model):
    return [model.tokenizer.encode(text) for text in SENTENCES]


@pytest.fixture
def lone(model):
    """Return a function of a text: the last row when it is evaluated on its own."""
    other = opened(model.path)

    def row(text):
        other.truncate(0)
        return other.decode(text, 1).logits[0].copy()

    yield row
    other.close()


@pytest.fixture
def similar(model):
    """Return a function that checks that two rows differ by rounding only: the rows after another
    text correlate less.
    """
    least = 0.99 if "gemma" in model.path.name else 0.998

    def check(found, expected):
        assert np.corrcoef(found, expected)[0, 1] > least

    return check


def check(similar, batched, lone, texts, more=(7, 8)):
    """Go on with all texts, which the slots hold: together, and each alone."""
    rows = batched.decode([BatchItem(i, [more[0]], 1) for i in range(len(texts))])
    rows = [one.logits[0].copy() for one in rows]
    for slot, (text, row) in enumerate(zip(texts, rows, strict=True)):
        similar(row, lone([*text, more[0]]))
        similar(batched.models[slot].decode([more[1]], 1).logits[0], lone([*text, *more]))
        batched.truncate(slot, len(text))


def test_a_larger_and_a_smaller_context_keep_the_texts(model, lone, similar, texts):
    model.decode(texts[0], 0)
    batched = model.batched()
    batched.add(1, 300)
    batched.decode([BatchItem(1, texts[1])])
    check(similar, batched, lone, texts[:2])
    batched.add(1, 256)  # with texts in both slots
    batched.decode([BatchItem(2, texts[2])])
    check(similar, batched, lone, texts)
    assert [each.n_ctx for each in batched.models] == [256, 300, 256]
    batched.close()
    assert batched.n_slots == 1
    similar(model.decode([7], 1).logits[0], lone([*texts[0], 7]))
    assert model.n_past == len(texts[0]) + 1


LAYERS = first(1, [(2, 15), (FINAL,), (FINAL, 2)], "more layers of real weights")


@pytest.mark.parametrize("layers", LAYERS, ids=str)
@pytest.mark.parametrize("watched", [False, True], ids=["given", "watched"])
def test_states_are_switched_while_all_slots_hold_texts(
    model, lone, similar, texts, layers, watched, monkeypatch
):
    if watched:
        monkeypatch.setattr(hidden_module, "LAYER_INPUTS", ("llama_no_such_function",))
    alone = opened(model.path)
    alone.tap(layers)
    expected = alone.decode(texts[0], 1).hidden.copy()
    alone.close()
    batched = model.batched()
    batched.add(2, 256)
    begun = [text[:10] for text in texts]
    batched.decode([BatchItem(i, text) for i, text in enumerate(begun)])
    for _ in range(2):
        batched.models[0].tap(layers)
        check(similar, batched, lone, begun)
        items = [BatchItem(i, text[10:], int(i != 1)) for i, text in enumerate(texts)]
        outputs = batched.decode(items)
        hidden = [one.hidden.copy() for one in outputs]
        rows = [one.logits.copy() for one in outputs]
        assert [len(each) for each in hidden] == [len(text) - 10 for text in texts]
        assert [len(each) for each in rows] == [1, 0, 1]
        scale = np.abs(expected[10:]).max()
        assert np.abs(hidden[0] - expected[10:]).max() < 0.1 * scale
        for slot in (0, 2):
            similar(rows[slot][0], lone(texts[slot]))
        batched.models[0].tap(())
        for slot in range(3):
            batched.truncate(slot, 10)
        assert batched.decode([BatchItem(1, [5], 1)])[0].hidden is None
        batched.truncate(1, 10)
        check(similar, batched, lone, begun)
    batched.close()


def test_one_slot_is_full_and_the_others_go_on(model, lone, similar, texts):
    batched = model.batched()
    batched.add(2, 256)
    full = ids(255, 13)
    for start in range(0, 255, 50):
        batched.decode([BatchItem(1, full[start : start + 50])])
    batched.decode([BatchItem(0, texts[0]), BatchItem(2, texts[2])])
    with pytest.raises(ContextFull):
        batched.decode([BatchItem(0, [7], 1), BatchItem(1, [7, 8], 1)])
    with pytest.raises(ContextFull):
        batched.models[1].decode([7, 8], 1)
    assert [each.n_past for each in batched.models] == [len(texts[0]), 255, len(texts[2])]
    found = batched.decode([BatchItem(i, [7], 1) for i in range(3)])
    rows = [one.logits[0].copy() for one in found]
    for row, text in zip(rows, (texts[0], full, texts[2]), strict=True):
        similar(row, lone([*text, 7]))
    batched.close()
