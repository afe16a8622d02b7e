"""MTP layers on llama.cpp, tiny and random, against NumPy."""

import numpy as np
import pytest

from edgespec import Aborted, ContextFull
from edgespec.backends.base import FINAL, Head
from edgespec.sampling.trees import path_to
from tests.helpers import tiny_models, tiny_mtp
from tests.helpers.gguf_files import TOKENS
from tests.helpers.llama_heads import (
    CONFIG,
    EXACT,
    LONG,
    N_CTX,
    TEXT,
    OtherEngine,
    features_of,
    lib,
    llama_cpp,
    near,
    press,
    states_of,
)  # fmt: skip
from tests.helpers.selection import every

hidden = llama_cpp.hidden

pytestmark = pytest.mark.llama_cpp

KINDS = [
    ("hy_v3", 1), ("hy_v3", 3), ("mimo2", 1), ("mimo2", 3), ("qwen35", 1), ("qwen35moe", 1),
    ("qwen3next", 1), ("glm4moe", 1),
]  # fmt: skip
READS = {"mimo2": tiny_models.N_LAYER}  # others: FINAL


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("mtp")


@pytest.fixture(scope="module")
def opened(folder):
    """Open targets, once each, tapped for their MTP layers."""
    made = {}

    def target(architecture, n_mtp, config=EXACT):
        key = architecture, n_mtp, config
        if key not in made:
            path = tiny_mtp.write(folder, architecture, n_mtp)
            made[key] = llama_cpp.LlamaCppModel(path, config)
            made[key].tap([READS.get(architecture, FINAL)])
        return made[key]

    yield target
    for model in made.values():
        model.close()


@pytest.fixture
def head_of(opened):
    """Open heads in the files of targets, which know the states of LONG."""
    made = []

    def head(kind, config=EXACT):
        target = opened(*kind, config)
        made.append(llama_cpp.open_head(target.path, config, target))
        made[-1].features = features_of(states_of(target, LONG))
        return made[-1]

    yield head
    for head in made:
        head.close()


@pytest.fixture(params=every(3, KINDS, "more kinds of heads"), ids=str)
def head(request, head_of):
    return head_of(request.param)


class Layers:
    """The MTP layers of a target in NumPy, as they are used one after another."""

    def __init__(self, kind):
        weights = tiny_mtp.mtp_weights(*kind)
        layers = range(tiny_models.N_LAYER, tiny_models.N_LAYER + kind[1])
        self._layers = [tiny_mtp.Reference(kind[0], weights, layer) for layer in layers]

    def read(self, tokens, states, start=0, known=0):
        """Read tokens of a text from `start` on; return the rows and the last state."""
        rows = []
        for position, token in enumerate(tokens, start):
            before = position - 1
            state = states[before, 0] if before >= known else np.zeros(tiny_models.WIDTH)
            for layer in self._layers[1:]:
                layer.step(token, state)
            row, own = self._layers[0].step(token, state)
            rows.append(row)
        return np.array(rows), own

    def path(self, tokens, own):
        """Return the row behind a path of tokens behind the text, which is left as it was."""
        n, states = len(self._layers[0].keys), [own]
        for depth in range(1, len(tokens) + 1):
            layer = self._layers[depth if len(self._layers) > 1 else 0]
            layer.truncate(n)
            for token, state in zip(tokens, states, strict=False):
                row, own = layer.step(token, state)
            states.append(own)
            layer.truncate(n)
        return row


def test_the_contract(head):
    assert isinstance(head, Head)
    architecture = head.path.name.partition("-")[0]
    assert (head.kind, head.layers) == ("mtp", (READS.get(architecture, FINAL),))
    assert head.max_depth == (3 if head.path.name.endswith("-3.gguf") else 0)
    assert (head.vocab_size, head.n_ctx) == (len(TOKENS), N_CTX)
    assert head.tokenizer.vocab_size == len(TOKENS)
    assert head.capabilities.truncate
    assert llama_cpp.has_own_head(head.path)
    assert not llama_cpp.is_head(head.path)


def test_its_speed_is_kept_apart_from_the_targets(opened, head_of):
    head, target = head_of(("hy_v3", 1)), opened("hy_v3", 1)
    assert head.fingerprint() != target.fingerprint()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_what_the_layers_read_costs_no_logits(opened, kind, monkeypatch):
    """The final states, normed if they are not, are those taken with the logits of every token."""
    target = opened(*kind)
    layers, weights = [READS.get(kind[0], FINAL)], tiny_mtp.mtp_weights(*kind)
    given = states_of(target, TEXT)
    assert not target._taps.of_outputs
    if layers != [FINAL]:
        mean = (given**2).mean(-1, keepdims=True)
        given = given / np.sqrt(mean + tiny_models.EPSILON) * weights["output_norm.weight"]
    target.tap(())
    monkeypatch.setattr(hidden, "reads", lambda *_: None)
    target.tap([2, FINAL] if kind[0] in hidden.GIVE_INPUTS else [FINAL])
    assert target._taps.of_outputs
    assert near(states_of(target, TEXT)[:, -1:], given, 1e-5)
    monkeypatch.undo()
    target.tap(())
    target.tap(layers)
    assert not target._taps.of_outputs


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("n", [1, 5, 40, 150])
def test_rows_are_those_of_numpy(opened, head_of, kind, n):
    head, layers = head_of(kind), Layers(kind)
    expected, own = layers.read(LONG[:n], states_of(opened(*kind), LONG))
    wanted = min(n, 20)
    assert near(head.decode(LONG[:n], wanted).logits, expected[-wanted:])
    assert head.n_past == n
    assert near(head.grow([9], [-1]).logits[0], layers.path([9], own))
    assert near(head.grow([7], [0]).logits[0], layers.path([9, 7], own))
    assert head.n_past == n + 2


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("start", "known"), [(37, 0), (0, 30), (0, 130), (20, 1000)])
def test_a_text_may_begin_later_and_states_be_missing(opened, head_of, kind, start, known):
    head, layers = head_of(kind), Layers(kind)
    states = states_of(opened(*kind), LONG)
    head.features, head.start = features_of(states[known:], known), start
    expected, own = layers.read(LONG[start : start + 80], states, start, known)
    assert near(head.decode(LONG[start : start + 80], 10).logits, expected[-10:])
    assert near(head.grow([9], [-1]).logits[0], layers.path([9], own))


def test_one_by_one_equals_at_once(head):
    at_once = head.decode(LONG, 10).logits.copy()
    head.truncate(0)
    rows = [head.decode([token]).logits[0].copy() for token in LONG]
    assert near(np.array(rows[-10:]), at_once)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("accepted", range(3))
def test_after_accepting_a_of_k_it_is_a_fresh_head(opened, head_of, kind, accepted):
    """Fed with the target's states of what was accepted, nothing of its own states left."""
    head, target = head_of(kind), opened(*kind)
    for text in (TEXT, [*TEXT, 7, 9]):  # cells that were used once are used again
        head.features = features_of(states_of(target, text))
        head.truncate(0)
        row = head.decode(text).logits[0]
        tokens = [int(row.argmax())]
        tokens.append(int(head.grow(tokens, [-1]).logits[0].argmax()))
        head.grow(tokens[1:], [0])
        head.keep(())
        assert head.n_past == len(text)
        more = [*tokens[:accepted], 99]  # accepted, and the target's own
        head.features.append(len(text), target.decode(more).hidden)
        found = head.decode(more, len(more)).logits.copy()
        grown = head.grow([4], [-1]).logits.copy()
        fresh = head_of(kind)
        fresh.features = head.features
        assert near(found, fresh.decode([*text, *more], len(more)).logits)
        assert near(grown, fresh.grow([4], [-1]).logits)


GROWTHS = [([-1],), ([-1, -1],), ([-1], [0], [0]), ([-1, -1], [0, 1, 0], [-1], [1, 5])]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("calls", GROWTHS, ids=str)
def test_nodes_have_the_rows_of_their_paths_as_chains(head_of, kind, calls):
    head = head_of(kind, CONFIG)
    expected = None
    for _ in range(2):  # the second behind a tree that was forgotten
        head.truncate(0)
        head.decode(TEXT)
        nodes, parents, rows = [], [], []
        for call in calls:
            tokens = [11 + 3 * (len(nodes) + i) for i in range(len(call))]
            nodes, parents = [*nodes, *tokens], [*parents, *call]
            rows += list(head.grow(tokens, call).logits.copy())
        assert head.n_past == len(TEXT) + len(nodes)
        head.keep(())
        assert expected is None or near(np.array(rows), expected, 1e-5)
        expected = np.array(rows)
        for node, row in enumerate(rows):
            for i, j in enumerate(path_to(parents, node)):
                found = head.grow([nodes[j]], [i - 1]).logits[0]
            assert near(found, row, 2e-3)
            head.keep(())


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_tree_leaves_the_text_as_it_was(head_of, kind):
    head, fresh = head_of(kind, CONFIG), head_of(kind, CONFIG)
    text = list(TEXT)
    for i in range(4):
        head.decode(text[head.n_past :])
        head.grow([5, 6, 7], [-1, -1, -1])
        head.grow([8, 9, 10], [0, 2, 0])
        head.keep(())
        text += [60 + i, 90 + i]
    rows = head.decode(text[head.n_past :], 2).logits.copy()
    assert near(rows, fresh.decode(text, 2).logits, 5e-3)
    grown = head.grow([4, 3], [-1, -1]).logits.copy()
    assert near(grown, fresh.grow([4, 3], [-1, -1]).logits, 5e-3)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_tree_at_once_against_numpy(opened, head_of, kind):
    head, layers, states = head_of(kind, CONFIG), Layers(kind), states_of(opened(*kind), TEXT)
    _, own = layers.read(TEXT, states)
    head.features = features_of(states)
    parents, nodes = (-1, 0, 0, -1, 3), [20, 21, 22, 23, 24]
    rows = head.decode_tree([*TEXT, *nodes], parents).logits
    for node in range(len(parents)):
        path = [nodes[i] for i in path_to(parents, node)]
        assert near(rows[node + 1], layers.path(path, own), 5e-3)


def test_nodes_behind_the_last_layer_are_refused(head_of):
    head = head_of(("hy_v3", 3))
    head.decode(TEXT)
    expected = head.grow([5], [-1]).logits.copy()
    head.grow([6], [0])
    with pytest.raises(ValueError, match="a node at depth 3; there are 3 MTP layers"):
        head.grow([7], [1])
    assert head.n_past == len(TEXT)
    assert near(head.grow([5], [-1]).logits, expected)


def test_truncated_and_gone_on(head):
    expected = head.decode(LONG[:60], 5).logits.copy()
    head.grow([5], [-1])
    with pytest.raises(ValueError, match=r"do not stay; keep \(\) instead of \(0,\)"):
        head.keep((0,))
    head.truncate(50)
    with pytest.raises(ValueError, match="behind a token that `decode` has read last"):
        head.grow([5], [-1])
    assert near(head.decode(LONG[50:60], 5).logits, expected)
    state = head.checkpoint()
    head.decode([1, 2])
    head.restore(state)
    assert head.n_past == 60


def test_context_full_appends_nothing(head):
    head.decode(LONG, 0)
    with pytest.raises(ContextFull):
        head.decode(LONG)
    assert head.n_past == len(LONG)
    head.decode(LONG[: N_CTX - len(LONG) - 1])
    head.grow([5], [-1])
    with pytest.raises(ContextFull):
        head.grow([5], [0])
    assert head.n_past == N_CTX - 1
    head.grow([5], [-1])


def test_an_abort_leaves_a_usable_head(head):
    expected = head.decode(LONG, 3).logits.copy()
    row = head.grow([9], [-1]).logits[0].copy()
    for n_calls in (0, 1, 3, 30):
        head.truncate(0)
        calls = iter([None] * n_calls)
        with pytest.raises(Aborted):
            head.decode(LONG, abort=lambda calls=calls: next(calls, "cancelled"))
        assert head.n_past < len(LONG)
        assert near(head.decode(LONG[head.n_past :], 3).logits, expected)
        assert near(head.grow([9], [-1]).logits[0], row)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("grows", [False, True])
def test_ctrl_c_leaves_a_usable_head(head, n, grows, monkeypatch):
    expected = head.decode(LONG, 3).logits.copy()
    row = head.grow([9], [-1]).logits[0].copy()
    if not grows:
        head.truncate(0)
    press(monkeypatch, n=0 if grows else n)
    with pytest.raises(KeyboardInterrupt):
        head.grow([3], [0]) if grows else head.decode(LONG)
    monkeypatch.undo()
    assert head.n_past <= len(LONG)
    head.truncate(len(LONG) - n)
    assert near(head.decode(LONG[head.n_past :], 1).logits, expected[-1:])
    assert near(head.grow([9], [-1]).logits[0], row)


@pytest.mark.parametrize("grows", [False, True])
def test_a_failure_of_the_engine_leaves_a_usable_head(head, grows, monkeypatch):
    expected = head.decode(LONG, 3).logits.copy()
    row = head.grow([9], [-1]).logits[0].copy()
    monkeypatch.setattr(lib, "llama_decode", lambda *_: -3)
    with pytest.raises(Exception, match="llama_decode failed with code -3"):
        head.grow([3], [0]) if grows else head.decode([5])
    monkeypatch.undo()
    assert head.n_past == 0
    assert near(head.decode(LONG, 3).logits, expected)
    assert near(head.grow([9], [-1]).logits[0], row)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_layers_in_a_file_of_their_own(opened, head_of, folder, kind):
    path = tiny_mtp.write(folder, *kind, alone=True)
    assert llama_cpp.is_head(path)
    assert not llama_cpp.has_own_head(path)
    expected = head_of(kind)
    for target in (opened(*kind), OtherEngine()):
        head = llama_cpp.open_head(path, EXACT, target)
        head.features = expected.features
        assert (head.kind, head.layers) == (expected.kind, expected.layers)
        assert near(head.decode(LONG, 5).logits, expected.decode(LONG, 5).logits, 1e-5)
        assert near(head.grow([4], [-1]).logits, expected.grow([4], [-1]).logits, 1e-5)
        expected.truncate(0)
        head.close()
