"""Trees in the slots of one llama.cpp cache: neighbours, packing, failures, long runs."""

import random

import numpy as np
import pytest

from edgespec import CannotTruncate, ContextFull, DecodeError, EngineConfig, protocol
from edgespec.backends.base import BatchItem
from edgespec.backends.llama_cpp import LlamaCppModel
from edgespec.backends.llama_cpp.batched import lib
from edgespec.cache.prefixes import PrefixStore
from edgespec.server.verification.sessions import Sessions
from tests.helpers import libllama
from tests.helpers.devices import Clock, FakeDevice
from tests.helpers.selection import first
from tests.helpers.serving import TOKENIZER, slots_beside

libllama.require()


pytestmark = pytest.mark.llama_cpp


def opened(path, n_ctx=1024):
    """Return a model whose rows do not depend on the width of small evaluations."""
    return LlamaCppModel(path, EngineConfig(n_ctx=n_ctx, n_threads=1, flash_attn="on"))


@pytest.fixture(scope="module")
def model(smollm2):
    made = opened(smollm2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def reference(smollm2):
    """Return a model whose cache has no cells of others: they change how rows are added up."""
    made = opened(smollm2)
    yield made
    made.close()


@pytest.fixture
def slots(model):
    made = slots_beside(model, 4, 1024)
    yield made
    made.close()


def words(rng, n):
    return [rng.randrange(500, 30000) for _ in range(n)]


def park(slots, slot, rng, n):
    """Let `n` rejected nodes lie before accepted ones; return the tokens that are kept."""
    kept = []
    for _ in range(n):
        tokens = words(rng, 3)
        slots.decode([BatchItem(slot, tokens, 3, (-1, -1))])
        slots.keep(slot, (1,))
        kept += [tokens[0], tokens[2]]
    return kept


def rows(slots, slot, tokens):
    return slots.decode([BatchItem(slot, tokens, len(tokens))])[0].logits.copy()


def read(slots, slot, tokens):
    """Read tokens in pieces so small that their rows do not depend on the pieces."""
    for start in range(0, len(tokens), 8):
        slots.decode([BatchItem(slot, tokens[start : start + 8])])


def alone(model, tokens, n):
    model.truncate(0)
    for start in range(0, len(tokens) - n, 8):
        model.decode(tokens[start : min(start + 8, len(tokens) - n)], 0)
    return model.decode(tokens[-n:], n).logits.copy()


def test_as_many_leaves_as_sequences_allow(model):
    for n_slots, most in ((4, 15), (16, 12), (32, 5), (64, 1), (128, 1)):
        slots = slots_beside(model, n_slots, 256)
        assert slots.max_leaves == most
        slots.close()


def test_a_short_cache_takes_as_much_at_once_as_the_engine_does(model):
    slots = slots_beside(model, 2, 300)
    slots.decode([BatchItem(0, words(random.Random(6), slots.max_batch))])  # more ends the process
    slots.close()


def test_packing_writes_the_slots_own_text_to_the_last_bit(reference, slots, monkeypatch):
    monkeypatch.setattr("edgespec.backends.llama_cpp.branches._MOST_PARKED", 10)
    rng = random.Random(0)
    first, other = words(rng, 40), words(rng, 30)
    read(slots, 1, other)
    read(slots, 0, first)
    before = rows(slots, 1, other[:4])
    slots.truncate(1, len(other))
    text = first + park(slots, 0, rng, 25)
    assert slots.n_parked <= 11
    assert np.array_equal(rows(slots, 1, other[:4]), before)
    assert np.array_equal(rows(slots, 0, other[:4]), alone(reference, text + other[:4], 4))


@pytest.mark.long("a full cache of real weights")
def test_parked_cells_take_no_room_from_texts(model, reference):
    slots, rng = slots_beside(model, 2, 256), random.Random(1)
    text = words(rng, 100)
    read(slots, 0, text)
    text += park(slots, 0, rng, 30)
    assert slots.n_parked == 30
    slots.decode([BatchItem(1, words(rng, 256 - len(text)))])
    with pytest.raises(ContextFull):
        slots.decode([BatchItem(0, [5], 1)])
    slots.truncate(1, 0)
    assert np.array_equal(rows(slots, 0, [5, 6]), alone(reference, [*text, 5, 6], 2))
    slots.close()


@pytest.mark.long("a full cache of real weights")
def test_what_is_shared_has_no_holes(model, reference):
    slots, rng = slots_beside(model, 3, 512), random.Random(2)
    text = words(rng, 60)
    read(slots, 0, text)
    text += park(slots, 0, rng, 20)
    slots.copy(0, 1, len(text))
    assert slots.n_parked == 0
    ends = [words(rng, 3) for _ in range(2)]
    for slot, end in enumerate(ends):
        assert np.array_equal(rows(slots, slot, end), alone(reference, text + end, 3))
    slots.decode([BatchItem(2, words(rng, 512 - len(text) - 6))])  # and takes no cell twice
    slots.close()


@pytest.mark.parametrize("code", first(1, [-3, 2], "more codes"))
def test_a_failed_evaluation_leaves_nothing_in_any_slot(reference, slots, monkeypatch, code):
    rng = random.Random(3)
    texts = [words(rng, 20) for _ in range(3)]
    for slot, text in enumerate(texts):
        read(slots, slot, text)
    decode = lib.llama_decode
    tree = BatchItem(0, words(rng, 8), 8, (-1, 0, 0, -1, 3, 3, -1))
    with monkeypatch.context() as patch:
        patch.setattr(lib, "llama_decode", lambda *args: decode(*args) or code)
        with pytest.raises(DecodeError):
            slots.decode([tree, BatchItem(1, words(rng, 3), 2)])
    for slot, text in enumerate(texts):
        assert np.array_equal(rows(slots, slot, [7, 8, 9]), alone(reference, [*text, 7, 8, 9], 3))
    slots.decode([BatchItem(0, tree.tokens, 8, tree.parents)])
    slots.keep(0, (3, 5))


@pytest.mark.long("hundreds of tokens of real weights")
def test_packed_text_behind_a_window_can_be_cut_before_it(request, monkeypatch):
    model, rng = opened(request.getfixturevalue("gemma"), 2048), random.Random(4)
    model.decode(words(rng, 100), 0)
    model.decode_tree([7, 8, 9], (-1, -1))
    model.keep((1,))
    text = words(rng, 600)
    found = []
    for most_parked in (128, 0):
        model.decode(text, 0)
        monkeypatch.setattr("edgespec.backends.llama_cpp.branches._MOST_PARKED", most_parked)
        model.decode([5])
        model.truncate(150)
        found.append(model.decode([1, 2, 3, 4], 4).logits.copy())
        model.truncate(102)
    assert np.array_equal(*found)
    model.close()


def test_a_slot_says_what_it_has_lost_behind_its_window(request):
    model, rng = opened(request.getfixturevalue("gemma"), 2048), random.Random(5)
    slots = slots_beside(model, 3, 2048)
    first, other = words(rng, 300), words(rng, 700)
    for slot, text in ((0, first), (1, other)):
        for start in range(0, len(text), 100):
            slots.decode([BatchItem(slot, text[start : start + 100])])
    slots.truncate(0, 10)
    for _ in range(4):  # they fill the freed cells, and then some of the other slot
        slots.decode([BatchItem(0, words(rng, 100))])
    slots.truncate(1, len(other) - 1)
    with pytest.raises(CannotTruncate):
        slots.copy(1, 2, 50)
    with pytest.raises(CannotTruncate):
        slots.truncate(1, 50)
    found = rows(slots, 1, other[:8])
    assert np.abs(found - alone(model, other[:8], 8)).max() < 1
    slots.close()
    model.close()


@pytest.mark.long("thousands of tokens of real weights")
def test_a_slot_branches_after_it_has_lost_cells_behind_its_window(request):
    """Of the text cells go that a leaf of an earlier tree still holds."""
    model, rng = opened(request.getfixturevalue("gemma"), 2048), random.Random(7)
    slots = slots_beside(model, 3, 2048)

    def read_much(slot, n):
        for _ in range(0, n, 100):
            slots.decode([BatchItem(slot, words(rng, 100))])

    read_much(1, 300)
    read_much(0, 100)
    slots.decode([BatchItem(0, [7, 8, 9], 3, (-1, -1))])
    slots.keep(0, (0,))
    read_much(0, 1000)
    slots.truncate(1, 0)
    read_much(1, 400)
    found = slots.decode([BatchItem(0, [7, 8, 9], 3, (-1, -1))])[0].logits.copy()
    slots.keep(0, ())
    for node in (1, 2):
        slots.truncate(0, 1102)
        assert np.array_equal(found[[0, node]], rows(slots, 0, [7, 7 + node]))
    slots.close()
    model.close()


@pytest.mark.long("two conversations that do not fit into one cache")
def test_conversations_of_devices_that_take_turns_in_one_cache(model, reference):
    prefixes = PrefixStore(1 << 28).of(None)
    rng = random.Random(3)
    system = words(rng, 100)
    prompts = [[*system, *words(rng, n)] for n in (150, 120, 30)]
    slots = slots_beside(model, 3, 400)
    sessions = Sessions(slots, TOKENIZER, prefixes=prefixes, clock=Clock())
    devices = [FakeDevice(sessions).begin(prompt) for prompt in prompts]
    for round_ in range(3):
        for device, prompt in zip(devices, prompts, strict=True):
            n_said = len(device.text())
            device.begin(prompt)
            device.ask(6 * round_, ahead=5)
            said = device.text()[n_said:]
            expected = alone(reference, [*prompt, *said[:-1]], 6)
            chosen = expected[range(6), said]
            assert (expected.max(1) - chosen).max() < 0.5, "no near-tie"
    assert sessions.counts.loaded_tokens > 3 * 150
    assert sessions.counts.shared_tokens > 0
    assert not any(device.all(protocol.Busy) for device in devices)
    slots.close()
