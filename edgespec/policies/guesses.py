"""The tree of everything that is guessed in a step, by lookups and by a model.

A path's probability is the product of what its tokens are estimated at. Nodes are taken in falling
order of it, as in EAGLE-2 (arXiv 2406.16858), so the first n of them are the tree of n nodes with
the most accepted tokens to expect.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Sequence

from ..drafters.base import NOT_DRAWN, NOWHERE, Children, Drafter, State
from ..sampling.base import Matcher
from ..types import Distribution, Draft, Work

_SIBLINGS = 0.8  # of what likelier siblings leave, most that a token is estimated at
MODEL = -1  # in place of a lookup's index

Guess = tuple[int, float, int]
"""A token, its acceptance probability, and the index of the lookup that says so."""

_likelier = operator.itemgetter(1)


class Node:
    """A guess, or the text itself, which has no parent.

    depth: from 1. prob: that it and all before it are accepted. source: index of the lookup that
    guesses it, -1 for a model. drawn: what it was drawn from; None for a token that is matched.
    states: of the lookups, once they were asked. said: what a model says after it, None before it
    was asked. stays: the node after it that is in every draft.
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
        """Return the node of a token after this one, the same one at each call."""
        node = self.after.get(token)
        if node is None:
            node = self.after[token] = Node(self, token, self.depth + 1)
        return node

    def path(self) -> list[Node]:
        """Return the nodes from the text's first child to this one; none for the text."""
        nodes, node = [], self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class Guesses:
    """The guesses after a text. Equal tokens after the same path are one node.

    lookups: those that guess for nothing, first those whose guesses are likely. max_leaves: of the
    tree. matcher: of the request's constraint. p_min: lookups guess no path below this probability.
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
        """Let a node and all before it be in every draft from now on."""
        while node.parent is not None and node.parent.stays is None:
            node.parent.stays = node
            self.n_staying += 1
            node = node.parent

    def nodes(self, limit: int, least: Sequence[float]) -> list[Node]:
        """Return at most `limit` nodes, in falling path probability after those that stay.

        least[i]: they end before node i if that is less likely; the last entry holds for all
        further nodes.
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
        """Return the guesses after a node, the likeliest first, all together at most certain.

        Next to a drawn token there are none.
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
        """Return what a model says after a node, and lookups with a share of what it leaves.

        Of several that guess a token the surest counts.
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
            assert node.parent  # the text's are known
            node.states = [
                NOWHERE if state is NOWHERE else lookup.step(state, node.token)
                for lookup, state in zip(self._lookups, self._states(node.parent), strict=True)
            ]
        return node.states

    def draft(self, nodes: Sequence[Node], model: str, evaluated: Sequence[Work]) -> Draft:
        """Return the draft of these nodes in depth-first order, siblings as they were taken."""
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
    """Return the nodes in depth-first order, siblings as they were taken, and their parents."""
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
    """Return the last node of the path of each node's likeliest child."""
    end = root
    for node in nodes:
        if node.parent is end:
            end = node
    return end


def _drawn_from(node: Node) -> Distribution:
    """Return what a token was drawn from; one that was not drawn had probability one."""
    return node.drawn or Distribution([node.token], [1.0])
