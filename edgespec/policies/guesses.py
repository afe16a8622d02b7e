"""The tree of all guesses in a step, by lookups and by a model.

A path's probability is the product of its tokens' estimated acceptance probabilities. Nodes are
taken in falling order of path probability, as in EAGLE-2 (arXiv 2406.16858). So the first n nodes
form the tree of n nodes with the most expected accepted tokens.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Sequence

from ..drafters.base import NOT_DRAWN, NOWHERE, Children, Drafter, State
from ..sampling.base import Matcher
from ..types import Distribution, Draft, Work

_SIBLINGS = 0.8  # most that a token may take of the probability that likelier siblings leave
MODEL = -1  # the source of a model's guesses, in place of a lookup's index

Guess = tuple[int, float, int]
"""A token, its acceptance probability, and the index of the lookup that guesses it (or MODEL)."""

_likelier = operator.itemgetter(1)


class Node:
    """A guessed token, or the text itself (the root), which has no parent.

    depth: 1 for the first token. prob: the probability that it and all before it are accepted.
    source: the index of the lookup that guesses it, MODEL for a model. drawn: the distribution that
    it was drawn from; None for a token that is matched. states: the states of the lookups after it,
    None until they are needed. said: a model's guesses after it, None until they are known. stays:
    the child that every draft must contain, None if there is none. after: its children by token.
    """

    __slots__ = (
        "after",
        "depth",
        "drawn",
        "parent",
        "prob",
        "said",
        "source",
        "states",
        "stays",
        "token",
    )

    def __init__(self, parent: Node | None, token: int, depth: int) -> None:
        self.parent, self.token, self.depth = parent, token, depth
        self.prob, self.source = 1.0, MODEL
        self.states: list[State] | None = None
        self.said: Children | None = None
        self.drawn: Distribution | None = None
        self.stays: Node | None = None
        self.after: dict[int, Node] = {}

    def child(self, token: int) -> Node:
        """Return the child node of a token; the same node at each call."""
        node = self.after.get(token)
        if node is None:
            node = self.after[token] = Node(self, token, self.depth + 1)
        return node

    def path(self) -> list[Node]:
        """Return the nodes from the first guess to this one, [] for the text itself."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class Guesses:
    """The guesses after a text. Equal tokens after the same path are one node.

    lookups: drafters whose guesses are free, those with likely guesses first. max_leaves: most
    leaves of the tree. matcher: the matcher of the request's constraint. p_min: lookups guess no
    path below this probability. n_staying: the number of nodes that every draft must contain.
    """

    def __init__(
        self,
        lookups: Sequence[Drafter],
        max_leaves: int,
        matcher: Matcher | None = None,
        p_min: float = 0.0,
    ) -> None:
        self._lookups, self._max_leaves, self._matcher = lookups, max_leaves, matcher
        self._p_min = p_min
        self.root = Node(None, -1, 0)
        self.root.states = [lookup.root() for lookup in lookups]
        self.n_staying = 0

    def stay(self, node: Node) -> None:
        """Require every draft from now on to contain a node and all nodes before it."""
        while node.parent is not None and node.parent.stays is None:
            node.parent.stays = node
            self.n_staying += 1
            node = node.parent

    def nodes(self, limit: int, least: Sequence[float]) -> list[Node]:
        """Return at most `limit` nodes: first those that every draft must contain, then others in
        falling path probability.

        least[i]: the list ends before node i if that node is less likely than this; the last entry
        holds for all further nodes.
        """
        nodes: list[Node] = []
        lowest, last = min(least), len(least) - 1
        lookups_lowest = max(lowest, self._p_min)
        waiting: list[tuple[float, int, Node, int, float, int]] = []
        count, with_children, n_leaves, node = 0, set[Node](), 1, self.root
        while len(nodes) < limit:
            stays, before = node.stays, node.prob
            if stays:
                heapq.heappush(waiting, (-2.0, -1, node, stays.token, stays.prob, stays.source))
            for token, chance, source in self._guesses(node, stays, lowest / before):
                prob = before * chance
                if prob >= (lowest if source == MODEL else lookups_lowest):
                    count += 1
                    heapq.heappush(waiting, (-prob, count, node, token, prob, source))
            while waiting and n_leaves == self._max_leaves and waiting[0][2] in with_children:
                heapq.heappop(waiting)
            if not waiting or -waiting[0][0] < least[min(len(nodes), last)]:
                break
            _, _, parent, token, prob, source = heapq.heappop(waiting)
            n_leaves += parent in with_children
            with_children.add(parent)
            node = parent.child(token)
            node.prob, node.source = prob, source
            nodes.append(node)
        return nodes

    def _guesses(self, node: Node, stays: Node | None, least: float) -> list[Guess]:
        """Return the guesses after a node, the likeliest first. Their probabilities sum to at most
        one. A drawn token has no siblings.
        """
        if stays and stays.drawn:
            return []
        guesses = self._combined(node, least)
        if self._matcher:
            path = [before.token for before in node.path()]
            guesses = [guess for guess in guesses if self._matcher.allows(guess[0], path)]
        left = 1.0
        for i, (token, prob, source) in enumerate(guesses):
            if i:
                prob = min(prob, _SIBLINGS * left)
                guesses[i] = token, prob, source
            left -= prob
        return [g for g in guesses if g[0] != stays.token] if stays else guesses

    def _combined(self, node: Node, least: float) -> list[Guess]:
        """Return the guesses of the model and of the lookups after a node.

        Lookups share the probability that the model's guesses leave. If several of them guess the
        same token, the highest estimate counts.
        """
        said = node.said
        if said and said[0][0] == NOT_DRAWN:
            said = None
        if not self._lookups:
            return [(token, prob, MODEL) for token, prob in said or ()]
        best: dict[int, Guess] = {}
        left, n_asked = 1.0, 0
        if said:
            n_asked = 1
            for token, prob in said:
                best[token] = token, prob, MODEL
                left -= prob
        for i, state in enumerate(self._states(node)):
            if state is NOWHERE:
                continue
            n_asked += 1
            for token, prob in self._lookups[i].children(state, least):
                known = best.get(token)
                if known is None:
                    best[token] = token, prob * left, i
                elif known[1] < prob:
                    best[token] = token, prob, i
        guesses = list(best.values())
        return sorted(guesses, key=_likelier, reverse=True) if n_asked > 1 else guesses

    def _states(self, node: Node) -> list[State]:
        """Return the state of each lookup after a node."""
        if node.states is None:
            assert node.parent  # the root has states
            node.states = [
                NOWHERE if state is NOWHERE else lookup.step(state, node.token)
                for lookup, state in zip(self._lookups, self._states(node.parent), strict=True)
            ]
        return node.states

    def draft(self, nodes: Sequence[Node], model: str, evaluated: Sequence[Work]) -> Draft:
        """Return the draft of these nodes in depth-first order, siblings in the order given."""
        parents: tuple[int, ...] = ()
        before = (self.root, *nodes)
        if not all(node.parent is b for node, b in zip(nodes, before, strict=False)):
            nodes, parents = _depth_first(nodes, self.root)
        sources = sorted({node.source for node in nodes})
        return Draft(
            tuple([node.token for node in nodes]),
            "+".join([model if i == MODEL else self._lookups[i].name for i in sources]) or "none",
            tuple(map(_drawn_from, nodes)) if self.n_staying else None,
            sum([node.prob for node in nodes]),
            tuple(evaluated),
            parents,
        )


def _depth_first(nodes: Sequence[Node], root: Node) -> tuple[list[Node], tuple[int, ...]]:
    """Return the nodes in depth-first order and their parents; siblings keep the order given."""
    after: dict[Node | None, list[Node]] = {}
    for node in nodes:
        after.setdefault(node.parent, []).append(node)
    order: list[Node] = []
    places: dict[Node | None, int] = {root: -1}
    waiting = after.get(root, [])[::-1]
    while waiting:
        node = waiting.pop()
        places[node] = len(order)
        order.append(node)
        waiting.extend(reversed(after.get(node, ())))
    return order, tuple([places[node.parent] for node in order])


def first_path(nodes: Sequence[Node], root: Node) -> Node:
    """Return the last node of the path that always follows the likeliest child."""
    end = root
    for node in nodes:
        if node.parent is end:
            end = node
    return end


def _drawn_from(node: Node) -> Distribution:
    """Return the distribution that a token was drawn from; without one, all on this token."""
    return node.drawn or Distribution([node.token], [1.0])
