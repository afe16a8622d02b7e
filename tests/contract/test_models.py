"""The promises of models, run against each of them."""

import contextlib
import functools
import importlib
import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from edgespec import (
    Aborted,
    CannotTruncate,
    ConfigError,
    ContextFull,
    DecodeError,
    EngineConfig,
    EngineMissing,
    ToyModel,
)
from edgespec.cache.token_cache import TokenCache
from edgespec.costs.governed import GovernedModel
from edgespec.costs.threads import ThreadGovernor
from edgespec.loading.models import open_model
from edgespec.sampling.trees import path_to
from tests.helpers import libllama
from tests.helpers.head_makers import OF_STATES
from tests.helpers.selection import every, first

OWN = os.environ.get("EDGESPEC_CONTRACT_MODEL", "")
"""A model of your own, which is then tested alone: its file, or "module:function"."""

N_CTX = 128
TEXT = [1, 2, 0, 3, 1, 2, 3, 0, 2, 1]


def toy(truncate=True):
    def probs(tokens):
        rng = np.random.default_rng([sum((t + 1) * 5**i for i, t in enumerate(tokens[-6:]))])
        return rng.dirichlet(np.ones(4))

    return ToyModel(probs, vocab_size=4, n_ctx=N_CTX, truncate=truncate)


ONNX = {
    "onnx, shared cache": {},
    "onnx, shared cache, wanted rows": {"keep": True},
    "onnx, grown cache": {"shared": False, "hidden_states": (0, 1, 2, -1)},
    "onnx, grown cache, mask": {"shared": False, "mask": True, "keep": True},
    "onnx, shared cache, scalar": {"keep": True, "scalar": True},
    "onnx, rows that differ alone": {"keep": True, "alone": 0.5},
    "onnx, shared cache, fp16": {"half": True, "keep": True},
    "onnx, grown cache, fp16": {"half": True, "shared": False},
    "onnx, grown cache, bias": {"shared": False, "bias": True},
    "onnx, shared cache, bias": {"bias": True, "keep": True},
    "onnx, shared cache, fp16, bias": {"bias": True, "half": True, "hidden_states": (1, 2, -1)},
    "onnx, shared cache, bias, norms": {
        "bias": True,
        "keep": True,
        "norm": "skip",
        "hidden_states": (0, 2, -1),
    },
    "onnx, grown cache, norms": {"shared": False, "norm": "plain", "hidden_states": (0, 1, 2)},
}


HEADS = {f"head, {kind}": make for kind, make in OF_STATES.items()}


@pytest.fixture(scope="module")
def head_folders(tmp_path_factory):
    """Return a function that returns the folder of a head, which is converted once."""
    folders = pytest.importorskip("tests.helpers.head_folders")

    @functools.cache
    def folder(name):
        return folders.converted(tmp_path_factory.mktemp("head"), HEADS[name]())

    return folder


LLAMA_CPP = pytest.param("llama.cpp", marks=pytest.mark.llama_cpp)


@pytest.fixture(scope="module")
def opened(tmp_path_factory, head_folders):
    """Return a function that opens a model by its name, once: tests begin with an empty one."""
    models = {}

    def model(name, request):
        if name not in models or name.startswith("toy"):
            models[name] = make(name, tmp_path_factory.mktemp("model"), head_folders, request)
        return models[name]

    yield model
    for each in models.values():
        each.close()


def make(name, folder, head_folders, request):
    """Open a model of the contract."""
    if name == OWN:
        if os.path.isfile(OWN):
            return open_model(Path(OWN), EngineConfig(n_ctx=N_CTX, n_threads=1))
        module, _, function = OWN.partition(":")
        return getattr(importlib.import_module(module), function)()
    if name.startswith("toy"):
        made = toy(truncate="cannot" not in name)
        return GovernedModel(made, ThreadGovernor([], 1)) if "governed" in name else made
    if name == "llama.cpp":
        libllama.require()
        from edgespec.backends.llama_cpp import LlamaCppModel

        path = request.getfixturevalue("smollm2")
        return LlamaCppModel(path, EngineConfig(n_ctx=N_CTX, n_batch=64, n_threads=1))
    onnx = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
    if name in HEADS:
        pytest.importorskip("gguf")
        folders = pytest.importorskip("tests.helpers.head_folders")
        libllama.require()  # a GGUF is what the head is converted for
        config = EngineConfig(n_ctx=2 * N_CTX, n_threads=1)
        return onnx.open_head(head_folders(name), config, folders.target())
    onnx_models = pytest.importorskip("tests.helpers.onnx_models")
    path = onnx_models.save(folder, **ONNX[name])
    return onnx.OnnxModel(path, EngineConfig(n_ctx=N_CTX, n_batch=64, n_threads=1))


TOYS = ["toy", "toy that cannot truncate"]
TOYS += [f"{name}, governed" for name in TOYS]


def chosen(*names):
    """Return the names of the models to test."""
    return [OWN] if OWN else list(names)


def require(ability):
    """Skip the test if a model of your own lacks an ability. The other models must have it."""
    if OWN and not ability:
        pytest.skip("the model does not claim this ability")
    assert ability


@pytest.fixture(params=chosen(*TOYS, LLAMA_CPP, *ONNX, *HEADS))
def model(request, opened, monkeypatch):
    found = opened(request.param, request)
    monkeypatch.setitem(noise, "logits", noise_of(request.param))
    yield found
    with contextlib.suppress(ConfigError):
        found.tap(())
    found.truncate(0)


noise = {"logits": 0.0}  # by which rows of the model under test may differ


def noise_of(name):
    """Return by how much widths of a batch change the rows of an engine."""
    options = ONNX.get(name, {})
    if name == "llama.cpp" or "alone" in options:
        return 0.6
    return 0.05 if "half" in options else 1e-12 if name.startswith("toy") else 1e-3


def close(a, b):
    """Return whether rows are equal up to the noise of their engine."""
    finite = np.isfinite(b)
    return np.array_equal(finite, np.isfinite(a)) and np.allclose(
        a[finite], b[finite], rtol=0, atol=noise["logits"]
    )


def test_rows_are_of_the_last_tokens(model):
    rows = model.decode(TEXT, n_logits=3).logits.copy()
    assert rows.shape == (3, model.vocab_size)
    assert model.n_past == len(TEXT)
    model.truncate(0)
    for i, row in enumerate(rows):
        model.truncate(0)
        assert close(model.decode(TEXT[: len(TEXT) - 2 + i]).logits[0], row)


def test_one_by_one_equals_at_once(model):
    at_once = model.decode(TEXT, n_logits=len(TEXT)).logits.copy()
    model.truncate(0)
    one_by_one = np.stack([model.decode([token]).logits[0].copy() for token in TEXT])
    assert close(one_by_one, at_once)


def test_no_rows_wanted(model):
    assert model.decode(TEXT, n_logits=0).logits.shape == (0, model.vocab_size)
    assert model.n_past == len(TEXT)


def test_more_than_a_batch(model):
    tokens = list(itertools.islice(itertools.cycle(TEXT), 3 * model.capabilities.max_batch // 2))
    rows = model.decode(tokens, n_logits=20).logits.copy()
    model.truncate(0)
    model.decode(tokens[:-20], n_logits=0)
    assert close(model.decode(tokens[-20:], n_logits=20).logits, rows)


def test_truncate_and_go_on(model):
    expected = model.decode([*TEXT[:5], 3]).logits[0].copy()
    model.truncate(0)
    model.decode(TEXT)
    if not model.capabilities.truncate:
        with pytest.raises(CannotTruncate):
            model.truncate(5)
        assert model.n_past == len(TEXT)
        return
    model.truncate(5)
    assert model.n_past == 5
    assert close(model.decode([3]).logits[0], expected)


def test_truncate_forward_changes_nothing(model):
    model.decode(TEXT)
    model.truncate(len(TEXT) + 7)
    assert model.n_past == len(TEXT)


def test_truncate_to_nothing_always_works(model):
    model.decode(TEXT)
    model.truncate(0)
    assert model.n_past == 0
    model.decode(TEXT)


def test_checkpoint_and_restore(model):
    model.decode(TEXT[:6])
    state = model.checkpoint()
    expected = model.decode([1, 2]).logits[0].copy()
    model.decode([3, 3])
    model.restore(state)
    assert model.n_past == 6
    assert close(model.decode([1, 2]).logits[0], expected)


def test_context_full_appends_nothing(model):
    room = model.n_ctx
    tokens = list(itertools.islice(itertools.cycle(TEXT), room))
    model.decode(tokens[:-2], n_logits=0)
    with pytest.raises(ContextFull):
        model.decode([1, 2, 3])
    assert model.n_past == room - 2
    model.decode([1, 2])
    with pytest.raises(ContextFull):
        model.decode([1])


def test_abort_leaves_a_usable_model(model):
    expected = model.decode(TEXT).logits[0].copy()
    model.truncate(0)
    with pytest.raises(Aborted):
        model.decode(TEXT * 3, abort=lambda: "cancelled")
    model.truncate(0)
    assert close(model.decode(TEXT).logits[0], expected)


def test_token_cache_rolls_back_on_every_model(model):
    cache = TokenCache(model)
    cache.decode(TEXT[:4], 1)
    cache.protect()
    cache.decode(TEXT[4:8], 4)
    cache.truncate(6)
    assert cache.tokens == TEXT[:6]
    assert model.n_past == 6
    again = cache.decode([1]).logits[0].copy()
    model.truncate(0)
    assert close(model.decode([*TEXT[:6], 1]).logits[0], again)


def test_token_cache_aligns(model):
    cache = TokenCache(model)
    cache.decode(TEXT, 1)
    assert cache.align([*TEXT[:3], 0, 0]) == 3
    assert cache.tokens == TEXT[:3]
    assert model.n_past == 3
    assert cache.align(TEXT[:3]) == 2  # the last token is evaluated anew
    assert cache.align([9, 9, *TEXT[:3]], offset=2, known=2) == 2
    assert cache.align([]) == 0


BRANCHING = chosen("toy", LLAMA_CPP, *(n for n, o in ONNX.items() if "mask" in o or "bias" in o))
"""Heads are not among these: their guesses go in with their own states, and never stay, so rows of
nodes are no rows of a chain that was read (see tests/unit/backends)."""
GROWING = chosen("toy", LLAMA_CPP)
TAPPED = chosen("toy", LLAMA_CPP, *(n for n, o in ONNX.items() if "hidden_states" in o))
branching = pytest.mark.parametrize("model", BRANCHING, indirect=True)
growing = pytest.mark.parametrize("model", GROWING, indirect=True)
tapping = pytest.mark.parametrize("model", TAPPED, indirect=True)
TREES = [(-1, 0, -1), (-1, 0, 1, 1, 0, -1, 5, 5), (-1, -1, -1, 2, 3, 4), (-1, 0, 1)]


def in_tree(model, parents):
    """Return the tokens of the nodes of a tree, a model after two pending tokens, and its rows."""
    require(model.capabilities.max_leaves > 1)
    nodes = [TEXT[(3 * i + 1) % len(TEXT)] for i in range(len(parents))]
    model.decode(TEXT[:-2], 0)
    return nodes, model.decode_tree([*TEXT[-2:], *nodes], parents).logits.copy()


SAVING = chosen(*TOYS, LLAMA_CPP, *ONNX)
saving = pytest.mark.parametrize("model", SAVING, indirect=True)


@saving
def test_a_saved_state_goes_on_like_the_text(model):
    require(model.capabilities.saves)
    model.decode(TEXT, 0)
    state = bytes(model.save_state(0, len(TEXT)))
    expected = model.decode([2, 1, 3], 3).logits.copy()
    model.truncate(0)
    model.decode([3] * 20, 0)
    model.truncate(0)
    model.load_state(state, len(TEXT))
    assert model.n_past == len(TEXT)
    assert close(model.decode([2, 1, 3], 3).logits, expected)


@saving
def test_a_loaded_state_can_be_truncated(model):
    require(model.capabilities.saves)
    if model.capabilities.saves == "whole":
        return
    expected = model.decode([*TEXT[:6], 2], 1).logits.copy()
    model.truncate(0)
    model.decode(TEXT, 0)
    state = model.save_state(0, len(TEXT))
    model.truncate(0)
    model.load_state(state, len(TEXT))
    model.truncate(6)
    assert close(model.decode([2], 1).logits, expected)


@saving
def test_states_of_parts_are_joined(model):
    require(model.capabilities.saves)
    if model.capabilities.saves != "parts":
        return
    expected = model.decode([*TEXT, 2, 1], 2).logits.copy()
    model.truncate(len(TEXT))
    states = [
        bytes(model.save_state(start, end)) for start, end in ((0, 4), (4, 7), (7, len(TEXT)))
    ]
    model.truncate(0)
    for state, end in zip(states, (4, 7, len(TEXT)), strict=True):
        model.load_state(state, end)
    assert close(model.decode([2, 1], 2).logits, expected)
    model.truncate(4)
    model.load_state(states[1], 7)
    model.load_state(states[2], len(TEXT))
    assert close(model.decode([2, 1], 2).logits, expected)


@saving
def test_a_refused_state_leaves_a_usable_model(model):
    require(model.capabilities.saves)
    expected = model.decode(TEXT).logits.copy()
    state = model.save_state(0, len(TEXT))
    for damaged in (state[: len(state) // 2], b""):
        model.truncate(0)
        with pytest.raises(DecodeError):
            model.load_state(damaged, len(TEXT))
        assert model.n_past == 0
        assert close(model.decode(TEXT).logits, expected)


@branching
def test_the_state_of_a_kept_path(model):
    in_tree(model, (-1, 0, -1, 2))
    require(model.capabilities.saves == "parts")
    model.keep((2, 3))
    n = model.n_past
    state = model.save_state(0, n)
    expected = model.decode([2, 1], 2).logits.copy()
    model.truncate(0)
    model.load_state(state, n)
    assert close(model.decode([2, 1], 2).logits, expected)


@branching
@pytest.mark.parametrize("parents", first(2, TREES[::-1], "more trees"))
def test_rows_of_a_tree_are_those_of_its_paths(model, parents):
    nodes, rows = in_tree(model, parents)
    assert rows.shape == (len(parents) + 1, model.vocab_size)
    model.keep(())
    for node in range(-1, len(parents)):
        path = path_to(parents, node)
        model.truncate(len(TEXT) - 1)
        chain = model.decode([TEXT[-1], *(nodes[i] for i in path)], len(path) + 1).logits
        assert close(chain[-1], rows[node + 1])


@branching
@pytest.mark.parametrize("parents", first(2, TREES[::-1], "more trees"))
def test_the_path_that_is_kept_goes_on_as_a_chain(model, parents):
    for node in range(-1, len(parents)):
        path = path_to(parents, node)
        model.truncate(0)
        nodes, _ = in_tree(model, parents)
        model.keep(path)
        assert model.n_past == len(TEXT) + len(path)
        found = model.decode([2, 1], 2).logits.copy()
        model.truncate(0)
        expected = model.decode([*TEXT, *(nodes[i] for i in path), 2, 1], 2).logits
        assert close(found, expected)


@branching
def test_a_tree_can_be_cut_off_and_drafted_anew(model):
    for path in ((), (0,), (0, 1)) * 3:
        in_tree(model, (-1, 0, 0, -1))
        model.keep(path)
        model.decode_tree([1, 2, 3], (-1, -1))
        model.truncate(5)
        assert model.n_past == 5
        found = model.decode(TEXT[5:]).logits[0].copy()
        model.truncate(0)
        assert close(found, model.decode(TEXT).logits[0])
        model.truncate(0)


@branching
def test_a_tree_beyond_the_context_leaves_nothing(model):
    in_tree(model, (-1, -1))
    model.keep(())
    model.decode([TEXT[i % 10] for i in range(model.n_ctx - model.n_past - 2)], 0)
    n_past = model.n_past
    with pytest.raises(ContextFull):
        model.decode_tree([1, 2, 3], (-1, -1))
    assert model.n_past == n_past
    model.decode([1, 2])


def grown(model, *calls):
    """Return the path and the row of each node of a tree grown after a text in several calls, each
    a list of parents.
    """
    require(model.capabilities.grows)
    model.decode(TEXT)
    nodes, parents, rows = [], [], []
    for call in calls:
        tokens = [TEXT[(3 * (len(nodes) + i) + 1) % len(TEXT)] for i in range(len(call))]
        nodes, parents = [*nodes, *tokens], [*parents, *call]
        rows += list(model.grow(tokens, call).logits.copy())
    return [[nodes[i] for i in path_to(parents, node)] for node in range(len(nodes))], rows


GROWTHS = [
    ([-1],), ([-1, -1],), ([-1], [0], [1], [0, 0]), ([-1, -1], [0, 1], [1, -1], [4, 4, 2]),
]  # fmt: skip


@growing
@pytest.mark.parametrize("calls", every(2, GROWTHS[::-1], "more trees"), ids=str)
def test_rows_of_a_grown_tree_are_those_of_its_paths(model, calls):
    paths, rows = grown(model, *calls)
    assert model.n_past == len(TEXT) + len(paths)
    model.keep(())
    for path, row in zip(paths, rows, strict=True):
        model.truncate(len(TEXT))
        assert close(model.decode(path, 1).logits[0], row)


@pytest.mark.parametrize("model", chosen("toy"), indirect=True)  # tests/models has llama.cpp's
@pytest.mark.parametrize("calls", every(2, GROWTHS[::-1], "more trees"), ids=str)
def test_a_path_that_is_kept_of_a_grown_tree_goes_on_as_a_chain(model, calls):
    parents = [parent for call in calls for parent in call]
    for node in range(-1, len(parents)):
        model.truncate(0)
        paths, _ = grown(model, *calls)
        model.keep(path_to(parents, node))
        line = [*TEXT, *(paths[node] if node >= 0 else [])]
        assert model.n_past == len(line)
        found = model.decode([2, 1], 2).logits.copy()
        model.truncate(0)
        assert close(found, model.decode([*line, 2, 1], 2).logits)


@growing
def test_a_grown_tree_can_be_cut_off(model):
    for _ in range(3):
        grown(model, [-1, -1], [0, 1])
        model.truncate(5)
        assert model.n_past == 5
        found = model.decode(TEXT[5:]).logits[0].copy()
        model.truncate(0)
        assert close(found, model.decode(TEXT).logits[0])
        model.truncate(0)


@growing
def test_growing_beyond_the_context_leaves_no_node(model):
    grown(model, [-1, -1])
    model.keep(())
    model.decode([TEXT[i % 10] for i in range(model.n_ctx - model.n_past - 2)], 0)
    n_past = model.n_past
    model.grow([1], [-1])
    with pytest.raises(ContextFull):
        model.grow([1, 2], [0, 0])
    assert model.n_past == n_past
    model.decode([1, 2])


TAPS = [(0, 2), (2, 1, -1), (1,), (-1,), (2, 2)]


@pytest.fixture
def tapped(model):
    """Return a model that gives hidden states, and layers of which it gives them."""
    require(model.capabilities.hidden_states)
    for layers in TAPS:
        with contextlib.suppress(ConfigError):
            model.tap(layers)
            return model, layers
    pytest.fail("it gives no hidden states")


def one_by_one(model, tokens):
    """Return the hidden states of tokens, each evaluated with all that is before it."""
    found = []
    for i in range(len(tokens)):
        model.truncate(0)
        found.append(model.decode(tokens[: i + 1]).hidden[-1].copy())
    model.truncate(0)
    return np.stack(found)


def alike(found, expected):
    """Compare hidden states; their size decides what rounding does, more so in wide evaluations."""
    if found.shape != expected.shape:
        return False
    return abs(found - expected).mean() < 0.05 * abs(expected).mean()


@tapping
def test_every_token_of_a_call_has_hidden_states(tapped):
    model, layers = tapped
    expected = one_by_one(model, TEXT)
    assert expected.shape == (len(TEXT), len(layers), model.hidden_size)
    assert expected.dtype == np.float32
    for n_logits in (0, 1, len(TEXT)):
        model.truncate(0)
        assert alike(model.decode(TEXT, n_logits).hidden, expected)
    model.truncate(4)
    assert alike(model.decode(TEXT[4:], 1).hidden, expected[4:])
    long = list(itertools.islice(itertools.cycle(TEXT), 3 * model.capabilities.max_batch // 2))
    model.truncate(0)
    hidden = model.decode(long, 20).hidden
    assert hidden.shape == (len(long), len(layers), model.hidden_size)
    assert alike(hidden[: len(TEXT)], expected)


@pytest.mark.parametrize("model", [n for n in TAPPED if n in BRANCHING], indirect=True)
def test_nodes_of_a_tree_have_the_hidden_states_of_their_paths(tapped):
    model, _ = tapped
    require(model.capabilities.max_leaves > 1)
    parents, nodes = (-1, 0, -1, 2), [3, 1, 0, 2]
    for before in ([2], TEXT[:1], TEXT):  # the first without a past
        lines = [[*before, *(nodes[i] for i in path_to(parents, node))] for node in range(4)]
        expected = [one_by_one(model, before)] + [one_by_one(model, line)[-1:] for line in lines]
        found = model.decode_tree([*before, *nodes], parents).hidden
        assert alike(found, np.concatenate(expected))
        model.keep((2, 3))
        again = model.decode([1, 3]).hidden.copy()
        assert alike(again, one_by_one(model, [*before, 0, 2, 1, 3])[-2:])


@tapping
def test_hidden_states_can_be_turned_off_and_others_taken(tapped):
    model, layers = tapped
    both = one_by_one(model, TEXT[:3])
    model.tap(layers[::-1])
    assert alike(model.decode(TEXT[:3]).hidden, both[:, ::-1])
    model.tap(())
    assert model.decode(TEXT[3:]).hidden is None
    with pytest.raises(ConfigError):
        model.tap([*layers, model.n_layer + 1])
    assert model.decode([1]).hidden is None
    model.tap(layers[:1])
    model.truncate(0)
    assert alike(model.decode(TEXT[:3]).hidden, both[:, :1])


@tapping
def test_hidden_states_after_an_abort_are_of_that_call(tapped):
    model, layers = tapped
    with pytest.raises(Aborted):
        model.decode(TEXT * 3, abort=lambda: "cancelled")
    model.truncate(0)
    assert model.decode(TEXT).hidden.shape == (len(TEXT), len(layers), model.hidden_size)


@pytest.mark.parametrize("name", chosen("toy", LLAMA_CPP, *ONNX, *HEADS))
def test_close_twice(name, tmp_path, head_folders, request):
    model = make(name, tmp_path, head_folders, request)
    model.close()
    model.close()
