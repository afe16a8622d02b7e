"""What heads of every kind on llama.cpp promise. The files of the kinds test what is special."""

import numpy as np
import pytest

from edgespec import Aborted, ContextFull, DecodeError, TruncatedModel
from edgespec.backends.base import Head
from edgespec.sampling.trees import path_to
from tests.helpers import tiny_dflash, tiny_gemma4, tiny_heads, tiny_models, tiny_mtp
from tests.helpers.gguf_files import TOKENS
from tests.helpers.llama_heads import (
    CONFIG,
    EXACT,
    LONG,
    N_CTX,
    TEXT,
    Pair,
    cut,
    llama_cpp,
    near,
    stop,
)  # fmt: skip
from tests.helpers.selection import every
from tests.helpers.stopping import stop_within

pytestmark = pytest.mark.llama_cpp

MTP = every(3, tiny_mtp.KINDS, "more kinds of heads")
READING = ["eagle3", "dflash", *MTP]  # an assistant only evaluates the last token of a text
KINDS = [*READING, "assistant"]
CHAINS = [("hy_v3", 3), ("mimo2", 3)]  # of MTP layers, each of which guesses one token


def write(folder, kind):
    """Write a target and its head; return their paths."""
    if kind == "assistant":
        return tiny_gemma4.write_target(folder), tiny_gemma4.write_assistant(folder)
    if kind not in ("eagle3", "dflash"):
        path = tiny_mtp.write(folder, *kind)
        return path, path
    write_head = tiny_heads.write if kind == "eagle3" else tiny_dflash.write
    return tiny_models.write(folder, "llama"), write_head(folder / "head.gguf")


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory):
    """Return a function that returns a target and a head of a kind, which are opened once."""
    pairs = {}

    def pair(kind, config):
        if (kind, config) not in pairs:
            paths = write(tmp_path_factory.mktemp("pair"), kind)
            pairs[kind, config] = Pair(*paths, config)
        return pairs[kind, config]

    yield pair
    for each in pairs.values():
        each.close()


@pytest.fixture(params=KINDS, ids=str)
def kind(request):
    return request.param


@pytest.fixture
def pair(kind, pair_of):
    return pair_of(kind, EXACT)


@pytest.fixture
def head(pair):
    """Return a head that has read nothing yet, and knows the target's states of LONG."""
    return pair.begin(LONG)


def rows_after(head, tokens):
    """Read tokens; return the row after them, after a node and after that node's child."""
    rows = [head.decode(tokens).logits[0].copy()]
    rows.append(head.grow([9], [-1]).logits[0].copy())
    rows.append(head.grow([7], [0]).logits[0].copy())
    head.keep(())
    return np.array(rows)


def test_the_contract(head):
    assert isinstance(head, Head)
    assert head.vocab_size == head.tokenizer.vocab_size == len(TOKENS)
    assert head.n_ctx >= N_CTX - 1
    assert head.capabilities.truncate
    assert head.fingerprint()["file"][0] == head.path.name


def test_one_by_one_equals_at_once(head):
    rows = [head.decode([token]).logits[0].copy() for token in LONG]
    for n in (1, 2, 5, 33, 40, 65, 149, 150):
        head.truncate(0)
        assert near(head.decode(LONG[:n]).logits[0], rows[n - 1])


def test_no_rows_wanted(head):
    assert head.decode(TEXT, 0).logits.shape == (0, head.vocab_size)
    assert head.grow([5], [-1]).logits.shape == (1, head.vocab_size)


@pytest.mark.parametrize("accepted", range(4))
def test_after_accepting_a_of_k_it_is_a_fresh_head(pair, accepted):
    """Fed with the target's states of what was accepted, nothing of its own states left."""
    for text in (TEXT, [*TEXT, 7, 9]):  # cells that were used once are used again
        head = pair.begin(text)
        drafted = [int(row.argmax()) for row in rows_after(head, text)]
        assert head.n_past == len(text)
        more = [*drafted[:accepted], 99]  # accepted, and the target's own
        pair.evaluate([text[-1], *more[:-1]])
        rows = rows_after(head, more)
        pair.renew()
        fresh = pair.begin([*text, *more])
        assert near(rows, rows_after(fresh, [*text, *more]))


# --- trees --------------------------------------------------------------------------------------


def check_paths(head, nodes, parents, rows):
    """Check that the nodes have the rows which their paths have when they are grown alone."""
    for node, row in enumerate(rows):
        for i, j in enumerate(path_to(parents, node)):
            alone = head.grow([nodes[j]], [i - 1]).logits[0]
        assert near(alone, row, 2e-3)
        head.keep(())


GROWTHS = [([-1],), ([-1, -1],), ([-1], [0], [0]), ([-1, -1], [0, 1, 0], [-1], [1, 5])]
DEEP = [([-1], [0], [1], [0, 0]), ([-1, -1], [0, 1], [1, -1], [4, 4, 2])]


@pytest.mark.parametrize("calls", GROWTHS + DEEP, ids=str)
def test_nodes_have_the_rows_of_their_paths_as_chains(kind, pair_of, calls):
    head = pair_of(kind, CONFIG).begin(LONG)
    if kind in CHAINS and calls in DEEP:
        pytest.skip("this tree is deeper than this head guesses")
    before = None
    for _ in range(2):  # the second after a tree that was forgotten
        head.truncate(0)
        head.decode(TEXT)
        nodes, parents, rows = [], [], []
        for call in calls:
            tokens = [11 + 3 * (len(nodes) + i) for i in range(len(call))]
            nodes, parents = [*nodes, *tokens], [*parents, *call]
            rows += list(head.grow(tokens, call).logits.copy())
        assert head.n_past == len(TEXT) + len(nodes)
        head.keep(())
        assert before is None or near(np.array(rows), before, 1e-5)
        before = np.array(rows)
        check_paths(head, nodes, parents, rows)


def test_a_tree_at_once(kind, pair_of):
    head = pair_of(kind, CONFIG).begin(LONG)
    parents = (-1, 0, 0, -1, 3) if kind in CHAINS else (-1, 0, 1, 1, 0, -1, 5)
    nodes = [20 + i for i in range(len(parents))]
    rows = head.decode_tree([*TEXT, *nodes], parents).logits
    assert rows.shape == (len(parents) + 1, head.vocab_size)
    head.keep(())
    assert head.n_past == len(TEXT)
    check_paths(head, nodes, parents, rows[1:])
    with pytest.raises(ValueError, match="needs a token before it"):
        head.decode_tree([5], (-1,))


def test_nodes_grow_after_a_text_and_do_not_stay(head):
    with pytest.raises(ValueError, match="after a token that `decode` has read last"):
        head.grow([5], [-1])
    head.decode(TEXT)
    head.grow([5], [-1])
    with pytest.raises(ValueError, match=r"do not stay; keep \(\) instead of \(0,\)"):
        head.keep((0,))
    for _ in range(2):
        head.keep(())
        assert head.n_past == len(TEXT)


@pytest.mark.parametrize("kind", ["dflash", *CHAINS], ids=str)
def test_nodes_deeper_than_the_head_guesses_are_refused(head):
    expected = rows_after(head, TEXT)[1:]
    last = head.max_depth - 2  # the first guess is `decode`'s
    for node in range(last + 1):
        head.grow([5], [node - 1])
    with pytest.raises(ValueError, match=f"a node at depth {head.max_depth}"):
        head.grow([5], [last])
    assert head.n_past == len(TEXT)
    assert near(head.grow([9], [-1]).logits[0], expected[0])
    assert near(head.grow([7], [0]).logits[0], expected[1])


# --- less text, and too much --------------------------------------------------------------------


def test_truncated_and_gone_on(head):
    expected = rows_after(head, LONG[:60])
    head.grow([5], [-1])
    head.truncate(50)
    assert head.n_past == 50
    with pytest.raises(ValueError, match="after a token that `decode` has read last"):
        head.grow([5], [-1])
    assert near(rows_after(head, LONG[50:60]), expected)
    state = head.checkpoint()
    head.decode([1, 2])
    head.restore(state)
    assert head.n_past == 60


def test_context_full_appends_nothing(head):
    head.decode((LONG * 4)[: head.n_ctx - 100], 0)
    with pytest.raises(ContextFull):
        head.decode(LONG)  # of which a part would fit
    assert head.n_past == head.n_ctx - 100
    head.decode(LONG[:99])
    head.grow([5], [-1])
    with pytest.raises(ContextFull):
        head.grow([5], [0])
    assert head.n_past == head.n_ctx - 1
    head.grow([5], [-1])


# --- calls that end early -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", READING, ids=str)
def test_an_abort_leaves_a_usable_head(head, monkeypatch):
    expected = rows_after(head, LONG)
    for n in (1, 2):
        head.truncate(0)
        stop_within(monkeypatch, n)
        with pytest.raises(Aborted):
            head.decode(LONG)
        monkeypatch.undo()
        assert head.n_past < len(LONG)
        assert near(rows_after(head, LONG[head.n_past :]), expected)


STOPS = {
    "abort": (2, Aborted, "stopped after"),
    "failure": (-3, DecodeError, "llama_decode failed with code -3"),
    "ctrl-c": (None, KeyboardInterrupt, "^$"),
}


@pytest.mark.parametrize("kind", READING, ids=str)
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("why", STOPS)
def test_a_call_that_stops_while_reading_leaves_a_usable_head(head, n, why, monkeypatch):
    code, error, message = STOPS[why]
    expected = rows_after(head, LONG)
    head.truncate(0)
    stop(monkeypatch, code, n=n)
    with pytest.raises(error, match=message):
        head.decode(LONG)
    monkeypatch.undo()
    assert head.n_past < (1 if why == "failure" else len(LONG))
    assert near(rows_after(head, LONG[head.n_past :]), expected)


@pytest.mark.parametrize("kind", READING, ids=str)
@pytest.mark.parametrize("why", STOPS)
def test_a_call_that_stops_while_growing_leaves_no_node(kind, head, why, monkeypatch):
    code, error, message = STOPS[why]
    expected = rows_after(head, LONG)
    head.truncate(0)
    head.decode(LONG, 0)
    parent = -1
    if kind != "dflash":  # which grows further nodes without a call of the engine
        head.grow([9], [-1])
        parent = 0
    stop(monkeypatch, code)
    with pytest.raises(error, match=message):
        head.grow([3], [parent])
    monkeypatch.undo()
    if why == "failure":
        assert head.n_past == 0
    elif kind in CHAINS:  # which evaluate the last token of the text again with every node
        assert head.n_past >= len(LONG) - 1
    else:
        assert head.n_past == len(LONG)
        assert near(head.grow([9], [-1]).logits[0], expected[1])
    head.truncate(len(LONG) - 1)
    assert near(rows_after(head, LONG[head.n_past :]), expected)


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "assistant"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(kind, pair, part, tmp_path):
    _, path = write(tmp_path, kind)
    with pytest.raises(TruncatedModel):
        llama_cpp.open_head(cut(path, part), EXACT, pair.target)
