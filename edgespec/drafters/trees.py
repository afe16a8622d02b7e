"""Trees of guesses: the likeliest paths of what one or several sources know.

A path's probability is the product of what its tokens are estimated at. Nodes are taken in falling
order of it, as in EAGLE-2 (arXiv 2406.16858), so the first n of them are the tree of n nodes
with the most accepted tokens to expect, and a policy only has to say how many are worth their time.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..sampling.base import Request
from ..sampling.trees import children_of
from ..types import NO_THRESHOLDS, Draft, DraftEstimate, Thresholds, Verified
from .base import DrafterContext, Learns, LearnsTokens, Tokens

LEAST = 0.02  # on no device does it pay to draft tokens that are accepted this seldom
_SHARE = 0.8  # of what likelier siblings leave, most that a token is estimated at


class Branches(Protocol):
    """One source of guesses. States stand for texts: of this answer, and drafted tokens behind it.

    All of it is deterministic, so any choice may look at it.
    """

    def begin(self, request: Request) -> None:
        """Begin a request; the state that an earlier one left must not matter."""

    def root(self) -> Any:
        """Return the state behind the text so far."""

    def step(self, state: Any, token: int) -> Any:
        """Return the state behind another token, whoever guessed it."""

    def children(self, state: Any) -> list[tuple[int, float]]:
        """Return guesses of the next token with their acceptance probabilities."""

    def accept(self, verified: Verified) -> None:
        """Learn from the emitted tokens, drafted or not."""


@runtime_checkable
class Closing(Protocol):
    """A source that has something to do when its drafter is closed."""

    def close(self) -> None:
        """Free or keep what there is. Calling it twice is harmless."""


class Tree(NamedTuple):
    """Guesses, the likeliest path first, each behind its parent (-1: the text so far).

    probs: of each, that it and all before it on its path are accepted; never rising.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()

    def first_path_prob(self) -> float:
        """Return the probability of the path that begins a draft, to its end."""
        end, found = -1, 1.0
        for node, (parent, prob) in enumerate(zip(self.parents, self.probs, strict=True)):
            if parent == end:
                end, found = node, prob
        return found

    def draft(self, n: int, source: str) -> Draft:
        """Return the first n nodes, in depth-first order with the likeliest children first."""
        children, order = children_of(self.parents[:n]), []
        waiting = list(reversed(children[-1]))
        while waiting:
            order.append(node := waiting.pop())
            waiting.extend(reversed(children[node]))
        places = {node: place for place, node in enumerate(order)} | {-1: -1}
        parents = tuple(places[self.parents[node]] for node in order)
        if parents == tuple(range(-1, len(order) - 1)):
            parents = ()  # a chain
        return Draft(tuple(self.tokens[node] for node in order), source, parents=parents)


def grow(
    root: Any,
    children: Callable[[Any], Iterable[tuple[int, float]]],
    step: Callable[[Any, int], Any],
    limit: int,
    max_leaves: int,
    least: float = LEAST,
) -> Tree:
    """Return the tree of at most `limit` nodes and `max_leaves` leaves whose paths are likeliest,
    none below `least`.
    """
    tokens: list[int] = []
    parents: list[int] = []
    probs: list[float] = []
    states = [root]  # of each node, the root's comes first
    waiting: list[tuple[float, int, int, int]] = []
    counter, with_children, n_leaves = itertools.count(), set[int](), 1
    node, prob = -1, 1.0
    while True:
        for token, chance in children(states[node + 1]):
            if prob * chance >= least:
                heapq.heappush(waiting, (-prob * chance, next(counter), node, token))
        while waiting and waiting[0][2] in with_children and n_leaves == max_leaves:
            heapq.heappop(waiting)
        if not waiting or len(tokens) == limit:
            return Tree(tuple(tokens), tuple(parents), tuple(probs))
        negative, _, parent, token = heapq.heappop(waiting)
        n_leaves += parent in with_children
        with_children.add(parent)
        node, prob = len(tokens), -negative
        tokens.append(token)
        parents.append(parent)
        probs.append(prob)
        states.append(step(states[parent + 1], token))


class TreeDrafter:
    """Drafts the likeliest paths of what all of its sources know; a token that several of them
    guess behind the same path is one node.

    max_leaves: 1 where the target evaluates chains only. p_min: no path below this is drafted.
    """

    def __init__(
        self, name: str, sources: Sequence[Branches], max_leaves: int, p_min: float = 0.0
    ) -> None:
        self.name = name
        self._sources = list(sources)
        self._max_leaves = max_leaves
        self._least = max(p_min, LEAST)
        self._n_context = 0
        self._found: tuple[int, int, Tree] | None = None  # length of context, limit, tree

    def begin(self, request: Request) -> None:
        """Begin a request."""
        for source in self._sources:
            source.begin(request)
        self._n_context, self._found = len(request.prompt), None

    def estimate(self, context: Sequence[int], limit: int) -> DraftEstimate:
        """Return the acceptance probability of each node, the likeliest first."""
        probs = self._tree(context, limit).probs
        return DraftEstimate(self.name, probs, n_known=len(probs))

    def propose(
        self, context: Sequence[int], limit: int, thresholds: Thresholds = NO_THRESHOLDS
    ) -> Draft:
        """Draft the `limit` likeliest nodes."""
        return self._tree(context, limit).draft(limit, self.name)

    def accept(self, verified: Verified) -> None:
        """Let each source learn."""
        for source in self._sources:
            source.accept(verified)
        self._n_context += len(verified.tokens)
        self._found = None

    def learned(self) -> dict[str, Any]:
        """Return what its sources learned, as Learns has it."""
        found: dict[str, Any] = {}
        for source in self._sources:
            found |= source.learned() if isinstance(source, Learns) else {}
        return found

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned."""
        for source in self._sources:
            if isinstance(source, Learns):
                source.relearn(state)

    def learned_tokens(self) -> dict[str, Tokens]:
        """Return the tokens that its sources learned, as LearnsTokens has it."""
        found: dict[str, Tokens] = {}
        for source in self._sources:
            found |= source.learned_tokens() if isinstance(source, LearnsTokens) else {}
        return found

    def relearn_tokens(self, state: Mapping[str, Tokens]) -> None:
        """Take what `learned_tokens` returned."""
        for source in self._sources:
            if isinstance(source, LearnsTokens):
                source.relearn_tokens(state)

    def close(self) -> None:
        """Let sources that keep something for later write it."""
        for source in self._sources:
            if isinstance(source, Closing):
                source.close()

    def _tree(self, context: Sequence[int], limit: int) -> Tree:
        """Return a tree of at least `limit` nodes, if there are so many."""
        n = len(context)
        if self._found is None or self._found[0] != n or self._found[1] < limit:
            states = [source.root() for source in self._sources]
            for token in context[self._n_context :]:
                states = self._step(states, token)
            tree = grow(states, self._children, self._step, limit, self._max_leaves, self._least)
            self._found = n, limit, tree
        tokens, parents, probs = self._found[2]
        return Tree(tokens[:limit], parents[:limit], probs[:limit])

    def _step(self, states: Sequence[Any], token: int) -> list[Any]:
        pairs = zip(self._sources, states, strict=True)
        return [source.step(state, token) for source, state in pairs]

    def _children(self, states: Sequence[Any]) -> list[tuple[int, float]]:
        best: dict[int, float] = {}
        for source, state in zip(self._sources, states, strict=True):
            for token, prob in source.children(state):
                best[token] = max(best.get(token, 0.0), prob)
        found: list[tuple[int, float]] = []
        left = 1.0
        for token, prob in sorted(best.items(), key=lambda guess: -guess[1]):
            found.append((token, min(prob, _SHARE * left) if found else prob))
            left -= found[-1][1]
        return found


def max_leaves(context: DrafterContext) -> int:
    """Return the most leaves of a tree that the target takes."""
    target = context.target
    return target.capabilities.max_leaves if target else context.remote_leaves
