"""Hidden states out of llama.cpp, on tiny models: of the right layers, of all tokens, after every
kind of failure, and no end of the process where the engine would abort.
"""

import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from edgespec import Aborted, ConfigError, ContextFull, EngineConfig
from edgespec.backends.base import FINAL
from edgespec.sampling.trees import path_to
from tests.helpers import libllama, tiny_models
from tests.helpers.selection import every
from tests.helpers.stopping import stop_within

libllama.require()

from edgespec.backends.llama_cpp import LlamaCppModel, hidden  # noqa: E402
from edgespec.backends.llama_cpp.library import lib  # noqa: E402

pytestmark = pytest.mark.llama_cpp

N_LAYER = tiny_models.N_LAYER
TEXT = [3, 200, 17, 5, 5, 90, 250, 41, 8, 77]
LONG = [3 + (7 * i) % 250 for i in range(100)]
ALL = (*range(N_LAYER + 1), FINAL)
ARCHITECTURES = ("llama", "qwen3", "qwen3moe", "qwen2", "gemma3")


def open_tiny(folder, architecture, marked=False, **settings):
    path = tiny_models.write(folder, architecture, marked=marked)
    options = {"n_ctx": 256, "n_batch": 64, "n_threads": 1, "flash_attn": "on"} | settings
    return LlamaCppModel(path, EngineConfig(**options))


def near(found, expected, most=0.02):
    """Return True for arrays that differ by the rounding between batch widths at most: keys and
    values of attention are float16.
    """
    assert found.shape == expected.shape
    difference = float(np.abs(found - expected).max(initial=0))
    assert difference < most
    return True


@pytest.fixture(params=ARCHITECTURES)
def marked(request, tmp_path):
    """Give a model whose layer i changes channel i only, and how large its embeddings are."""
    model = open_tiny(tmp_path, request.param, marked=True)
    yield model, tiny_models.WIDTH**0.5 if request.param == "gemma3" else 1.0
    model.close()


@pytest.fixture(params=every(2, ARCHITECTURES, "more architectures"))
def model(request, tmp_path):
    model = open_tiny(tmp_path, request.param)
    yield model
    model.close()


def states_one_by_one(model, tokens, layers):
    """Return the states of a text that is evaluated a token at a time."""
    model.truncate(0)
    model.tap(layers)
    return np.concatenate([model.decode([token]).hidden for token in tokens])


def test_the_contract(model):
    assert (model.hidden_size, model.n_layer) == (tiny_models.WIDTH, N_LAYER)
    assert model.capabilities.hidden_states
    assert model.decode(TEXT).hidden is None


@pytest.mark.parametrize("layers", [range(N_LAYER), range(N_LAYER + 1)], ids=["inputs", "output"])
def test_a_layer_is_what_goes_into_it(marked, layers):
    """Layer i changes channel i, so the state in front of it has other channels before i only."""
    model, scale = marked
    architecture = model.path.name.partition("-")[0]
    embedding = tiny_models.weights(architecture, marked=True)["token_embd.weight"][TEXT] * scale
    model.tap(layers)
    found = model.decode(TEXT, n_logits=2).hidden
    assert found.shape == (len(TEXT), len(layers), tiny_models.WIDTH)
    assert found.dtype == np.float32
    for layer in layers:
        same = np.isclose(found[:, layer], embedding, rtol=1e-6, atol=0)
        assert same[:, layer:].all()
        assert not same[:, :layer].all(0).any()


def test_layers_come_in_the_order_asked_for(model):
    model.tap(range(N_LAYER))
    in_order = model.decode(TEXT).hidden.copy()
    model.truncate(0)
    model.tap([4, 1, 4])
    assert np.array_equal(model.decode(TEXT).hidden, in_order[:, [4, 1, 4]])


def test_final_states_are_those_of_the_logits(model):
    architecture = model.path.name.partition("-")[0]
    output = tiny_models.weights(architecture)["output.weight"]
    for layers in ([FINAL], [2, FINAL], [N_LAYER, FINAL]):
        model.truncate(0)
        model.tap(layers)
        outputs = model.decode(TEXT, n_logits=len(TEXT))
        assert near(outputs.hidden[:, -1] @ output.T, outputs.logits, 1e-4)


def test_final_states_are_the_normed_output_of_the_last_layer(model):
    architecture = model.path.name.partition("-")[0]
    norm = tiny_models.weights(architecture)["output_norm.weight"]
    model.tap([N_LAYER, FINAL])
    last, final = np.moveaxis(model.decode(TEXT, n_logits=0).hidden, 1, 0)
    mean = (last**2).mean(-1, keepdims=True)
    assert near(last / np.sqrt(mean + tiny_models.EPSILON) * norm, final, 1e-5)


@pytest.mark.parametrize("layers", [(1, 3, 5), (FINAL,), ALL], ids=str)
@pytest.mark.parametrize("n_logits", [0, 1, 20])
def test_prompts_in_chunks_have_the_states_of_all_tokens(model, layers, n_logits):
    rows = model.decode(LONG, n_logits).logits.copy()
    one_by_one = states_one_by_one(model, LONG, layers)
    model.truncate(0)
    outputs = model.decode(LONG, n_logits)
    assert outputs.hidden.shape == (len(LONG), len(layers), tiny_models.WIDTH)
    assert near(outputs.hidden, one_by_one)
    assert outputs.logits.shape == (n_logits, model.vocab_size)
    assert near(outputs.logits, rows)


@pytest.mark.parametrize("layers", [(1, 3, 5), (FINAL,), ALL], ids=str)
def test_nodes_have_the_states_of_their_paths(model, layers):
    parents = (-1, 0, 1, 1, 0, -1, 5, 5)
    nodes = [3 + 5 * i for i in range(len(parents))]
    model.tap(layers)
    outputs = model.decode_tree([*TEXT, *nodes], parents)
    assert outputs.logits.shape == (len(parents) + 1, model.vocab_size)
    tree = outputs.hidden.copy()
    assert tree.shape == (len(TEXT) + len(nodes), len(layers), tiny_models.WIDTH)
    model.keep(())
    for node in range(len(parents)):
        model.truncate(len(TEXT))
        chain = model.decode([nodes[i] for i in path_to(parents, node)], 1).hidden
        assert near(chain[-1], tree[len(TEXT) + node])
    model.truncate(0)
    assert near(model.decode(TEXT).hidden, tree[: len(TEXT)])


@pytest.mark.parametrize("layers", [(2,), ALL], ids=str)
def test_grown_nodes_have_the_states_of_their_paths(model, layers):
    model.tap(layers)
    model.decode(TEXT)
    first = model.grow([7, 8], [-1, -1]).hidden.copy()
    second = model.grow([9, 10, 11], [0, 1, 1]).hidden.copy()
    assert (len(first), len(second)) == (2, 3)
    model.keep(())
    for path, state in (([8], first[1]), ([7, 9], second[0]), ([8, 11], second[2])):
        model.truncate(len(TEXT))
        assert near(model.decode(path).hidden[-1], state)


@pytest.mark.parametrize("layers", [(1, 3, 5), ALL], ids=str)
def test_after_a_failure_there_are_the_states_of_the_next_call_only(model, layers, monkeypatch):
    expected = states_one_by_one(model, LONG, layers)
    model.truncate(0)
    stop_within(monkeypatch, 2)
    with pytest.raises(Aborted):
        model.decode(LONG)
    n_past = model.n_past
    rest = model.decode(LONG[n_past:], 1).hidden
    assert near(rest, expected[n_past:])
    with pytest.raises(ContextFull):
        model.decode(LONG * 2)
    with pytest.raises(ContextFull):
        model.decode_tree([*LONG, *LONG, 1], [-1])
    model.truncate(90)
    assert near(model.decode(LONG[90:], 1).hidden, expected[90:])


@pytest.mark.parametrize("abort", [None, lambda: None], ids=["plain", "abortable"])
def test_ctrl_c_is_raised_and_leaves_a_usable_model(model, abort, monkeypatch):
    layers = (1, N_LAYER)
    expected = states_one_by_one(model, LONG, layers)
    model.truncate(0)
    collect, n_calls = hidden.Taps.collect, []

    def pressed(taps, n_tokens):
        n_calls.append(n_tokens)
        if len(n_calls) == 2:
            signal.raise_signal(signal.SIGINT)
        collect(taps, n_tokens)

    monkeypatch.setattr(hidden.Taps, "collect", pressed)
    with pytest.raises(KeyboardInterrupt):
        model.decode(LONG, abort=abort)
    monkeypatch.undo()
    n_past = model.n_past
    assert 0 < n_past < len(LONG)
    assert near(model.decode(LONG[n_past:]).hidden, expected[n_past:])


@pytest.mark.parametrize("architecture", ["qwen2", "gemma3"])
def test_ctrl_c_within_a_callback_is_not_lost(tmp_path, architecture, monkeypatch):
    model = open_tiny(tmp_path, architecture)
    expected = states_one_by_one(model, TEXT, [1, 4])
    copy, n_copies = hidden.WatchedStates._copy, []

    def pressed(taps, tensor, place):
        n_copies.append(place)
        if len(n_copies) == 1:
            signal.raise_signal(signal.SIGINT)
        copy(taps, tensor, place)

    monkeypatch.setattr(hidden.WatchedStates, "_copy", pressed)
    model.truncate(0)
    with pytest.raises(KeyboardInterrupt):
        model.decode(TEXT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    model.truncate(0)
    assert near(model.decode(TEXT).hidden, expected)
    model.close()


def test_tapped_logits_are_the_same_to_the_last_bit(model):
    plain = model.decode(LONG, 5).logits.copy()
    for layers in ((1, 3, 5), (0,), (2, 2)):
        model.tap(layers)
        model.truncate(0)
        assert np.array_equal(model.decode(LONG, 5).logits, plain)
    model.tap(())
    model.truncate(0)
    assert np.array_equal(model.decode(LONG, 5).logits, plain)


@pytest.mark.parametrize("layers", [(1, 3), ALL], ids=str)
def test_what_is_in_the_cache_stays(model, layers):
    expected = states_one_by_one(model, TEXT, layers)[6:]
    model.tap(())
    model.truncate(0)
    model.decode(TEXT[:6])
    model.tap(layers)
    assert model.n_past == 6
    assert near(model.decode(TEXT[6:]).hidden, expected)
    row = model.decode([1]).logits[0].copy()
    model.tap(())
    assert model.n_past == len(TEXT) + 1
    model.truncate(len(TEXT))
    assert near(model.decode([1]).logits[0], row)


@pytest.mark.parametrize("layers", [(1, 3), (FINAL,), ALL], ids=str)
def test_off_is_as_before(model, layers):
    batch = model.capabilities.max_batch
    model.tap(layers)
    model.tap(())
    assert model._taps is None
    assert model.capabilities.max_batch == batch
    outputs = model.decode(LONG, 3)
    assert outputs.hidden is None
    assert outputs.logits.shape == (3, model.vocab_size)


def test_no_callback_is_left_when_off(tmp_path, monkeypatch):
    made = []
    init = lib.llama_init_from_model
    monkeypatch.setattr(
        lib, "llama_init_from_model", lambda m, p: made.append(bool(p.cb_eval)) or init(m, p)
    )
    model = open_tiny(tmp_path, "qwen2")
    model.tap([2])
    model.tap(())
    assert made == [False, True, True, False]  # the second to see what there is
    with monkeypatch.context() as patched:
        patched.setattr(hidden, "inspect_metadata", None)  # reading a vocabulary takes long
        model.tap([2])
        model.tap([3])
        model.tap(())
    assert made == [False, True, True, False, True, True, False]
    model.close()
    del made[:]
    model = open_tiny(tmp_path, "llama")
    model.tap([2])
    assert made == [False]
    model.close()


@pytest.mark.parametrize("layer", [N_LAYER + 1, -2, 1000, 1.5, None])
def test_layers_that_are_not_there_are_refused(model, layer):
    model.tap([1])
    with pytest.raises(ConfigError, match=f"no layer {layer}.*layers 0 to {N_LAYER - 1}"):
        model.tap([1, layer])
    assert model.decode(TEXT).hidden.shape == (len(TEXT), 1, tiny_models.WIDTH)


def test_states_that_the_engine_does_not_name_are_refused(tmp_path, monkeypatch):
    model = open_tiny(tmp_path, "qwen2")
    model.tap([1])
    there = [each for each in model._tensors if each[0] != "l_out-2"]
    monkeypatch.setattr(hidden.Tappable, "_tensors", there)
    del model._tensors
    with pytest.raises(ConfigError, match="hidden states of layer 3 for models"):
        model.tap([3])
    assert model.decode(TEXT).hidden.shape == (len(TEXT), 1, tiny_models.WIDTH)
    model.close()


def test_a_library_without_the_functions_is_watched(tmp_path, monkeypatch):
    model = open_tiny(tmp_path, "llama")
    given = states_one_by_one(model, TEXT, range(N_LAYER))
    model.tap(())
    monkeypatch.setattr(hidden, "LAYER_INPUTS", ("llama_no_such_function",))
    assert np.array_equal(states_one_by_one(model, TEXT, range(N_LAYER)), given)
    assert model._taps.watch
    monkeypatch.setattr(hidden, "WATCHING", ("ggml_no_such_function",))
    with pytest.raises(ConfigError, match="need ggml_no_such_function, which"):
        model.tap([3])
    model.close()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_states_are_given_where_the_architecture_can(tmp_path, architecture):
    model = open_tiny(tmp_path, architecture)
    model.tap([2])
    assert bool(model._taps.watch) == (architecture not in hidden.GIVE_INPUTS)
    model.close()


def test_twins_are_not_tapped(tmp_path):
    model = open_tiny(tmp_path, "qwen2")
    model.tap([1])
    twin = model._twin(256)
    assert twin.decode(TEXT).hidden is None
    twin.tap([2])
    assert twin.decode(TEXT).hidden.shape == (2 * len(TEXT) // 2, 1, tiny_models.WIDTH)
    twin.close()
    assert model.decode(TEXT).hidden is not None
    model.close()


ABORTS = {  # architecture, layers: each would end the process if it got to the engine
    "not an architecture with taps": ("qwen2", [2]),
    "the layer behind the last one": ("llama", [N_LAYER]),
    "beyond all layers": ("llama", [99]),
    "negative": ("llama", [-7]),
    "final states of more tokens than outputs": ("llama", [FINAL]),
    "all": ("llama", list(ALL)),
}


@pytest.mark.parametrize("case", ABORTS)
def test_nothing_ends_the_process(case, tmp_path):
    architecture, layers = ABORTS[case]
    path = tiny_models.write(tmp_path, architecture)
    program = f"""
        from edgespec import ConfigError, EngineConfig
        from edgespec.backends.llama_cpp import LlamaCppModel
        model = LlamaCppModel({str(path)!r}, EngineConfig(n_ctx=256, n_batch=64, n_threads=1))
        try:
            model.tap({layers!r})
        except ConfigError as error:
            print("refused:", error)
        model.decode([3 + i for i in range(100)])
        model.decode_tree([4, 5, 6], [-1, -1])
        model.keep([1])
        print("lives")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("lives\n")
    assert ("refused" in done.stdout) == (not set(layers) <= set(ALL))
