"""Growth of a draft: the one place that decides whether a token is worth its time.

The guesses of lookups are free. A model is evaluated only where the tokens that it is expected to
add are worth the time. docs/concepts/decisions.md has the rules, with examples.
"""

from __future__ import annotations

import operator
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

from ..drafters.base import NOT_DRAWN, Children, Drafter, State
from ..sampling.base import Matcher
from ..types import NO_DRAFT, Budget, Distribution, Draft, Work
from .base import Limits
from .guesses import MODEL, Guesses, Node, first_path
from .worth import OpenedWorth, Worth

_BESIDE = 0.6  # share of the free guesses' gain that is left if a model guesses at the root, too
_NO_MATCH, _TOO_SLOW, _TOO_UNSURE = "no match", "draft too slow", "drafts too unsure"
_NOT_MEASURED = "costs are not measured yet"

_gain = operator.attrgetter("gain")


class Expand(NamedTuple):
    """A request for the tokens that a model expects after these states."""

    drafter: Drafter
    states: list[State]

    def do(self) -> list[Children]:
        """Return the children of each state."""
        return self.drafter.expand(self.states)


class Draw(NamedTuple):
    """A request for the token that a model draws after a state."""

    drafter: Drafter
    state: State

    def do(self) -> tuple[int, Distribution]:
        """Return the token, and the distribution that it was drawn from."""
        return self.drafter.draw(self.state)


class Forbidden(NamedTuple):
    """Free guesses that only the loss budget kept from being drafted.

    cost: the tokens that their evaluation would have cost.
    """

    draft: Draft
    cost: float


class _Plan(NamedTuple):
    """A possible draft: the first n free guesses, and the guesses of a model after one of them.

    gain: tokens that the whole draft is expected to gain. opened: the model and where its guesses
    begin, None for free guesses alone. most: tokens that the model may add. pays: tokens that the
    model is expected to gain, not counting the cost of reading text that is new to it.
    """

    gain: float
    n: int = 0
    opened: _Opened | None = None
    most: int = 0
    pays: float = 0.0


class Growth:
    """Grows the draft of one step. It evaluates and draws nothing itself: `next` returns what the
    caller has to do.

    lookups: drafters whose guesses are free, those with likely guesses first. models: drafters that
    evaluate a model; at most one of them is opened, that is, evaluated for new guesses. matcher:
    the matcher of the request's constraint.

    draft: the finished draft, once `next` returns None. nodes: all tokens that it was chosen from;
    it has the first of them (`cut` changes how many). forbidden: free guesses that only the loss
    budget forbade. free_gain: tokens that the free guesses alone were expected to gain. reading_s:
    seconds in which the model reads text that it had not read. explored: tokens that a trial of a
    model may lose. idle: True if a model was not worth its time. reason: why nothing is drafted; ""
    while models pause, which means that the last reason still holds.
    """

    def __init__(
        self,
        lookups: Sequence[Drafter],
        models: Sequence[Drafter],
        limits: Limits,
        budget: Budget,
        matcher: Matcher | None = None,
    ) -> None:
        self._models, self._limits = () if limits.lookups_only else models, limits
        self._worth = Worth(limits, budget)
        max_leaves = min(limits.max_leaves, budget.max_leaves)
        self._guesses = Guesses(lookups, max_leaves, matcher, limits.p_min)
        self._evaluated: list[Work] = []
        self._at_root: dict[Drafter, Work | None] = {}
        self.draft = NO_DRAFT
        self.nodes: Sequence[Node] = ()
        self._name = ""
        self.forbidden: Forbidden | None = None
        self.reading_s = self.explored = self.free_gain = 0.0
        self.idle = False
        self.reason = "" if limits.paused else _NO_MATCH
        self._steps = self._grow()

    def next(self, result: Any = None) -> Expand | Draw | None:
        """Return what the caller has to do next, None if the draft is finished. result: the result
        of the last request.
        """
        return self._steps.send(result)

    def _grow(self) -> Generator[Expand | Draw | None, Any, None]:
        limits, guesses, worth = self._limits, self._guesses, self._worth
        for model in self._models:
            yield from self._recall(model)
        nodes = guesses.nodes(limits.nodes, worth.least)
        free = self._free(nodes)
        self.free_gain = free.gain
        plan = self._best(nodes, free)
        n, opened = plan.n, plan.opened
        name = self._models[0].name if self._models else ""
        if opened:
            name, self.reading_s = opened.model.name, opened.worth.reading_s
            limit = min(plan.n + plan.most, limits.nodes)
            yield from self._evaluate(opened, plan.n, limit)
            nodes = guesses.nodes(limit, worth.least)
            n = guesses.n_staying
            n += worth.n_best([node.prob for node in nodes[n:]], n)
        self._name, self.nodes = name, nodes
        self.cut(n)
        while True:
            yield None

    @property
    def n_staying(self) -> int:
        """The number of the first `nodes` that the draft must contain."""
        return self._guesses.n_staying

    def cut(self, n: int) -> None:
        """Make the draft of the first `n` of `nodes`."""
        worth = self._worth
        if n >= max(self._limits.at_least, 1) or self.n_staying:
            self.draft = self._guesses.draft(self.nodes[:n], self._name, self._evaluated)
            if worth.costs and (n_filled := worth.costs.n_filled(n + 1)):
                self.draft = self.draft._replace(n_filled=n_filled)
        else:
            self.draft = NO_DRAFT._replace(evaluated=tuple(self._evaluated))

    def _recall(self, model: Drafter) -> Generator[Expand, Any, None]:
        """Collect a model's guesses from earlier evaluations; that takes no time."""
        node, state = self._guesses.root, model.root()
        work = self._at_root[model] = model.work([state])
        while work is not None and not work.n_tokens:
            (children,) = yield Expand(model, [state])
            node.said = children
            if not children or children[0][0] == NOT_DRAWN:
                return
            node, state = node.child(children[0][0]), model.step(state, children[0][0])
            work = model.work([state])

    def _free(self, nodes: Sequence[Node]) -> _Plan:
        """Return the plan that drafts free guesses alone."""
        worth, margin = self._worth, self._limits.margin
        n, gain, n_wished, wished = worth.free([(node.prob, node.depth) for node in nodes])
        if gain <= margin < wished:
            draft = self._guesses.draft(nodes[:n_wished], "", ())
            self.forbidden = Forbidden(draft, worth.cost(n_wished))
        return _Plan(gain, n)

    def _best(self, nodes: Sequence[Node], free: _Plan) -> _Plan:
        """Return the plan that gains most: free guesses alone, or together with those of a model
        after the text or after the likeliest free path. If none gains enough, return a trial of a
        model, or a plan without a draft.
        """
        margin, root = self._limits.margin, self._guesses.root
        tops = dict.fromkeys((root, first_path(nodes[: free.n], root)))
        plans = [
            plan
            for model in self._models
            for top in tops
            if top.said is None
            for plan in self._opening(model, top, nodes, free)
        ]
        best = max([free, *plans], key=_gain)
        if best.gain > margin:
            return best
        if plans:
            trial = max(plans, key=_gain)
            self.idle = self.idle or any(
                plan.pays <= margin for plan in plans if plan.opened and plan.opened.top is root
            )
            if self._may_explore(trial):
                return trial
        elif nodes and not self._limits.paused:
            self.reason = _TOO_UNSURE
        return _Plan(0.0)

    def _opening(
        self, model: Drafter, top: Node, nodes: Sequence[Node], free: _Plan
    ) -> Iterator[_Plan]:
        """Yield the plan that opens a model after a node, if the model can be evaluated there."""
        is_root = top is self._guesses.root
        state = model.root()
        for node in top.path():
            state = model.step(state, node.token)
        work = self._at_root[model] if is_root else model.work([state])
        if is_root and self._limits.paused:
            work = None
        if work is None:
            return
        n, forecast = 0 if is_root else free.n, model.forecast()
        worth = self._worth.opened(forecast, work)
        most = worth.n_losable(n)
        if most <= 0:
            self.reason, self.idle = self._against(worth), self.idle or is_root
            return
        share = 1.0 if not is_root else _BESIDE if forecast.n_choices > 1 else 0.0
        pays = worth.expected(n, top.prob, most)
        gain = share * free.gain + pays
        if worth.reading_s:
            usual = [node.prob for node in nodes[:4]]
            if is_root:
                usual = [forecast.first * forecast.rate**i for i in range(4)]
            gain -= worth.reading(usual)
        yield _Plan(gain, n, _Opened(model, worth, top, state), most, pays)

    def _may_explore(self, trial: _Plan) -> bool:
        """Return whether to try a model that is expected to lose. It is tried if it would gain with
        every token right, and the exploration budget covers what it may lose.
        """
        assert trial.opened
        worth, limits = trial.opened.worth, self._limits
        self.reason = self._against(worth)
        loss = limits.margin - trial.gain + limits.price * worth.reading_s
        if self.reason != _TOO_UNSURE or loss > limits.explore:
            return False
        self.explored = loss
        return True

    def _against(self, worth: OpenedWorth) -> str:
        """Return the reason for which a model that is expected to lose is not opened."""
        if not worth.is_hopeless:
            return _TOO_UNSURE
        costs = self._worth.costs
        return _TOO_SLOW if costs is None or costs.profile.draft else _NOT_MEASURED

    def _evaluate(
        self, opened: _Opened, n_before: int, limit: int
    ) -> Generator[Expand | Draw, Any, None]:
        """Evaluate a model where it is opened, then after its own guesses, as long as that is worth
        the time. n_before: number of free guesses in the draft. limit: most nodes of the draft.
        """
        nodes, model, work = [opened.top], opened.model, opened.worth.work
        one_pass = opened.worth.forecast.one_pass
        while nodes:
            if not (self._evaluated and one_pass):
                self._evaluated.append(work)
            rows = yield Expand(model, [opened.states[node] for node in nodes])
            for node, children in zip(nodes, rows, strict=True):
                node.said = children
                opened.evaluated(node)
                if children and children[0][0] == NOT_DRAWN:
                    children = yield from self._drawn(opened, node, children[0][1], n_before)
                opened.add(node, children)
            nodes = opened.worth_evaluating(n_before, limit)
            work = Work(len(nodes), work.n_cached + work.n_tokens)

    def _drawn(
        self, opened: _Opened, node: Node, chance: float, n_before: int
    ) -> Generator[Draw, Any, Children]:
        """Draw the token after a node, if that is worth its time. From then on every draft of this
        step contains the drawn token, whichever it is, and all tokens before it.
        """
        prob = opened.probs[node] * chance
        if not opened.worth.pays(n_before + opened.n_evaluated, prob):
            return ()
        token, drawn_from = yield Draw(opened.model, opened.states[node])
        child = node.child(token)
        child.drawn, child.prob, child.source = drawn_from, prob, MODEL
        self._guesses.stay(child)
        return [(token, chance)]


class _Opened:
    """A model, and its nodes from the one where it is opened.

    states, probs: the model's state at each node, and the node's path probability by the model.
    n_evaluated: how many nodes were evaluated, without the first.
    """

    def __init__(self, model: Drafter, worth: OpenedWorth, top: Node, state: State) -> None:
        self.model, self.worth, self.top = model, worth, top
        self.states: dict[Node, State] = {top: state}
        self.probs = {top: top.prob}
        self.n_evaluated, self._n_leaves = 0, 1
        self._waiting: dict[Node, None] = {}
        self._continued: set[Node] = set()  # parents of evaluated nodes

    def evaluated(self, node: Node) -> None:
        """Count a node that was evaluated."""
        if node.parent and node is not self.top:
            del self._waiting[node]
            self.n_evaluated += 1
            self._n_leaves += node.parent in self._continued
            self._continued.add(node.parent)

    def add(self, node: Node, children: Children) -> None:
        """Add the children that the model guesses after a node."""
        most, step = self.worth.forecast.max_depth, self.model.step
        goes_on = not most or node.depth + 1 - self.top.depth < most
        state, prob = self.states[node], self.probs[node]
        for token, chance in children:
            child = node.child(token)
            self.states[child] = step(state, token)
            self.probs[child] = prob * chance
            if goes_on:
                self._waiting[child] = None

    def worth_evaluating(self, n_before: int, limit: int) -> list[Node]:
        """Return the nodes that are worth evaluating next, in one call; [] if none is."""
        worth, nodes = self.worth, self._open()
        n = n_before + self.n_evaluated + 1  # nodes that are likelier than the next ones
        if n >= limit or not nodes:
            return []
        prob = self.probs[nodes[0]]
        expected = prob * worth.forecast.rate
        if not (worth.pays(n - 1, prob) and worth.pays(n, expected, unknown=True)):
            return []
        probs = [self.probs[node] for node in nodes[: limit - n]]
        return nodes[: worth.n_together(n, probs)]

    def _open(self) -> list[Node]:
        """Return the nodes that may be evaluated next, the likeliest first."""
        nodes, forecast = list(self._waiting), self.worth.forecast
        if self._n_leaves > forecast.max_leaves - forecast.together:
            nodes = [node for node in nodes if node.parent not in self._continued]
        return sorted(nodes, key=self.probs.__getitem__, reverse=True)
