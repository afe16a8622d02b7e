"""The tree of guesses: which nodes, in which order, from one lookup, from several, and a model."""

import itertools

import pytest

from edgespec.drafters.base import NOWHERE
from edgespec.policies.guesses import Guesses, first_path
from edgespec.sampling.trees import children_of, depths_of
from tests.helpers.growing import HALF, Table, TableModel, costs, drafted, grow, texts

BINARY = {t: {2 * t % 7: 0.6, (2 * t + 1) % 7: 0.3} for t in range(7)}


def every_path(table, root, depth):
    """Return the probabilities of all paths up to a depth, falling."""
    probs, level = [], [(root, 1.0)]
    for _ in range(depth):
        level = [(t, p * q) for token, p in level for t, q in table[token].items()]
        probs += [p for _, p in level]
    return sorted(probs, reverse=True)


def probs_of(draft, table=BINARY):
    """Return the path probability of each node of a draft after token 1."""
    return [path_prob(text, table) for text in texts(draft)]


def path_prob(text, table):
    prob = 1.0
    for before, token in itertools.pairwise([1, *text]):
        prob *= table[before][token]
    return prob


def guesses(*tables, max_leaves=31, **options):
    return Guesses([Table(table) for table in tables], max_leaves, **options)


@pytest.mark.parametrize("n", [1, 4, 9, 16])
def test_nodes_are_those_of_the_likeliest_paths(n):
    nodes = guesses(BINARY).nodes(n, (0.0,))
    assert [node.prob for node in nodes] == pytest.approx(every_path(BINARY, 1, 6)[:n])


@pytest.mark.parametrize("n", range(1, 16))
def test_a_draft_is_in_depth_first_order_with_the_likeliest_first(n):
    draft = drafted(Table(BINARY), n)
    parents = draft.parents or tuple(range(-1, n - 1))
    depths_of(parents)  # in depth-first order
    assert len(draft.tokens) == n
    probs = probs_of(draft)
    assert sorted(probs, reverse=True) == pytest.approx(every_path(BINARY, 1, 6)[:n])
    assert draft.expected == pytest.approx(sum(probs))
    for siblings in children_of(parents):
        assert [probs[i] for i in siblings] == sorted((probs[i] for i in siblings), reverse=True)
        assert len({draft.tokens[i] for i in siblings}) == len(siblings)


@pytest.mark.parametrize("leaves", [1, 2, 5])
@pytest.mark.parametrize("limit", ["leaves", "max_leaves"], ids=["of the target", "of the policy"])
def test_leaves_are_limited_in_every_prefix(leaves, limit):
    for n in range(1, 8):
        draft = grow([Table(BINARY)], nodes=n, **{limit: leaves}).draft
        parents = draft.parents or tuple(range(-1, len(draft.tokens) - 1))
        assert len(draft.tokens) == n
        assert len(set(range(-1, len(parents))) - set(parents)) <= leaves
        assert leaves > 1 or not draft.parents


def test_what_two_lookups_guess_is_one_node():
    first = Table({1: {2: 0.5, 3: 0.2}, 2: {4: 0.5}}, name="one")
    second = Table({1: {2: 0.3, 5: 0.1}, 2: {6: 0.4}}, name="two")
    draft = grow([first, second]).draft
    assert draft.tokens == (2, 4, 6, 3, 5)
    assert draft.parents == (-1, 0, 0, -1, -1)
    assert draft.source == "one+two"


def test_of_two_that_guess_a_token_the_surer_counts():
    tree = guesses({1: {2: 0.3}}, {1: {2: 0.6}})
    (node,) = tree.nodes(9, (0.0,))
    assert (node.prob, node.source) == (0.6, 1)


def test_guesses_after_one_node_are_certain_at_most():
    nodes = guesses({1: {2: 0.9, 3: 0.6}}, {1: {4: 0.5}}).nodes(31, (0.0,))
    assert len(nodes) == 3
    assert sum(node.prob for node in nodes) < 1


def test_lookups_guess_no_path_below_p_min_and_a_model_does():
    """A model ends drafts by its rows, before it draws."""
    nodes = guesses(BINARY, p_min=0.25).nodes(31, (0.0,))
    assert [node.prob for node in nodes] == pytest.approx([0.6, 0.36, 0.3])
    assert len(drafted(Table(BINARY), 31, p_min=0.25).tokens) == 3
    model = TableModel({1: {2: 0.6}, 2: {3: 0.6}, 3: {4: 0.6}})
    assert drafted(model, 3, p_min=0.5).tokens == (2, 3, 4)


@pytest.mark.parametrize(("price", "n"), [(0.0, 3), (1.0, 1)])
def test_nothing_hopeless_is_drafted_where_time_counts(price, n):
    table = Table({1: {2: 0.1}, 2: {3: 0.1}, 3: {4: 0.1}})
    limits = {"price": price, "costs": costs([1.0, 1.0])} if price else {}
    assert len(grow([table], **limits).draft.tokens) == n


def test_nodes_end_where_they_cannot_pay():
    least = (0.1, 0.4, 0.0)  # the second of 0.36 cannot, so there is no third
    assert len(guesses(BINARY).nodes(31, least)) == 1
    assert len(guesses(BINARY).nodes(31, (0.1, 0.3, 0.3, 0.9))) == 3


def test_a_lookup_that_is_nowhere_guesses_nothing_more():
    class Once(Table):
        def step(self, state, token):
            return NOWHERE

    draft = grow([Once({1: {2: 0.5}, 2: {3: 0.5}})]).draft
    assert draft.tokens == (2,)
    both = grow([Once({1: {2: 0.5}}, name="once"), Table({2: {3: 0.5}})]).draft
    assert both.tokens == (2, 3)
    assert both.source == "once+table"


def test_nothing_to_guess_is_no_draft():
    growth = grow([Table({})])
    assert (growth.draft.tokens, growth.draft.source) == ((), "none")
    assert growth.reason == "no match"


def test_too_few_are_none():
    assert drafted(Table({1: {2: 0.9}}), 9, at_least=2).tokens == ()
    assert drafted(Table({1: {2: 0.9}}), 9).tokens == (2,)


class Odd:
    """A constraint that allows odd tokens only, except after 3."""

    def allows(self, token, ahead=()):
        return token % 2 == 1 or ahead[-1:] == [3]


def test_tokens_that_are_not_allowed_are_left_out():
    table = {1: {2: 0.5, 3: 0.4}, 3: {4: 0.5, 5: 0.3}, 2: {7: 0.9}}
    draft = grow([Table(table)], matcher=Odd()).draft
    assert texts(draft) == [(3,), (3, 4), (3, 5)]


def test_equal_tokens_of_a_model_and_lookups_are_one_node():
    tree = guesses({1: {2: 0.3, 3: 0.5}, 2: {5: 0.4}, 3: {6: 0.5}})
    tree.root.said = [(2, 0.6)]
    tree.root.child(2).said = [(4, 0.5)]
    draft = tree.draft(tree.nodes(31, (0.0,)), "model", ())
    assert texts(draft) == [(2,), (2, 4), (2, 5), (3,), (3, 6)]


def test_lookups_share_what_the_model_leaves():
    tree = guesses({1: {3: 0.5}})
    tree.root.said = [(2, 0.6)]
    nodes = tree.nodes(31, (0.0,))
    assert [node.prob for node in nodes] == pytest.approx([0.6, 0.4 * 0.5])
    assert tree.draft(nodes, "model", ()).source == "model+table"


def test_a_model_that_says_nothing_leaves_it_to_lookups():
    tree = guesses({1: {3: 0.5}})
    tree.root.said = ()
    draft = tree.draft(tree.nodes(31, (0.0,)), "model", ())
    assert (draft.tokens, draft.source) == ((3,), "table")


def test_nodes_that_stay_come_first_and_are_in_every_draft():
    """However unlikely they are, and where leaves are few."""
    for max_leaves in (1, 31):
        tree = guesses({1: {2: 0.9, 5: 0.05}, 2: {3: 0.9}, 5: {6: 0.04}}, max_leaves=max_leaves)
        unlikely = tree.root.child(5)
        unlikely.prob, unlikely.child(6).prob = 0.05, 0.002
        tree.stay(unlikely.child(6))
        assert tree.n_staying == 2
        for n in (2, 3, 4):
            nodes = tree.nodes(n, (0.5,))
            assert [node.token for node in nodes[:2]] == [5, 6]
            assert tree.draft(nodes, "", ()).tokens[:2] == (5, 6)
            rest = [node.token for node in nodes[2:]]
            assert rest == ([2, 3][: n - 2] if max_leaves > 1 else [])


def test_a_node_that_stays_is_one_node_and_comes_before_its_siblings():
    tree = guesses({1: {5: 0.9, 2: 0.05}, 5: {6: 0.1, 7: 0.8}})
    node = tree.root.child(5)
    node.prob, node.child(6).prob = 0.9, 0.09
    tree.stay(node.child(6))
    nodes = tree.nodes(9, (0.0,))
    assert [node.token for node in nodes] == [5, 6, 7, 2]
    assert tree.draft(nodes, "", ()).tokens == (5, 6, 7, 2)


def test_no_token_next_to_a_drawn_one():
    tree = guesses({1: {2: 0.9, 5: 0.4}, 5: {6: 0.9}})
    child = tree.root.child(5)
    child.drawn, child.prob = HALF, 0.3
    tree.stay(child)
    nodes = tree.nodes(31, (0.0,))
    assert [node.token for node in nodes] == [5, 6]
    draft = tree.draft(nodes, "model", ())
    assert draft.probs[0] == HALF
    assert (draft.probs[1].ids, draft.probs[1].probs) == ([6], [1.0])  # it was not drawn


def test_tokens_that_are_not_drawn_have_no_probabilities():
    assert drafted(Table(BINARY), 5).probs is None


def test_the_first_path():
    tree = guesses({1: {2: 0.5, 3: 0.4}, 2: {4: 0.2}, 3: {5: 0.9}})
    nodes = tree.nodes(4, (0.0,))
    assert [node.token for node in first_path(nodes, tree.root).path()] == [2, 4]
    assert first_path([], tree.root) is tree.root
