"""A draft model whose second and third choices are drafted as well, as a tree.

They cost the draft model nothing, for its rows are there. What follows them costs it evaluations:
the likeliest node that was not evaluated yet comes next, as in EAGLE-2 (arXiv 2406.16858), and
others beside it where that takes hardly longer. Of all nodes the likeliest are drafted, as many as
are worth their time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ..backends.base import GrowingModel, Model
from ..sampling.base import Request
from ..sampling.sampler import DeadEnd
from ..sampling.trees import path_to
from ..types import NO_THRESHOLDS, Draft, Extension, Row, Rows, Thresholds, Verified
from .confidence import NOTHING, Choices, choices_of
from .draft_model import Guess, ModelDrafter
from .trees import WIDE, Union, grow

_TOGETHER = 4  # nodes evaluated together
_ONE_PASS = ("medusa", "dflash")  # heads of these kinds guess all depths in one evaluation
_BESIDE = 0.35  # share of its probability that a node is worth evaluating beside a likelier one


class GuessTree:
    """The nodes that a draft model has guessed behind a text, which is node -1.

    head: the end of that text, as far as another drafted it: something else may be emitted.
    parents[i] and probs[i] are those of tokens[i]: the node before it, and the probability that all
    of its path is accepted. evaluated: nodes in the order of evaluation. choices: of the text and
    of each evaluated node. n_leaves: of the tree of evaluated nodes. max_depth: nodes so deep are
    not evaluated; 0: any are.
    """

    def __init__(self, head: Sequence[int] = (), max_depth: int = 0) -> None:
        self.head = list(head)
        self._max_depth = max_depth
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.probs: list[float] = []
        self.evaluated: list[int] = []
        self.choices: dict[int, Choices] = {}
        self.n_leaves = 1
        self._continued: set[int] = set()  # nodes before evaluated ones
        self._open: set[int] = set()  # nodes that were not evaluated
        self._behind: dict[int | None, range] = {}  # of evaluated nodes: those behind them

    def add(self, node: int, choices: Choices, probs: Iterable[float]) -> None:
        """Add the choices behind a node, which was evaluated just now."""
        self.choices[node], before = choices, 1.0
        if node >= 0:
            before, parent = self.probs[node], self.parents[node]
            self._open.remove(node)
            self.evaluated.append(node)
            self.n_leaves += parent in self._continued
            self._continued.add(parent)
        first = len(self.tokens)
        goes_on = not self._max_depth or len(path_to(self.parents, node)) + 1 < self._max_depth
        for token, prob in zip(choices.tokens, probs, strict=False):
            if goes_on:
                self._open.add(len(self.tokens))
            self.tokens.append(token)
            self.parents.append(node)
            self.probs.append(before * prob)
        self._behind[node] = range(first, len(self.tokens))

    def waiting(self, max_leaves: int) -> list[int]:
        """Return the nodes that may be evaluated next, the likeliest first."""
        nodes = self._open
        if self.n_leaves >= max_leaves:
            nodes = {node for node in nodes if self.parents[node] not in self._continued}
        return sorted(nodes, key=lambda node: (-self.probs[node], node))

    def last(self) -> list[int]:
        """Return the first choice behind the node that was evaluated last, if there is one."""
        last = self.evaluated[-1] if self.evaluated else -1
        return [node for node in sorted(self._open) if self.parents[node] == last][:1]

    def path(self, node: int) -> list[int]:
        """Return the tokens that lead to a node, those of the head first."""
        return [*self.head, *(self.tokens[i] for i in path_to(self.parents, node))]

    def follow(self, tokens: Sequence[int]) -> list[int]:
        """Return the nodes from -1 on that `tokens` run through, as far as they were evaluated.

        There are none if the tokens do not begin with the head.
        """
        n = len(self.head)
        if list(tokens[:n]) != self.head:
            return []
        line = [-1]
        for token in tokens[n:]:
            found = [
                node
                for node in self.evaluated
                if self.parents[node] == line[-1] and self.tokens[node] == token
            ]
            if not found:
                break
            line += found
        return line

    def root(self) -> int | None:
        """Return the text's node."""
        return -1

    def step(self, state: int | None, token: int) -> int | None:
        """Return the node behind another one, None for none."""
        nodes = self._behind.get(state, ())
        return next((node for node in nodes if self.tokens[node] == token), None)

    def children(self, state: int | None, least: float = 0.0) -> list[tuple[int, float]]:
        """Return the tokens that were guessed behind a node, with their probabilities."""
        before = self.probs[state] if state is not None and state >= 0 else 1.0
        nodes = self._behind.get(state, ())
        return [(self.tokens[node], self.probs[node] / before) for node in nodes]


class TreeOptions(NamedTuple):
    """The most choices behind one text, and the most leaves that the target evaluates."""

    top_k: int
    max_leaves: int


class ModelTreeDrafter(ModelDrafter):
    """Drafts trees of a model's likeliest tokens, at every temperature; by coupled sampling, of the
    tokens that win their races first. It draws tokens, in chains, with acceptance "rejection" and
    where trees cannot pay: the target draws one of four likely tokens more often than it accepts
    one drawn token, but the likeliest alone less often.

    A model that cannot grow trees in its context is evaluated along its first choices only. Of one
    that guesses all depths at once, only the first evaluation costs anything.
    """

    def __init__(
        self, model: Model, target_vocab_size: int, tree: TreeOptions, **options: Any
    ) -> None:
        super().__init__(model, target_vocab_size, **options)
        self._shape = tree
        self._grows = isinstance(model, GrowingModel) and model.capabilities.max_leaves > _TOGETHER
        self._one_pass = getattr(model, "kind", "") in _ONE_PASS
        self._together = min(_TOGETHER, model.capabilities.max_rows)
        self._tree: GuessTree | None = None  # of the last draft, to learn from
        self._waiting: GuessTree | None = None  # the same while its nodes wait in the cache
        self._max_depth = 0  # of nodes that are evaluated
        self.is_chain = True  # this request's drafts

    def begin(self, request: Request) -> None:
        """Begin a request."""
        super().begin(request)
        self._tree = self._waiting = None
        costs, n = self._costs, len(request.prompt)
        self._is_narrow = bool(costs and costs.known and costs.least(n)[0] > WIDE)
        if not (self._is_narrow or self._coupled):
            self._greedy = self._greedy or self._acceptance == "block"
        self.is_chain = self._is_narrow or not (self._greedy or self._coupled)

    def extension(self, n_unread: int, n_context: int) -> Extension:
        """Return the gains and costs of evaluating the model, with `n_unread` tokens to read."""
        found = super().extension(n_unread, n_context)
        further_s = 0.0 if self._one_pass else None
        return found._replace(further_s=further_s, most=self._max_depth)

    def propose(
        self, context: Sequence[int], limit: int, thresholds: Thresholds = NO_THRESHOLDS
    ) -> Draft:
        """Draft the likeliest nodes, at most `limit`."""
        if self.is_chain:
            return super().propose(context, limit, thresholds)
        found, evaluated = self.guess(context, limit, thresholds)
        only = Union([found])
        tree = grow(only.root(), only.children, only.step, limit, self._shape.max_leaves)
        draft = tree.draft(tree.n_best(thresholds), self.name)
        return draft._replace(evaluated=evaluated)

    def guess(
        self, context: Sequence[int], limit: int, thresholds: Thresholds
    ) -> tuple[GuessTree, tuple[int, ...]]:
        """Return what is worth to be guessed, and how many tokens each evaluation took."""
        tree, self._tree = GuessTree(context[self._n_context :], self._max_depth), None
        self._guesses = []
        pending = self._catch_up(context, limit) if thresholds.extends(0, 1.0) else None
        if pending is None:
            return tree, ()
        self._tree = self._waiting = tree
        evaluated = [len(context) - self._start - self._known]
        self._add(tree, -1, self._evaluate(pending))
        self._known = len(context) - self._start
        self._confidence.count_draft(tree.choices[-1].confidence)
        while nodes := self._next(tree, limit, thresholds):
            for node, row in zip(nodes, self._rows(tree, nodes), strict=True):
                self._add(tree, node, row)
            if not self._one_pass:
                evaluated.append(len(nodes))
        return tree, tuple(evaluated)

    def look_ahead(
        self, context: Sequence[int], limit: int, until: Callable[[], bool]
    ) -> list[Guess]:
        """Return the draft after a `context` whose end is not accepted yet."""
        self._keep(context[self._n_context :])
        return super().look_ahead(context, limit, until)

    def accept(self, verified: Verified) -> None:
        """Learn from all that was emitted, drafted or not."""
        self._keep(verified.tokens)
        tree, self._tree = self._tree, None
        if tree:
            own = zip(tree.follow(verified.tokens), verified.tokens[len(tree.head) :], strict=False)
            for i, (node, token) in enumerate(own):
                choices = tree.choices[node]
                self._confidence.observe_choices(choices, token, behind_accepted=i > 0)
        super().accept(verified)

    def _keep(self, tokens: Sequence[int]) -> None:
        """Let the model keep what it evaluated of `tokens`, which follow the text."""
        tree, self._waiting = self._waiting, None
        if tree and tree.evaluated and self._grows:
            places = {node: place for place, node in enumerate(tree.evaluated)}
            self._cache.keep([places[node] for node in tree.follow(tokens)[1:]])

    def _next(self, tree: GuessTree, limit: int, thresholds: Thresholds) -> list[int]:
        """Return the nodes that are worth evaluating next, together; none if the tree ends."""
        n = len(tree.evaluated) + 1  # nodes that are likelier than what comes
        most = self._model.capabilities.max_leaves - _TOGETHER + 1
        nodes = tree.waiting(most) if self._grows else tree.last()
        if n >= limit or not nodes:
            return []
        prob = tree.probs[nodes[0]]
        if not (thresholds.keeps(n - 1, prob) and thresholds.extends(n, prob)):
            return []
        n_together = 1
        while n_together < min(len(nodes), self._together, limit - n):
            worth = _BESIDE * tree.probs[nodes[n_together]] * self._confidence.conditional_rate
            if worth <= self._cost(n, n_together, thresholds):
                break
            n_together += 1
        return nodes[:n_together]

    def _cost(self, n: int, n_together: int, thresholds: Thresholds) -> float:
        """Return the tokens that it costs to evaluate one more node beside `n_together`, and to
        draft what follows it behind n + n_together nodes.
        """
        if not (self._costs and thresholds.price):
            return 1.0
        draft, at = self._costs.draft, self._n_context
        more_s = 0.0
        if not self._one_pass:
            more_s = draft(n_together + 1, at) - draft(n_together, at)
        return thresholds.price * more_s + thresholds.node_cost(n + n_together)

    def _rows(self, tree: GuessTree, nodes: Sequence[int]) -> Iterable[Row]:
        """Evaluate nodes and return their rows."""
        tokens = [tree.tokens[node] for node in nodes]
        if not self._grows:
            return [self._evaluate(tokens)]
        places = {node: place for place, node in enumerate(tree.evaluated)} | {-1: -1}
        parents = [places[tree.parents[node]] for node in nodes]
        rows: Rows = self._cache.grow(tokens, parents, self._request.abort).logits
        return rows[:, : self._vocab]

    def _add(self, tree: GuessTree, node: int, row: Row) -> None:
        """Add what the model would say behind a node; nothing where it is not sure enough, or
        where none of its tokens is allowed.
        """
        try:
            choices, sure = self._choose(row, tree.path(node))
        except DeadEnd:
            choices, sure = NOTHING, 0.0
        probs = self._confidence.split(choices) if sure >= self._p_min else ()
        tree.add(node, choices, probs)

    def _choose(self, row: Row, ahead: Sequence[int]) -> tuple[Choices, float]:
        """Return the choices behind a row, which `ahead` of the text led to, and its largest
        probability.
        """
        k = self._shape.top_k
        if not self._greedy:
            q = self._sampler.distribution(row, ahead)
            races = self._request.randomness.smallest(self._n_context + len(ahead), q, k)
            shares = [(token, races[0][1] / race) for token, race in races]
            return choices_of("race", shares, q.largest()), q.largest()
        shares, left = [], 1.0
        for token, prob in (found := self._sampler.likeliest_few(row, k, ahead)):
            shares.append((token, prob / left))
            left = max(left - prob, 1e-9)
        return choices_of("likeliest", shares, found[0][1]), found[0][1]
