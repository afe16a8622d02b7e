"""Acceptance rules for trees of drafted tokens. Like those for chains, they are pure functions.

A tree is given by its nodes' tokens and parents: parents[i] < i is the node that token i
follows, -1 for the root, which is the last emitted token. Siblings are listed in the order in
which they were drawn. A chain has the parents -1, 0, 1, …

Each rule returns (path, token): the accepted nodes from the root on, and the token that follows
them. `target(path)` returns the target's distribution after a path; it is called only for paths
that are needed. As for chains, `rejection` and `traversal` are exact only if the shape of the tree
did not depend on the value of a drawn token that is not in it; `match` and `coupled` are always
exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..types import Distribution, Draft
from .acceptance import residual
from .base import Randomness

Path = tuple[int, ...]
Outcome = tuple[Path, int]


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """Return the children of each node, in ascending order; the last entry is for the root (-1)."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        children[parent].append(node)
    return children


def match(tokens: Sequence[int], parents: Sequence[int], choose: Callable[[Path], int]) -> Outcome:
    """Accept nodes from the root on, as long as a child has the token that the target chooses.

    If `choose(path)` returns the argmax after a path, this is the greedy rule. If it draws from the
    target's distribution, independently of the tree, this is the rule for deterministic trees.
    """
    children = children_of(parents)
    path: Path = ()
    while True:
        own = choose(path)
        node = next((n for n in children[path[-1] if path else -1] if tokens[n] == own), None)
        if node is None:
            return path, own
        path = (*path, node)


def coupled(
    tokens: Sequence[int],
    parents: Sequence[int],
    target: Callable[[Path], Distribution],
    randomness: Randomness,
    position: int,
) -> Outcome:
    """Accept nodes from the root on, as long as a child has the token that the target draws.

    The target draws with the noise of each position. position: the position of the root's children.
    The output depends only on the noise and the target, not on the tree.
    """
    return match(
        tokens, parents, lambda path: randomness.gumbel(position + len(path), target(path))
    )


def rejection(
    tokens: Sequence[int],
    parents: Sequence[int],
    draft_probs: Sequence[Distribution],
    target: Callable[[Path], Distribution],
    randomness: Randomness,
) -> Outcome:
    """Try siblings in turn; after the first that is accepted, try its children.

    This is for siblings drawn without replacement (Sequoia; Chen et al. 2024, arXiv 2402.12374):
    draft_probs[i] is the distribution that token i was drawn from, with earlier siblings removed.
    After a rejection, max(p - q, 0), normalised, replaces p for the siblings that follow.
    """
    children = children_of(parents)
    path: Path = ()
    while True:
        p = target(path)
        for node in children[path[-1] if path else -1]:
            token, q = tokens[node], draft_probs[node]
            if randomness.bernoulli(min(1.0, p.prob(token) / q.prob(token))):
                path = (*path, node)
                break
            _, p = residual(1.0, p, q)
        else:
            return path, randomness.draw(p)


def traversal(
    tokens: Sequence[int],
    parents: Sequence[int],
    draft_probs: Sequence[Distribution],
    target: Callable[[Path], Distribution],
    randomness: Randomness,
) -> Outcome:
    """Try leaves in turn, each with the whole path to it; a rejected leaf is removed from the tree.

    This is traversal verification (Weng et al. 2025, arXiv 2505.12398), for siblings drawn without
    replacement. It accepts at least as much as `rejection` in expectation, and on a chain it is
    block verification. draft_probs: as for `rejection`.
    """
    children = children_of(parents)
    joint = [0.0] * len(parents) + [1.0]  # each node's joint ratio; the root's comes last
    own: dict[int, Distribution] = {}  # the target's distributions, less rejected children
    path: list[int] = []
    while True:
        node = path[-1] if path else -1
        if node not in own:
            own[node] = target(tuple(path))
        if children[node]:
            child = children[node][0]
            ratio = own[node].prob(tokens[child]) / draft_probs[child].prob(tokens[child])
            joint[child] = min(1.0, joint[node] * ratio)
            path.append(child)
        elif not path or randomness.bernoulli(joint[node]):
            return tuple(path), randomness.draw(own[node])
        else:
            path.pop()
            parent = path[-1] if path else -1
            children[parent].pop(0)
            gain, own[parent] = residual(joint[parent], own[parent], draft_probs[node])
            rest = gain + 1 - joint[parent]
            joint[parent] = gain / rest if rest > 0 else 1.0


def depths_of(parents: Sequence[int]) -> list[int]:
    """Return the depth of each node; children of the root have depth 1.

    Raises ValueError unless the nodes are in depth-first order: each comes after its parent, its
    earlier siblings and all nodes below these siblings.
    """
    depths: list[int] = []
    line = [-1]  # from the root to the last node
    for node, parent in enumerate(parents):
        if parent != node - 1:
            if parent not in line:
                raise ValueError(f"node {node} has parent {parent}: the order is not depth-first")
            del line[line.index(parent) + 1 :]
        depths.append(len(line))
        line.append(node)
    return depths


def n_leaves(parents: Sequence[int]) -> int:
    """Return the number of leaves; it is 1 for a chain, and also if there are no nodes.

    Raises ValueError as `depths_of` does.
    """
    depths_of(parents)
    return 1 + sum(parent != node for node, parent in enumerate(parents[1:]))


def first_nodes(draft: Draft, n: int, max_leaves: int) -> Draft:
    """Return the first nodes of a draft: at most `n` nodes, with at most `max_leaves` leaves."""
    n_seen = 1
    for node, parent in enumerate(draft.parents[1:n]):
        n_seen += parent != node
        if n_seen > max_leaves:
            n = node + 1
            break
    if n >= len(draft.tokens):
        return draft
    parents = draft.parents[:n]
    if parents == tuple(range(-1, n - 1)):
        parents = ()  # a chain
    probs = draft.probs and draft.probs[:n]
    return draft._replace(tokens=draft.tokens[:n], parents=parents, probs=probs)


def n_first_path(parents: Sequence[int]) -> int:
    """Return the number of nodes on the first path of a tree in depth-first order."""
    return next((n for n, parent in enumerate(parents) if parent != n - 1), len(parents))


def widths_of(parents: Sequence[int]) -> Path:
    """Return the number of nodes at each depth."""
    depths = [0]  # the depth of the root, then of each node
    for parent in parents:
        depths.append(depths[parent + 1] + 1)
    return tuple(map(depths.count, range(1, max(depths) + 1)))


def path_to(parents: Sequence[int], node: int) -> Path:
    """Return the nodes from the root's child down to `node`; () for the root (-1)."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return tuple(reversed(path))
