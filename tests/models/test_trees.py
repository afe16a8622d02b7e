"""Trees on real weights: rows of nodes, text, and what is left of rejected branches."""

import contextlib
import random

import numpy as np
import pytest

import edgespec
import edgespec.backends.llama_cpp.evaluation as backend
from edgespec import EngineConfig
from edgespec.backends.llama_cpp import LlamaCppModel
from edgespec.sampling.trees import path_to
from tests.helpers import libllama
from tests.helpers.selection import first, share
from tests.helpers.trees import random_tree

libllama.require()


pytestmark = pytest.mark.llama_cpp


@pytest.fixture(params=first(1, [("smollm2", 100), ("gemma", 700)], "a window as well"), ids=str)
def model(request):
    """Return a model after so many tokens; Gemma's window of 512 is passed."""
    name, n_past = request.param
    config = EngineConfig(n_ctx=1024, n_threads=1, flash_attn="on", batch_invariant=True)
    made = LlamaCppModel(request.getfixturevalue(name), config)
    made.decode([random.Random(i).randrange(500, 30000) for i in range(n_past)], 0)
    yield made
    made.close()


def test_rows_are_those_of_the_paths_and_later_rows_those_of_plain_decoding(model):
    rng, n_past, kept = random.Random(0), model.n_past, []
    for _ in range(share(20, 3)):  # rejected branches pile up
        n = min(rng.randrange(2, 32), model.capabilities.max_rows - 1)
        parents = random_tree(rng, n, model.capabilities.max_leaves)
        tokens = [rng.randrange(500, 30000) for _ in range(n + 1)]
        path = path_to(parents, rng.randrange(-1, n))
        rows = model.decode_tree(tokens, parents).logits
        kept.append((tokens, parents, path, rows[[0, *(node + 1 for node in path)]].copy()))
        model.keep(path)
    assert model.n_past == n_past + sum(1 + len(path) for _, _, path, _ in kept)
    model.truncate(n_past)
    for tokens, _, path, rows in kept:
        for token, row in zip([tokens[0], *(tokens[node + 1] for node in path)], rows, strict=True):
            assert np.array_equal(model.decode([token]).logits[0], row)


@pytest.mark.long("real weights; tests/models/test_slot_trees.py packs, too")
def test_every_node_and_the_cache_when_parked_cells_are_packed(model, monkeypatch):
    monkeypatch.setattr("edgespec.backends.llama_cpp.branches._MOST_PARKED", 16)
    rng, n_past = random.Random(1), model.n_past
    line = []
    for _ in range(20):  # two nodes, the second is kept: a cell is parked each time
        tokens = [rng.randrange(500, 30000) for _ in range(3)]
        model.decode_tree(tokens, (-1, -1))
        model.keep((1,))
        line += [tokens[0], tokens[2]]
    parents = random_tree(rng, min(15, model.capabilities.max_rows - 1), 15)
    nodes = [rng.randrange(500, 30000) for _ in parents]
    rows = model.decode_tree([7, *nodes], parents).logits.copy()
    model.keep(())
    for node in range(-1, len(nodes)):
        model.truncate(n_past + len(line))
        chain = [7, *(nodes[i] for i in path_to(parents, node))]
        assert np.array_equal(model.decode(chain, len(chain)).logits[-1], rows[node + 1])


@pytest.mark.long("real weights; tests/contract/test_models.py grows trees of toys")
def test_rows_of_grown_trees_are_those_of_their_paths(model):
    """Its parts are evaluated one after the other, and a path of each tree is kept. Rows after it
    may differ by rounding: the cells of rejected nodes are filled anew.
    """
    rng, n_past = random.Random(2), model.n_past
    for _ in range(6):
        root, nodes, parents, rows = rng.randrange(500, 30000), [], [], []
        model.decode([root])
        for n in (2, 3, 1, 4):
            more = [rng.randrange(-1, len(nodes)) for _ in range(n)]
            tokens = [rng.randrange(500, 30000) for _ in range(n)]
            rows += list(model.grow(tokens, more).logits.copy())
            nodes, parents = nodes + tokens, parents + more
        path = path_to(parents, rng.randrange(-1, len(nodes)))
        model.keep(path)
        assert model.n_past == n_past + 1 + len(path)
        behind = model.decode([root]).logits[0].copy()
        model.truncate(n_past)
        model.decode([root])
        for node in path:
            assert np.array_equal(model.decode([nodes[node]]).logits[0], rows[node])
        assert np.corrcoef(model.decode([root]).logits[0], behind)[0, 1] > 0.99
        model.truncate(n_past)


@pytest.mark.parametrize("name", first(1, ["smollm2", "gemma"], "a window as well"))
def test_text_with_a_tree_at_every_step_is_plain_text(request, name):
    config = {"method": "runner_ups", "num_speculative_tokens": 7, "draft_p_min": 0.0}
    n_siblings = 0
    with edgespec.load(
        request.getfixturevalue(name), None, n_ctx=1024, batch_invariant=True,
        speculative_config=config,
    ) as engine:  # fmt: skip
        for text in ("def fibonacci(n):\n", "One, two, three, one, two,"):
            prompt = engine.encode(text)
            n = {"max_tokens": share(40, 2)}
            plain = engine.generate(prompt, **n, disable_spec_decode=True).token_ids
            done = engine.generate(prompt, **n)
            assert done.token_ids == plain
            drafted = done.stats.drafted_per_position
            n_siblings += drafted[0] - done.stats.num_draft_steps
            assert sum(drafted) == done.stats.num_draft_tokens
    assert n_siblings > 10


def test_no_trees_without_flash_attention(smollm2):
    model = LlamaCppModel(smollm2, EngineConfig(n_ctx=256, flash_attn="off"))
    assert model.capabilities.max_leaves == 1
    model.close()


@pytest.mark.parametrize("name", first(
    1, ["llama_memory_seq_cp", "llama_decode", "llama_memory_seq_rm"], "more native calls"
))  # fmt: skip
def test_ctrl_c_in_a_native_call_leaves_nothing(smollm2, monkeypatch, name):
    config = {"method": "recycling", "num_speculative_tokens": 7, "draft_p_min": 0.0}
    call, left, interrupted = getattr(backend.lib, name), 0, []

    def counted(*args):
        nonlocal left
        found = call(*args)
        left -= 1
        if not left:  # Python raises it as soon as a native call is done
            interrupted.append(name)
            raise KeyboardInterrupt
        return found

    with edgespec.load(
        smollm2, None, n_ctx=1024, batch_invariant=True, speculative_config=config
    ) as engine:
        prompt = engine.encode("The history of the")
        plain = engine.generate(prompt, max_tokens=32, disable_spec_decode=True).token_ids
        monkeypatch.setattr(backend.lib, name, counted)
        for n in (1, 3, 8, 14):
            left, said = n, []
            with contextlib.suppress(KeyboardInterrupt):
                for event in engine.stream(prompt, max_tokens=32):
                    said += [event.token] if event.type == "token" else []
            left = 0
            rest = engine.generate([*prompt, *said], max_tokens=33 - len(said))
            assert (*said, *rest.token_ids)[:32] == plain
    assert len(interrupted) > 2


@pytest.mark.long("more of what Ctrl-C may interrupt")
def test_cells_of_a_tree_whose_keeping_was_stopped_are_freed(smollm2, monkeypatch):
    model = LlamaCppModel(smollm2, EngineConfig(n_ctx=256, n_threads=1, flash_attn="on"))
    copy = backend.lib.llama_memory_seq_cp
    asked = []

    def interrupted(memory, source, target, start, end):
        copy(memory, source, target, start, end)
        if asked:
            raise KeyboardInterrupt

    monkeypatch.setattr(backend.lib, "llama_memory_seq_cp", interrupted)
    for _ in range(8):
        model.decode([500, 501], 0)
        model.decode_tree([502, 503, 504], (-1, -1))
        asked.append("stop")
        with pytest.raises(KeyboardInterrupt):
            model.keep((1,))
        asked.clear()
    model.truncate(0)
    model.decode([500] * model.n_ctx, 1)
    assert model.n_past == model.n_ctx
    model.close()


def words(seed, n):
    rng = random.Random(seed)
    return [rng.randrange(500, 30000) for _ in range(n)]


def read(model, tokens):
    """Read tokens in pieces so small that their rows do not depend on the pieces."""
    for start in range(0, len(tokens), 8):
        model.decode(tokens[start : start + 8], 0)


@contextlib.contextmanager
def ctrl_c_behind(monkeypatch, name):
    """Let Ctrl-C come when the next native call of this name is done."""
    call = getattr(backend.lib, name)

    def interrupted(*args):
        call(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(backend.lib, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.fixture
def plain_rows(smollm2):
    """Return a model, and a function that gives the rows of a path as plain decoding does."""
    made = LlamaCppModel(smollm2, EngineConfig(n_ctx=1024, n_threads=1, flash_attn="on"))

    def rows(text, path):
        made.truncate(0)
        read(made, text)
        return made.decode(path, len(path)).logits.copy()

    yield made, rows
    made.close()


NAMES = ["llama_state_seq_set_data_ext", "llama_state_seq_get_data_ext"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.long("more of what Ctrl-C may interrupt")
def test_ctrl_c_while_cells_are_packed(plain_rows, monkeypatch, name):
    monkeypatch.setattr("edgespec.backends.llama_cpp.branches._MOST_PARKED", 2)
    model, rows = plain_rows
    read(model, words(0, 80))
    for _ in range(3):
        model.decode_tree([502, 503, 504], (-1, -1))
        model.keep((1,))
    with ctrl_c_behind(monkeypatch, name):
        model.decode([7])
    text = words(0, 120)
    assert model.n_past == 0
    read(model, text)
    found = model.decode_tree([7, 8, 9], (-1, -1)).logits.copy()
    for node in (1, 2):
        assert np.array_equal(found[[0, node]], rows(text, [7, 7 + node]))


def test_ctrl_c_while_a_tree_is_grown_on(plain_rows, monkeypatch):
    model, rows = plain_rows
    text = words(1, 100)
    read(model, text)
    model.grow([5, 6], (-1, -1))
    with ctrl_c_behind(monkeypatch, "llama_decode"):
        model.grow([7], (0,))
    assert model.n_past == 100
    read(model, text[:10])
    found = model.grow([5, 6], (-1, 0)).logits.copy()
    assert np.array_equal(found, rows(text + text[:10], [5, 6]))


@pytest.mark.long("more of what Ctrl-C may interrupt")
def test_ctrl_c_while_a_tree_is_entered(plain_rows, monkeypatch):
    """The leaf holds more of the text then than is known."""
    model, rows = plain_rows
    text = words(2, 300)
    read(model, text[:99])
    model.decode_tree([text[99], 8, 9], (-1, -1))
    model.keep(())
    read(model, text[100:200])
    with ctrl_c_behind(monkeypatch, "llama_memory_seq_cp"):
        model.decode_tree([7, 8, 9], (-1, -1))
    model.truncate(150)
    other = text[:150] + text[200:]
    read(model, other[150:])
    found = model.decode_tree([7, 8, 9], (-1, -1)).logits.copy()
    for node in (1, 2):
        assert np.array_equal(found[[0, node]], rows(other, [7, 7 + node]))


@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "coupled"]
)
@pytest.mark.long("real weights; tests/lossless has every kind of tree")
def test_text_with_trees_of_a_draft_model_is_plain_text(smollm2, small_draft, sampling):
    config = {
        "method": "draft_model", "num_speculative_tokens": 7, "draft_p_min": 0.0,
        "options": {"top_k": 3},
    }  # fmt: skip
    with edgespec.load(
        smollm2, small_draft, n_ctx=1024, batch_invariant=True, speculative_config=config
    ) as engine:
        prompt = engine.encode("The history of the")
        texts = []
        for off in (True, False):
            done = engine.generate(prompt, max_tokens=40, disable_spec_decode=off, **sampling)
            texts.append(done.token_ids)
        drafted = done.stats.drafted_per_position
        assert texts[0] == texts[1]
        assert drafted[0] > done.stats.num_draft_steps  # siblings
        assert done.stats.num_accepted_draft_tokens > 0
