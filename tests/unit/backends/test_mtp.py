"""MTP layers on llama.cpp, tiny and random, against NumPy."""

import numpy as np
import pytest

from edgespec.backends.base import FINAL
from edgespec.sampling.trees import path_to
from tests.helpers import tiny_models, tiny_mtp
from tests.helpers.llama_heads import (
    CONFIG,
    EXACT,
    LONG,
    N_CTX,
    TEXT,
    OtherEngine,
    features_of,
    llama_cpp,
    near,
    states_of,
)  # fmt: skip

hidden = llama_cpp.hidden

pytestmark = pytest.mark.llama_cpp

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
        """Return the row after a path of tokens after the text, which is left as it was."""
        n, states = len(self._layers[0].keys), [own]
        for depth in range(1, len(tokens) + 1):
            layer = self._layers[depth if len(self._layers) > 1 else 0]
            layer.truncate(n)
            for token, state in zip(tokens, states, strict=False):
                row, own = layer.step(token, state)
            states.append(own)
            layer.truncate(n)
        return row


@pytest.mark.parametrize("kind", tiny_mtp.KINDS, ids=str)
def test_its_facts(head_of, kind):
    architecture, n_mtp = kind
    head = head_of(kind)
    assert (head.kind, head.layers) == ("mtp", (READS.get(architecture, FINAL),))
    assert (head.max_depth, head.n_ctx) == (n_mtp if n_mtp > 1 else 0, N_CTX)
    assert llama_cpp.has_own_head(head.path)
    assert not llama_cpp.is_head(head.path)


def test_its_speed_is_kept_apart_from_the_targets(opened, head_of):
    head, target = head_of(("hy_v3", 1)), opened("hy_v3", 1)
    assert head.fingerprint() != target.fingerprint()


@pytest.mark.parametrize("kind", tiny_mtp.KINDS, ids=str)
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


@pytest.mark.parametrize("kind", tiny_mtp.KINDS, ids=str)
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


@pytest.mark.parametrize("kind", tiny_mtp.KINDS, ids=str)
@pytest.mark.parametrize(("start", "known"), [(37, 0), (0, 30), (0, 130), (20, 1000)])
def test_a_text_may_begin_later_and_states_be_missing(opened, head_of, kind, start, known):
    head, layers = head_of(kind), Layers(kind)
    states = states_of(opened(*kind), LONG)
    head.features, head.start = features_of(states[known:], known), start
    expected, own = layers.read(LONG[start : start + 80], states, start, known)
    assert near(head.decode(LONG[start : start + 80], 10).logits, expected[-10:])
    assert near(head.grow([9], [-1]).logits[0], layers.path([9], own))


@pytest.mark.parametrize("kind", tiny_mtp.KINDS, ids=str)
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


@pytest.mark.parametrize("kind", tiny_mtp.KINDS, ids=str)
def test_a_tree_at_once_against_numpy(opened, head_of, kind):
    head, layers, states = head_of(kind, CONFIG), Layers(kind), states_of(opened(*kind), TEXT)
    _, own = layers.read(TEXT, states)
    head.features = features_of(states)
    parents, nodes = (-1, 0, 0, -1, 3), [20, 21, 22, 23, 24]
    rows = head.decode_tree([*TEXT, *nodes], parents).logits
    for node in range(len(parents)):
        path = [nodes[i] for i in path_to(parents, node)]
        assert near(rows[node + 1], layers.path(path, own), 5e-3)


@pytest.mark.parametrize("kind", tiny_mtp.KINDS, ids=str)
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
