"""The promises of batched models, run against each of them."""

import contextlib
import random

import numpy as np
import pytest

from edgespec import ContextFull, EngineConfig, OutOfMemory
from edgespec.backends.base import BatchItem
from edgespec.backends.separate import SeparateModels
from edgespec.loading.models import open_model
from edgespec.sampling.trees import path_to
from tests.helpers import libllama
from tests.helpers.selection import first, sample, share
from tests.helpers.serving import Shared, slots_beside, toy

ONNX = {
    "onnx, shared cache": {},
    "onnx, grown cache, mask": {"shared": False, "mask": True},
    "onnx, rows that differ alone": {"alone": 0.5},
}
LLAMA_CPP, INVARIANT = (
    pytest.param(name, marks=pytest.mark.llama_cpp)
    for name in ("llama.cpp", "llama.cpp, invariant")
)
SHARING = ["toys that share prefixes", LLAMA_CPP]
SEPARATE = ["separate toys", INVARIANT, *ONNX]


class Toys:
    """Toy models as one that can be batched."""

    def __init__(self, shared):
        self.shares, self.model = shared, toy()

    def beside(self, n_slots, n_ctx):
        models = [toy() for _ in range(n_slots)]
        return Shared(models, n_ctx) if self.shares else SeparateModels(models)

    def __getattr__(self, name):
        return getattr(self.model, name)


@pytest.fixture(scope="module")
def opened():
    """Models by name: loading real ones takes longer than a test."""
    found = {}
    yield found
    for each in found.values():
        each.close()


@pytest.fixture
def model(request, tmp_path_factory, opened):
    """Return a model whose weights can be batched, and which is the reference itself."""
    name = request.param
    if name in opened:
        pass
    elif name in ONNX:
        onnx_models = pytest.importorskip("tests.helpers.onnx_models")
        path = onnx_models.save(tmp_path_factory.mktemp("graph"), **ONNX[name])
        opened[name] = open_model(path, EngineConfig(n_ctx=64, n_threads=1))
    elif name.startswith("llama.cpp"):
        libllama.require()
        config = EngineConfig(n_ctx=256, n_threads=1, batch_invariant="invariant" in name)
        opened[name] = open_model(request.getfixturevalue("smollm2"), config)
    else:
        return Toys(shared="share" in name)
    opened[name].truncate(0)
    return opened[name]


@pytest.fixture
def batched(model):
    """Return caches of three slots over the weights of a model."""
    made = beside(model, 3)
    yield made
    made.close()


def beside(model, n_slots):
    """Return slots that hold 256 tokens, all together if they can share a cache."""
    if isinstance(model, Toys):
        return model.beside(n_slots, 256)
    return slots_beside(model, n_slots, 256)


every = pytest.mark.parametrize("model", [*SHARING, *SEPARATE], indirect=True)
separate = pytest.mark.parametrize("model", SEPARATE, indirect=True)
sharing = pytest.mark.parametrize("model", SHARING, indirect=True)
BRANCHING = [*SHARING, *SEPARATE[:2], "onnx, grown cache, mask"]
trees = pytest.mark.parametrize("model", BRANCHING, indirect=True)


def ids(model, n, factor=7):
    return [(factor * i + 3) % min(4000, model.vocab_size) for i in range(n)]


def rows_of(batched, *items):
    return [outputs.logits.copy() for outputs in batched.decode(items)]


def same(batched, found, alone):
    """Equal where sequences are evaluated one by one, else up to the noise between widths."""
    if not batched.shares_prefixes:
        return np.array_equal(found, alone)
    return np.abs(found - alone).max() < 1 and (found.argmax(1) == alone.argmax(1)).all()


def close(batched, found, alone):
    """Equal up to rounding where slots are evaluated one by one, in whatever pieces."""
    return (
        same(batched, found, alone)
        if batched.shares_prefixes
        else np.allclose(found, alone, atol=1e-4)
    )


def alone(model, tokens, n_logits):
    model.truncate(0)
    return model.decode(tokens, n_logits=n_logits).logits.copy()


@every
def test_each_slot_gives_the_rows_of_a_lone_model(model, batched):
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


@every
def test_outputs_come_in_the_order_of_their_items(model, batched):
    texts = [ids(model, n, factor=n) for n in (9, 7, 8)]
    last, none, first = rows_of(
        batched, BatchItem(2, texts[2], 2), BatchItem(0, texts[0]), BatchItem(1, texts[1], 1)
    )
    assert none.shape == (0, batched.vocab_size)
    for found, text in ((last, texts[2]), (first, texts[1])):
        assert close(batched, found, alone(model, text, len(found)))


@every
def test_slots_go_on_where_they_ended_or_were_cut(model, batched):
    text = ids(model, 12)
    batched.decode([BatchItem(slot, text[:6]) for slot in range(3)])
    batched.truncate(0, 99)  # nothing is there
    batched.truncate(1, 4)
    batched.truncate(2, 0)
    rows = rows_of(
        batched, BatchItem(0, text[6:], 3), BatchItem(1, [5, 7], 2), BatchItem(2, [9, 8, 7], 1)
    )
    expected = text, [*text[:4], 5, 7], [9, 8, 7]
    for found, tokens in zip(rows, expected, strict=True):
        assert close(batched, found, alone(model, tokens, len(found)))


@every
def test_rows_stay_until_the_next_call(model, batched):
    found = batched.decode([BatchItem(slot, ids(model, 6), 2) for slot in range(2)])
    copies = [outputs.logits.copy() for outputs in found]
    batched.truncate(0, 3)
    for outputs, copy in zip(found, copies, strict=True):
        assert np.array_equal(outputs.logits, copy)


@every
def test_context_full_appends_nothing(model, batched):
    text = ids(model, 7)
    full = [1 + i % 9 for i in range(batched.n_ctx - 2)]
    for start in range(0, len(full), batched.max_batch):
        batched.decode([BatchItem(0, full[start : start + batched.max_batch])])
    with pytest.raises(ContextFull):
        batched.decode([BatchItem(1, [4, 5], 1), BatchItem(0, [1, 2, 3], 1)])
    batched.truncate(0, 20)
    other, first = rows_of(batched, BatchItem(1, text, 2), BatchItem(0, [1, 2], 1))
    assert close(batched, other, alone(model, text, 2))
    assert close(batched, first, alone(model, [*full[:20], 1, 2], 1))


@every
def test_close_twice(batched):
    batched.close()
    batched.close()


@contextlib.contextmanager
def batch_of(model):
    """Return the slots of a model itself, the first of which is the model."""
    if isinstance(model, Toys):
        made = (Shared if model.shares else SeparateModels)([model.model])
        made._new = lambda n_ctx, n_models: toy(n_ctx=n_ctx or 256)
    else:
        made = model.batched()
    try:
        yield made
    finally:
        made.close()


@every
def test_slots_are_added_and_closed_while_the_first_one_holds_a_text(model):
    text, other = ids(model, 12), ids(model, 9, factor=5)
    expected = alone(model, text, 1), alone(model, other, 1)
    model.truncate(0)
    with batch_of(model) as batched:
        batched.models[0].decode(text[:6], 0)
        for n_slots in (1, 2):
            batched.add(n_slots, model.n_ctx)
        assert batched.n_slots == 4
        assert batched.models[-1].n_ctx == batched.n_ctx == model.n_ctx
        assert [each.n_past for each in batched.models] == [6, 0, 0, 0]
        items = [BatchItem(3, other, 1), BatchItem(0, text[6:], 1)]
        found = rows_of(batched, *items)
        assert close(batched, found[0], expected[1])
        assert close(batched, found[1], expected[0])
        batched.close()
        assert batched.n_slots == 1
        assert model.n_past == len(text)
        model.truncate(len(text) - 1)
        assert close(batched, model.decode(text[-1:], 1).logits, expected[0])
        batched.add(1, model.n_ctx)
        assert close(batched, rows_of(batched, BatchItem(1, other, 1))[0], expected[1])


@every
def test_slots_that_cannot_be_added_change_nothing(model, monkeypatch):
    text = ids(model, 12)
    expected = alone(model, text, 1)
    model.truncate(len(text) - 1)
    with batch_of(model) as batched:
        if isinstance(model, Toys):
            monkeypatch.setattr(batched, "_new", refused)
        elif batched.shares_prefixes:
            monkeypatch.setattr(type(model), "_renew", refused)
        else:
            monkeypatch.setattr(batched, "_new", refused)
        with pytest.raises(OutOfMemory):
            batched.add(2, model.n_ctx)
        assert batched.n_slots == 1
        assert close(batched, rows_of(batched, BatchItem(0, text[-1:], 1))[0], expected)


def refused(*given):
    raise OutOfMemory("there is no memory")


@separate
def test_separate_slots_do_not_see_each_other(model, batched):
    assert not batched.shares_prefixes
    text = ids(model, 40)
    batched.decode([BatchItem(0, [9] * 30), BatchItem(1, text[:35])])
    rows = rows_of(
        batched, BatchItem(0, [9, 9, 9], 3), BatchItem(1, text[35:], 5), BatchItem(2, text, 2)
    )
    model.decode(text[:35], n_logits=0)
    assert np.array_equal(model.decode(text[35:], n_logits=5).logits, rows[1])


@sharing
def test_a_slot_begins_with_the_prefix_of_another(model, batched):
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


@sharing
def test_slots_share_their_memory(batched):
    batched.decode([BatchItem(0, [5] * 200)])
    with pytest.raises(ContextFull):
        batched.decode([BatchItem(1, [5] * 100)])
    batched.truncate(0, 100)
    assert len(rows_of(batched, BatchItem(1, [5] * 100, 1))[0]) == 1


TREES = [(-1, 0, -1), (-1, 0, 1, 1, 0, -1, 5, 5), (-1, -1, -1, 2, 3, 4)]


@pytest.fixture
def branching(batched):
    """Return caches that take trees."""
    assert batched.max_leaves > 1
    return batched


def tree(batched, slot, parents, before, n_most=99):
    """Return an item whose nodes stand behind the tokens `before`, and those tokens."""
    parents = parents[: min(batched.max_draft_rows - 1, n_most)]
    nodes = [(5 * i + 11) % min(4000, batched.vocab_size) for i in range(len(parents))]
    return BatchItem(slot, [*before, *nodes], len(parents) + 1, parents), nodes


@trees
@pytest.mark.parametrize("parents", first(1, TREES[::-1], "more trees"))
def test_rows_of_a_tree_are_those_of_its_paths_beside_chains_and_prompts(model, branching, parents):
    text, other = ids(model, 12), ids(model, 20, factor=5)
    branching.decode([BatchItem(0, text[:-2]), BatchItem(1, other[:8])])
    item, nodes = tree(branching, 0, parents, text[-2:])
    rows, chain, prompt = rows_of(
        branching, item, BatchItem(1, other[8:10], 2), BatchItem(2, other[:9], 1)
    )
    for node in range(-1, len(item.parents)):
        path = [nodes[i] for i in path_to(item.parents, node)]
        assert close(branching, rows[node + 1 : node + 2], alone(model, [*text, *path], 1))
    assert close(branching, chain, alone(model, other[:10], 2))
    assert close(branching, prompt, alone(model, other[:9], 1))


@trees
@pytest.mark.parametrize("parents", first(1, TREES[::-1], "more trees"))
def test_the_path_that_is_kept_goes_on(model, branching, parents):
    text = ids(model, 12)
    for node in sample(range(-1, len(tree(branching, 0, parents, [])[1])), 3):
        item, nodes = tree(branching, 0, parents, text)
        branching.decode([BatchItem(1, text), item])
        path = path_to(item.parents, node)
        branching.keep(0, path)
        found = rows_of(branching, BatchItem(1, [2, 1], 2), BatchItem(0, [2, 1], 2))
        kept = [nodes[i] for i in path]
        assert close(branching, found[0], alone(model, [*text, 2, 1], 2))
        assert close(branching, found[1], alone(model, [*text, *kept, 2, 1], 2))
        for slot in range(2):
            branching.truncate(slot, 0)
    assert not branching.n_parked


@trees
def test_a_tree_that_is_left_is_cut_off(model, branching):
    text = ids(model, 12)
    item, _ = tree(branching, 0, TREES[1], text)
    for n_past in (len(text) - 1, 5, 0):
        branching.decode([item])
        branching.truncate(0, n_past)
        found = rows_of(branching, BatchItem(0, text[n_past:], 1))
        assert close(branching, found[0], alone(model, text, 1))
        branching.truncate(0, 0)


@trees
def test_a_tree_beyond_the_context_appends_nothing(model, branching):
    text = ids(model, 9)
    for start in range(0, branching.n_ctx - 3, 50):
        n = min(50, branching.n_ctx - 3 - start)
        branching.decode([BatchItem(0, [1 + i % 9 for i in range(n)])])
    item, _ = tree(branching, 0, (-1, -1, -1), [3])
    with pytest.raises(ContextFull):
        branching.decode([BatchItem(1, text), item])
    branching.truncate(0, 20)
    found = rows_of(branching, BatchItem(1, text, 2))
    assert close(branching, found[0], alone(model, text, 2))


@pytest.mark.parametrize("model", [LLAMA_CPP], indirect=True)
def test_a_tree_of_too_many_leaves_appends_nothing(model, branching):
    text = ids(model, 9)
    branching.decode([BatchItem(0, text)])
    item, _ = tree(branching, 1, (-1,) * (branching.max_leaves + 1), [3])
    with pytest.raises(ValueError, match="leaves"):
        branching.decode([BatchItem(0, [7, 8], 1), item])
    found = rows_of(branching, BatchItem(0, [2, 1], 2), BatchItem(1, text, 1))
    assert close(branching, found[0], alone(model, [*text, 2, 1], 2))
    assert close(branching, found[1], alone(model, text, 1))


N_RANDOM = {"toys that share prefixes": 500, "separate toys": 500, "llama.cpp": 60}


def random_item(rng, batched, slot, text, max_rows):
    """Return a chain, a tree or a piece of a prompt for a slot that holds all of its text but the
    last token.
    """
    n = rng.randrange(min(batched.max_draft_rows, max_rows))
    nodes = [rng.randrange(1, min(4000, batched.vocab_size)) for _ in range(n)]
    kind = rng.choice(["chain", "tree", "tree", "prompt"])
    if kind != "tree" or n < 2:
        return BatchItem(slot, [text[-1], *nodes], n + 1 if kind == "chain" else 0)
    parents, line = [], [-1]
    for node in range(n):
        while len(line) > 1 and rng.random() < 0.5:
            line.pop()
        parents.append(line[-1])
        line.append(node)
    return BatchItem(slot, [text[-1], *nodes], n + 1, tuple(parents))


@pytest.mark.parametrize("model", [*SHARING, SEPARATE[0]], indirect=True)
def test_slots_stay_what_their_texts_are_whatever_came(request, model):
    rng, n_steps = random.Random(0), N_RANDOM[request.node.callspec.params["model"]]
    batched, reference = beside(model, 4), beside(model, 4)
    texts = [[slot + 1] for slot in range(4)]
    for _ in range(share(n_steps, 4)):
        chosen = rng.sample(range(4), rng.randrange(1, 5))
        items = [random_item(rng, batched, slot, texts[slot], 14 // len(chosen)) for slot in chosen]
        found = [outputs.logits.copy() for outputs in batched.decode(items)]
        for item, rows in zip(items, found, strict=True):
            follow(rng, batched, reference, item, rows, texts[item.slot])
        for slot in range(4):
            if len(texts[slot]) > 50 or rng.random() < 0.03:
                n_past = rng.randrange(len(texts[slot]))
                batched.truncate(slot, n_past)
                reference.truncate(slot, n_past)
                texts[slot] = [*texts[slot][:n_past], slot + 1]
    for each in (batched, reference):
        each.close()


def follow(rng, batched, reference, item, rows, text):
    """Keep a path of an item that was evaluated, and do the same as a chain in the reference."""
    slot, nodes = item.slot, item.tokens[1:]
    parents = item.parents or range(-1, len(nodes) - 1)
    path = path_to(parents, rng.randrange(-1, len(nodes)))
    if item.n_logits == 0:
        path = tuple(range(len(nodes)))
    chain = [item.tokens[0], *(nodes[node] for node in path)]
    expected = rows_of(reference, BatchItem(slot, chain, len(chain)))[0]
    if item.n_logits:
        similar(batched, rows[[0, *(node + 1 for node in path)]], expected)
    if item.parents and rng.random() < 0.9:
        batched.keep(slot, path)
    elif item.parents:  # left
        n_past = len(text) - 1
        batched.truncate(slot, n_past)
        reference.truncate(slot, n_past)
        return
    else:
        batched.truncate(slot, len(text) + len(path))
    text += chain[1:]
    text.append(rng.randrange(1, min(4000, batched.vocab_size)))


def similar(batched, found, expected):
    """Equal where nothing is rounded, else by far nearer than rows of another text."""
    if not batched.shares_prefixes or found.dtype == np.float64:
        assert np.allclose(found, expected, atol=1e-4)
    else:
        assert np.abs(found - expected).max() < 2
