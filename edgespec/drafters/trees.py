"""Trees of guesses: the likeliest paths of what one or several sources know.

A path's probability is the product of what its tokens are estimated at. Nodes are taken in falling
order of it, as in EAGLE-2 (arXiv 2406.16858), so the first n of them are the tree of n nodes
with the most accepted tokens to expect, and a policy only has to say how many are worth their time.
"""

from __future__ import annotations

import heapq
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..costs.online import Costs
from ..sampling.base import Matcher, Request
from ..sampling.trees import children_of
from ..types import NO_THRESHOLDS, Draft, DraftEstimate, Thresholds, Verified
from .base import DrafterContext, Learns, LearnsTokens, Tokens

LEAST = 0.02  # on no device does it pay to draft tokens that are accepted this seldom
_SHARE = 0.8  # of what likelier siblings leave, most that a token is estimated at
WIDE = 0.05  # where no token below this pays, sources of unlikely guesses are left alone
TRUST = 0.8  # what unlikely guesses are estimated at counts so much: the best of many is too good

Guess = tuple[int, float, int]
"""A token, its acceptance probability, and the index of the source that says so."""

_likelier = operator.itemgetter(1)


class Guesses(Protocol):
    """Guesses of the next tokens. States stand for texts: of this answer, and drafted tokens behind
    it. All of it is deterministic, so any choice may look at it.
    """

    def root(self) -> Any:
        """Return the state behind the text so far."""

    def step(self, state: Any, token: int) -> Any:
        """Return the state behind another token, whoever guessed it."""

    def children(self, state: Any, least: float = 0.0) -> list[tuple[int, float]]:
        """Return guesses of the next token with their acceptance probabilities.

        Those below `least` may be left out.
        """


@runtime_checkable
class Branches(Guesses, Protocol):
    """One source of guesses. wide: most of them are unlikely."""

    wide: bool

    def begin(self, request: Request) -> None:
        """Begin a request; the state that an earlier one left must not matter."""

    def accept(self, verified: Verified) -> None:
        """Learn from the emitted tokens, drafted or not."""


@runtime_checkable
class OfConstraint(Branches, Protocol):
    """A source that guesses only under a constraint, and is left out without one.

    constrained_only: True; it tells the kind.
    """

    constrained_only: bool


@runtime_checkable
class Closing(Protocol):
    """A source that has something to do when its drafter is closed."""

    def close(self) -> None:
        """Free or keep what there is. Calling it twice is harmless."""


class Tree(NamedTuple):
    """Guesses, the likeliest path first, each behind its parent (-1: the text so far).

    probs: of each, that it and all before it on its path are accepted; never rising. depths: from
    1. sources: whose guess each is.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    depths: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()

    def first(self, n: int) -> Tree:
        """Return the tree of the first n nodes."""
        if n >= len(self.tokens):
            return self
        return Tree(
            self.tokens[:n], self.parents[:n], self.probs[:n], self.depths[:n], self.sources[:n]
        )

    def n_best(self, thresholds: Thresholds) -> int:
        """Return the number of nodes that gain most, for what they cost the target."""
        if thresholds.seconds:
            return thresholds.n_gaining(self.probs, 0)
        return self.n_kept(thresholds)

    def n_kept(self, thresholds: Thresholds) -> int:
        """Return the number of nodes before the first that is below its threshold."""
        probs = enumerate(self.probs)
        return next((i for i, prob in probs if not thresholds.keeps(i, prob)), len(self.probs))

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
        return Draft(
            tuple([self.tokens[node] for node in order]),
            source,
            acceptance_prob=self.first_path_prob(n),
            parents=parents,
            path_probs=tuple([self.probs[node] for node in order]) if parents else (),
        )

    def first_path_prob(self, n: int) -> float:
        """Return the probability of the path that begins a draft of n nodes, to its end."""
        end, found = -1, 1.0
        for node, (parent, prob) in enumerate(zip(self.parents[:n], self.probs, strict=False)):
            if parent == end:
                end, found = node, prob
        return found


def grow(
    root: Any,
    children: Callable[[Any, float], Iterable[Guess]],
    step: Callable[[Any, int], Any],
    limit: int,
    max_leaves: int,
    least: Sequence[float] = (LEAST,),
) -> Tree:
    """Return the tree of at most `limit` nodes and `max_leaves` leaves whose paths are likeliest.

    least[i]: the tree ends before node i if that is less likely; the last entry holds for all
    further nodes.
    """
    nodes: list[tuple[int, int, float, int, int]] = []  # the fields of Tree, of each node
    states = [root]  # of each node, the root's comes first
    waiting: list[tuple[float, int, int, int, int]] = []
    counter, with_children, n_leaves = itertools.count(), set[int](), 1
    node, prob, lowest, last = -1, 1.0, min(least), len(least) - 1
    while len(nodes) < limit:
        for token, chance, source in children(states[node + 1], lowest / prob):
            if prob * chance >= lowest:
                heapq.heappush(waiting, (-prob * chance, next(counter), node, token, source))
        while waiting and waiting[0][2] in with_children and n_leaves == max_leaves:
            heapq.heappop(waiting)
        if not waiting or -waiting[0][0] < least[min(len(nodes), last)]:
            break
        negative, _, parent, token, source = heapq.heappop(waiting)
        n_leaves += parent in with_children
        with_children.add(parent)
        depth = nodes[parent][3] + 1 if parent >= 0 else 1
        node, prob = len(nodes), -negative
        nodes.append((token, parent, prob, depth, source))
        states.append(step(states[parent + 1], token))
    return Tree(*(tuple(facts) for facts in zip(*nodes, strict=True))) if nodes else Tree()


class Union:
    """Several sources as one: equal tokens behind the same path are one guess.

    A state holds that of each source. leads: the first source knows more than the others, and its
    guesses leave little to theirs.
    """

    def __init__(self, sources: Sequence[Guesses], leads: bool = False) -> None:
        self._sources = sources
        self._leads = leads

    def root(self) -> list[Any]:
        """Return the state behind the text so far."""
        return [source.root() for source in self._sources]

    def step(self, states: Sequence[Any], token: int) -> list[Any]:
        """Return the state behind another token."""
        pairs = zip(self._sources, states, strict=True)
        return [source.step(state, token) for source, state in pairs]

    def children(self, states: Sequence[Any], least: float) -> list[Guess]:
        """Return the guesses, likeliest first, all together at most certain."""
        found = self.guesses(states, least)
        if len(found) > 1:
            left = 1 - found[0][1]
            for i, (token, prob, source) in enumerate(found[1:], start=1):
                found[i] = token, min(prob, _SHARE * left), source
                left -= found[i][1]
        return found

    def guesses(self, states: Sequence[Any], least: float) -> list[Guess]:
        """Return tokens with their largest probabilities, and whose these are, likeliest first."""
        if len(self._sources) == 1:
            return [(token, prob, 0) for token, prob in self._sources[0].children(states[0], least)]
        best: dict[int, Guess] = {}
        left = 1.0
        for i, source in enumerate(self._sources):
            guesses = source.children(states[i], least)
            for token, prob in guesses:
                known = best.get(token)
                if known is None:
                    best[token] = token, prob * left, i
                elif known[1] < prob:
                    best[token] = token, prob, i
            if self._leads and not i:
                left -= sum(prob for _, prob in guesses)
        return sorted(best.values(), key=_likelier, reverse=True)


class Allowed:
    """The guesses of a union that a constraint allows. A state holds the path and the union's."""

    def __init__(self, union: Union, matcher: Matcher) -> None:
        self._union = union
        self._matcher = matcher

    def root(self) -> Any:
        """Return the state behind the text so far."""
        return (), self._union.root()

    def step(self, state: Any, token: int) -> Any:
        """Return the state behind another token."""
        path, states = state
        return (*path, token), self._union.step(states, token)

    def children(self, state: Any, least: float) -> list[Guess]:
        """Return the guesses that are allowed, likeliest first."""
        path, states = state
        allows = self._matcher.allows
        return [guess for guess in self._union.children(states, least) if allows(guess[0], path)]


class TreeDrafter:
    """Drafts the likeliest paths of what its sources know; a token that several of them guess
    behind the same path is one node.

    sources: by name. max_leaves: 1 where the target evaluates chains only. p_min: no path below
    this is drafted. costs: of evaluations; with them only nodes are looked for that can pay, and
    sources of unlikely guesses (`wide`) are left alone where those cannot.
    """

    def __init__(
        self,
        sources: Mapping[str, Branches],
        max_leaves: int,
        *,
        p_min: float = 0.0,
        costs: Costs | None = None,
    ) -> None:
        self.name = "+".join(sources)
        self._named = dict(sources)
        self._max_leaves = max_leaves
        self._least = max(p_min, LEAST)
        self._costs = costs
        self._matcher: Matcher | None = None
        self._begin(self._named, 0)

    @classmethod
    def of(cls, sources: Mapping[str, Branches], context: DrafterContext) -> TreeDrafter:
        """Return the drafter of these sources for a configuration."""
        _, p_min = context.config.fixed or (0, 0.0)
        likely_first = dict(sorted(sources.items(), key=lambda source: source[1].wide))
        return cls(likely_first, max_leaves(context), p_min=p_min, costs=context.costs)

    def begin(self, request: Request) -> None:
        """Begin a request."""
        n = len(request.prompt)
        wide = not self._costs or (self._costs.known and self._costs.least(n)[0] <= WIDE)
        self._matcher = request.matcher()
        of_use = {k: s for k, s in self._named.items() if wide or not s.wide}
        if self._matcher is None:
            of_use = {k: s for k, s in of_use.items() if not isinstance(s, OfConstraint)}
        self._begin(of_use, n)
        for source in self._sources:
            source.begin(request)

    def _begin(self, sources: Mapping[str, Branches], n_context: int) -> None:
        self._names, self._sources = list(sources), list(sources.values())
        self._union = Union(self._sources)
        self._n_context = n_context
        self._found: tuple[int, int, Tree] | None = None  # length of context, limit, tree
        self._streak = 0

    def estimate(self, context: Sequence[int], limit: int) -> DraftEstimate:
        """Return the acceptance probability of each node, the likeliest first."""
        tree = self._tree(context, limit)
        n = len(tree.probs)
        return DraftEstimate(
            self.name, tree.probs, n_known=n, streak=self._streak, depths=tree.depths
        )

    def propose(
        self, context: Sequence[int], limit: int, thresholds: Thresholds = NO_THRESHOLDS
    ) -> Draft:
        """Draft the `limit` likeliest nodes, fewer where they are below the thresholds."""
        tree = self._tree(context, limit)
        n = tree.n_kept(thresholds)
        names = [self._names[i] for i in sorted(set(tree.sources[:n]))]
        return tree.draft(n, "+".join(names) or self.name)

    def accept(self, verified: Verified) -> None:
        """Let each source learn."""
        states = self._union.root()
        for token in verified.tokens:
            guesses = self._union.guesses(states, 1.0)  # only the first of each source counts
            self._streak = self._streak + 1 if guesses and guesses[0][0] == token else 0
            states = self._union.step(states, token)
        for source in self._sources:
            source.accept(verified)
        if self._matcher:
            self._matcher.accept(verified.tokens)
        self._n_context += len(verified.tokens)
        self._found = None

    def learned(self) -> dict[str, Any]:
        """Return what its sources learned, as Learns has it."""
        found: dict[str, Any] = {}
        for source in self._named.values():
            found |= source.learned() if isinstance(source, Learns) else {}
        return found

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Take what `learned` returned."""
        for source in self._named.values():
            if isinstance(source, Learns):
                source.relearn(state)

    def learned_tokens(self) -> dict[str, Tokens]:
        """Return the tokens that its sources learned, as LearnsTokens has it."""
        found: dict[str, Tokens] = {}
        for source in self._named.values():
            found |= source.learned_tokens() if isinstance(source, LearnsTokens) else {}
        return found

    def relearn_tokens(self, state: Mapping[str, Tokens]) -> None:
        """Take what `learned_tokens` returned."""
        for source in self._named.values():
            if isinstance(source, LearnsTokens):
                source.relearn_tokens(state)

    def close(self) -> None:
        """Let sources that keep something for later write it."""
        for source in self._named.values():
            if isinstance(source, Closing):
                source.close()

    def beside(self, context: Sequence[int], limit: int, others: Guesses) -> tuple[Tree, list[str]]:
        """Return the tree of its guesses and others', and whose they are: "" for the others'."""
        union = Union([others, *self._sources], leads=True)
        return self._grown(union, context, limit), ["", *self._names]

    def _tree(self, context: Sequence[int], limit: int) -> Tree:
        """Return a tree of at least `limit` nodes, if there are so many."""
        n = len(context)
        if self._found is None or self._found[0] != n or self._found[1] < limit:
            self._found = n, limit, self._grown(self._union, context, limit)
        return self._found[2].first(limit)

    def _grown(self, union: Union, context: Sequence[int], limit: int) -> Tree:
        guesses = Allowed(union, self._matcher) if self._matcher else union
        states = guesses.root()
        for token in context[self._n_context :]:
            states = guesses.step(states, token)
        costs = self._costs
        pays = costs.least(len(context)) if costs and costs.known else [0.0]
        least = [max(prob, self._least) for prob in pays]
        return grow(states, guesses.children, guesses.step, limit, self._max_leaves, least)


def max_leaves(context: DrafterContext) -> int:
    """Return the most leaves of a tree that the target takes."""
    target = context.target
    return target.capabilities.max_leaves if target else context.remote_leaves
