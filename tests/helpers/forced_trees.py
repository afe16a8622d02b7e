"""A drafter with a tree at every step, whatever it is worth: for tests and measurements.

The method "forced_trees" is known within `registered()`.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from edgespec import drafters
from edgespec.drafters.base import LEAST, Drafter, DrafterContext
from edgespec.policies.guesses import Guesses
from edgespec.sampling.trees import children_of, path_to
from edgespec.types import Draft

_MOST = 31  # nodes of a tree


class Growing:
    """A tree of at most `n` nodes and `leaves` leaves, to which paths are added."""

    def __init__(self, n: int, leaves: int) -> None:
        self._n, self._leaves, self._n_leaves = n, leaves, 1
        self._tokens: list[int] = []
        self._children: dict[int, dict[int, int]] = {-1: {}}  # of each node: token → node

    @property
    def is_full(self) -> bool:
        """True if it has all of its nodes."""
        return len(self._tokens) == self._n

    def add(self, parent: int, token: int) -> int | None:
        """Return the node of a token after a parent, an old or a new one; None without room."""
        siblings = self._children[parent]
        if token not in siblings:
            if self.is_full or (siblings and self._n_leaves == self._leaves):
                return None
            self._n_leaves += bool(siblings)
            siblings[token] = len(self._tokens)
            self._children[siblings[token]] = {}
            self._tokens.append(token)
        return siblings[token]

    def add_path(self, tokens: Sequence[int]) -> None:
        """Add tokens after the root, as far as there is room."""
        node: int | None = -1
        for token in tokens:
            node = self.add(node, token)
            if node is None:
                break

    def add_anywhere(self, rng: random.Random, token: int) -> None:
        """Add a token after any node."""
        if self.add(rng.randrange(-1, len(self._tokens)), token) is None and not self.is_full:
            self.add(len(self._tokens) - 1, token)  # the last node has no children

    def shuffled(self, rng: random.Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return tokens and parents in depth-first order, siblings in any order."""
        tokens, parents = [], []
        waiting = [(-1, -1)]  # nodes, and the places of their parents
        while waiting:
            node, parent = waiting.pop()
            if node >= 0:
                tokens.append(self._tokens[node])
                parents.append(parent)
            children = list(self._children[node].values())
            rng.shuffle(children)
            waiting += [(child, len(tokens) - 1) for child in children]
        return tuple(tokens), tuple(parents)


class ForcedTrees(Drafter):
    """Trees of 2 to 31 nodes: the guesses of real drafters, the next tokens of a text that is
    `known` to come, random tokens; siblings in any order, so all of them are accepted at times.

    n_trees, n_nodes: guessed so far. places: accepted nodes by the place among their siblings.
    """

    name = "forced_trees"

    def __init__(
        self, inner: Sequence[Drafter], vocab_size: int, leaves: int, seed: int = 0
    ) -> None:
        self._inner, self._vocab_size, self._leaves = list(inner), vocab_size, leaves
        self._rng = random.Random(seed)
        self._context: list[int] = []
        self.known: Sequence[int] = ()  # the prompt and what will follow it
        self.n_trees = self.n_nodes = 0
        self.places: Counter[str] = Counter()
        self._tokens: tuple[int, ...] = ()  # of the last tree
        self._children = children_of(())

    def begin(self, request, role):
        self._context = list(request.prompt)
        for drafter in self._inner:
            drafter.begin(request, role)

    def root(self):
        """Return the root of a new tree."""
        rng, n = self._rng, len(self._context)
        tree = Growing(rng.randint(2, _MOST), min(self._leaves, rng.randint(2, 15)))
        tree.add(-1, rng.randrange(self._vocab_size))
        guesses = Guesses(self._inner, self._leaves)
        guessed = guesses.draft(guesses.nodes(_MOST // 3, (LEAST,)), "", ())
        right = self.known[n : n + rng.randint(0, 7)]
        paths = [[guessed.tokens[i] for i in path] for path in paths_of(guessed)] + [list(right)]
        rng.shuffle(paths)
        for path in paths:
            tree.add_path(path)
        while not tree.is_full:
            tree.add_anywhere(rng, rng.randrange(self._vocab_size))
        self._tokens, parents = tree.shuffled(rng)
        self._children = children_of(parents)
        self.n_trees += parents != tuple(range(-1, len(parents) - 1))
        self.n_nodes += len(parents)
        return -1

    def step(self, state, token):
        return next(node for node in self._children[state] if self._tokens[node] == token)

    def children(self, state, least=0.0):
        return [(self._tokens[n], 0.5 ** (i + 1)) for i, n in enumerate(self._children[state])]

    def accept(self, verified):
        for drafter in self._inner:
            drafter.accept(verified)
        self._context += verified.tokens
        if verified.drafted:
            self._count(verified.tokens)

    def close(self):
        for drafter in self._inner:
            drafter.close()

    def _count(self, emitted: Sequence[int]) -> None:
        """Count the accepted nodes by their places among their siblings."""
        children, node = self._children, -1
        for token in emitted:
            siblings = children[node]
            node = next((n for n in siblings if self._tokens[n] == token), None)
            if node is None:
                return
            at = siblings.index(node)
            first, last = at == 0, at == len(siblings) - 1
            place = "first" if first else "last" if last else "middle"
            self.places["alone" if first and last else place] += 1


def paths_of(draft: Draft) -> list[tuple[int, ...]]:
    """Return the path to each leaf of a draft."""
    parents = draft.parents or tuple(range(-1, len(draft.tokens) - 1))
    leaves = [i for i, below in enumerate(children_of(parents)[:-1]) if not below]
    return [path_to(parents, leaf) for leaf in leaves]


def make(
    context: DrafterContext, *, base: str = "suffix,runner_ups,recycling", seed: int = 0
) -> ForcedTrees:
    """Make the drafter of method "forced_trees"; base: the sources whose guesses it takes."""
    config = replace(context.config, options={}, num_speculative_tokens=None, draft_p_min=None)
    inner = drafters.make(drafters.chosen(base), replace(context, config=config))
    return ForcedTrees(inner, context.vocab_size, context.max_leaves, seed)


@contextlib.contextmanager
def registered() -> Iterator[None]:
    """Let the method be known for a while: the help of the command line lists all that are."""
    drafters.register("forced_trees", "trees whatever they are worth", trees=True)(make)
    try:
        yield
    finally:
        drafters.known.remove("forced_trees")
