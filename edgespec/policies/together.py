"""One growth over several streams, whose steps are evaluated together.

A node of a stream gains its path probability. It costs the seconds that it adds to the evaluation,
times the tokens that all waiting streams emit in a second. So on a processor that is busy with many
streams little is drafted, and rows that cost nothing go to the stream that is surest.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from typing import Protocol

from ..costs.online import BEYOND, Beside, Costs
from ..types import Budget
from .base import Limits
from .growth import Growth
from .guesses import Node
from .worth import SURE


class Stream(Protocol):
    """One of the streams that are evaluated together.

    budget: the limits of its step. loss_budget: tokens that it may still
    lose against decoding without anybody's drafts. growth: what made its draft, None without one.
    error: why its draft could not be made.
    """

    budget: Budget
    growth: Growth | None
    error: BaseException | None

    @property
    def loss_budget(self) -> float:
        """Tokens that this stream may still lose."""

    def limits(self, budget: Budget) -> Limits:
        """Return the limits of its draft; its price is what its own tokens are worth."""

    def start(self, limits: Limits) -> Growth:
        """Return a growth of its draft within these limits."""


def grow_together(
    streams: Sequence[Stream],
    costs: Costs | None,
    n_rows: int = 0,
    n_readers: int = 0,
    reading_s: float = 0.0,
) -> float:
    """Grow the drafts of streams whose steps are evaluated together. Return the seconds of that
    evaluation without drafts, 0 if the costs are not known.

    A stream that has a growth already keeps its draft: it did not fit into the last evaluation. How
    long a draft is may depend on its drawn tokens, so another draw would prefer some of them.
    n_rows: rows that are evaluated for others. n_readers: other streams, whose prompts are read in
    the same evaluation, which takes `reading_s` seconds. A second is worth as much as when all of
    them answer: a shorter evaluation lets the prompts end earlier.
    """
    known, n_plain = costs is not None and costs.known, n_rows + len(streams)
    n_all, seconds, all_s = n_plain + n_readers, [0.0], 0.0
    if costs and known:
        n_past = sum(stream.budget.n_past for stream in streams) // len(streams)
        seconds = costs.target(n_past)
        all_s = seconds[min(n_all, len(seconds) - 1)]
    plain_s = all_s and reading_s + seconds[min(n_plain, len(seconds) - 1)]
    n_plain += sum(len(stream.growth.draft.tokens) for stream in streams if stream.growth)
    wanted = [_limits(stream, all_s) for stream in streams]
    priced = [pair for pair in zip(streams, wanted, strict=True) if pair[1].price]
    for stream, limits in zip(streams, wanted, strict=True):
        if limits.nodes > 0 and not limits.price:
            _grown(stream, limits)
            n_plain += len(stream.growth.draft.tokens) if stream.growth else 0
    room = len(seconds) - 1 - BEYOND - n_plain
    if costs and priced and room > 0:
        price = sum(limits.price or 1 / all_s for limits in wanted) + (n_rows + n_readers) / all_s
        loss = price * plain_s * min(stream.loss_budget for stream in streams)
        margin = max(limits.margin for _, limits in priced)
        _Company(costs, seconds, n_plain, price, loss, margin).grow(priced, room)
    return plain_s


def _limits(stream: Stream, plain_s: float) -> Limits:
    budget = stream.budget
    if budget.limit <= 0 or stream.growth:
        return Limits()
    return stream.limits(budget._replace(plain_s=plain_s))


def _grown(stream: Stream, limits: Limits) -> Growth | None:
    """Return the growth of a stream's draft, None if it fails: that ends this stream alone."""
    try:
        growth = stream.start(limits)
        wish = growth.next()
        while wish:
            wish = growth.next(wish.do())
    except Exception as error:
        stream.error = error
        return None
    stream.growth = growth
    return growth


class _Company:
    """The growth of several drafts whose rows are paid for together.

    seconds: the seconds of evaluations of 0, 1, 2, … rows. n_plain: the rows that are evaluated in
    any case. price: the tokens that a second is worth to all. loss: tokens that may be lost.
    margin: tokens that all drafts together must gain.
    """

    def __init__(
        self,
        costs: Costs,
        seconds: Sequence[float],
        n_plain: int,
        price: float,
        loss: float,
        margin: float,
    ) -> None:
        self._costs, self._seconds, self._n_plain = costs, seconds, n_plain
        self._price, self._loss, self._margin = price, loss, margin

    def grow(self, streams: Sequence[tuple[Stream, Limits]], room: int) -> None:
        """Grow the drafts one after another; then choose among all their tokens, the likeliest
        first. room: the most tokens that may be drafted.
        """
        n_rows, growths = self._n_plain, []
        for stream, limits in streams:
            left = self._loss - self._cost(n_rows)
            nodes = min(limits.nodes, room - (n_rows - self._n_plain))
            if nodes <= 0 or left <= 0:
                continue
            beside = Beside(self._costs, self._seconds, n_rows - 1, self._price)
            growth = _grown(
                stream,
                limits._replace(nodes=nodes, price=self._price, costs=beside, loss=left),
            )
            if growth:
                growths.append(growth)
                n_rows += len(growth.draft.tokens)
        self._choose(growths)

    def _cost(self, n_rows: int) -> float:
        """Return what rows cost in tokens, beyond those that are evaluated in any case."""
        return self._price * (self._seconds[n_rows] - self._seconds[self._n_plain])

    def _choose(self, growths: Sequence[Growth]) -> None:
        """Cut all drafts so that together they gain most, and more than the margin."""
        chosen = [growth.n_staying for growth in growths]
        best, n = list(chosen), self._n_plain + sum(chosen)
        gain, most, before = 0.0, self._margin, self._cost(n)
        reached: dict[tuple[int, int], float] = {}
        for prob, i, node in self._likeliest(growths):
            chosen[i], n = chosen[i] + 1, n + 1
            cost = self._cost(n)
            depth = (i, node.depth)
            reached[depth] = reached.get(depth, 0.0) + prob
            enough = [p for (_, d), p in reached.items() if d == math.ceil(cost)]
            risk = 1 - max(enough, default=0.0)
            if cost * max(risk, SURE) > self._loss:
                break
            gain += prob
            if gain - (cost - before) > most:
                best, most = list(chosen), gain - (cost - before)
        for growth, n_own in zip(growths, best, strict=True):
            if n_own != len(growth.draft.tokens):
                growth.cut(n_own)
        self._fill([growth for growth in growths if growth.draft.tokens], sum(best))

    def _likeliest(self, growths: Sequence[Growth]) -> Iterator[tuple[float, int, Node]]:
        """Yield the tokens of all drafts in falling probability, each with its draft's index."""
        lists = [
            [(-node.prob, i, at, node) for at, node in enumerate(growth.nodes[growth.n_staying :])]
            for i, growth in enumerate(growths)
        ]
        room = len(self._seconds) - 1 - self._n_plain - sum(g.n_staying for g in growths)
        for count, (prob, i, _, node) in enumerate(heapq.merge(*lists)):
            if count >= room:
                return
            yield -prob, i, node

    def _fill(self, drafting: Sequence[Growth], n_drafted: int) -> None:
        """Let the last draft ask for rows that make the whole evaluation quicker."""
        n_filled = self._costs.n_filled(self._n_plain + n_drafted)
        if drafting and n_filled > 0:
            last = drafting[-1]
            last.draft = last.draft._replace(n_filled=n_filled)
