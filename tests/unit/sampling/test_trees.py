"""Shapes of trees: their leaves, and their first nodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.sampling.trees import children_of, depths_of, first_nodes, n_leaves
from edgespec.types import NO_DRAFT, Draft


@st.composite
def trees(draw):
    """Draw the parents of a tree in depth-first order."""
    parents, line = [], [-1]
    for node in range(draw(st.integers(0, 20))):
        line = line[: draw(st.integers(1, len(line)))]
        parents.append(line[-1])
        line.append(node)
    return tuple(parents)


@given(trees())
def test_leaves_have_no_children(parents):
    childless = sum(not children for children in children_of(parents)[:-1])
    assert n_leaves(parents) == max(childless, 1)


@given(st.lists(st.integers(-2, 9), max_size=9))
def test_parents_in_another_order_are_refused(parents):
    try:
        depths_of(parents)
    except ValueError:
        with pytest.raises(ValueError, match="depth-first"):
            n_leaves(parents)
    else:
        n_leaves(parents)


@given(trees(), st.integers(0, 20), st.integers(1, 6))
def test_first_nodes(parents, n, max_leaves):
    """Nothing is cut that fits; one node more would be too many, or one leaf more."""
    draft = Draft(tuple(range(50, 50 + len(parents))), parents=parents)
    found = first_nodes(draft, n, max_leaves)
    k = len(found.tokens)
    assert found.tokens == draft.tokens[:k]
    chain = tuple(range(-1, k - 1))
    assert (found.parents or chain) == parents[:k]
    assert k <= n
    assert n_leaves(found.parents) <= max_leaves
    if k < min(n, len(parents)):
        assert n_leaves(parents[: k + 1]) > max_leaves


def test_first_nodes_of_chains():
    draft = Draft((5, 6, 7))
    assert first_nodes(draft, 3, 1) is draft
    assert first_nodes(draft, 2, 1) == Draft((5, 6))
    assert first_nodes(draft, 0, 1).tokens == ()
    assert first_nodes(NO_DRAFT, 9, 1) is NO_DRAFT
    tree = Draft((5, 6, 7), parents=(-1, 0, 0))
    assert first_nodes(tree, 9, 1) == Draft((5, 6)), "one path is a chain"
