"""The worth of drafted tokens: the tokens they are expected to gain, minus the price of time."""

from __future__ import annotations

import bisect
import copy
import functools
import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from ..drafters.base import LEAST, Forecast
from ..types import Budget, Work
from .base import Limits

LOOK_AHEAD = 8  # most tokens of a model whose worth is judged together
SURE = 0.4  # a possible loss is weighted with at least this probability
_ALONGSIDE = 0.35  # factor on the probability of a node that is evaluated with a likelier one
_RARE = 0.01  # classes with at most this share of drafts are left out
_POSSIBLE = 1e-9  # less likely tokens are never drafted
_NO_TIME = (0.0,) * 64  # seconds of steps if time costs nothing
_CERTAIN = ((1.0, 1.0),)  # the histogram of a model that is always right


class Worth:
    """The worth of nodes within the limits of a step, in tokens.

    seconds: the seconds of steps of 0, 1, 2, … tokens; zeros if time costs nothing. least: the
    least path probability at which the 1st, 2nd, … node can be worth its time.
    """

    def __init__(self, limits: Limits, budget: Budget) -> None:
        self.limits, self.price = limits, limits.price
        self.costs = costs = limits.costs if limits.price else None
        self.seconds: Sequence[float] = costs.target(budget.n_past) if costs else _NO_TIME
        pays = costs.least(budget.n_past) if costs else (0.0,)
        floor = LEAST if costs else _POSSIBLE
        self.least = [max(prob, floor) for prob in pays]

    def cost(self, n: int, n_before: int = 0) -> float:
        """Return the cost, in tokens, of n nodes for the target after `n_before` others."""
        return self.price * (self.seconds[n_before + n + 1] - self.seconds[n_before + 1])

    def free(self, nodes: Iterable[tuple[float, int]]) -> tuple[int, float, int, float]:
        """Return how many of the first nodes gain most, and their gain, twice: (n, gain) within the
        loss budget, followed by (n, gain) without that limit.

        nodes: the path probability and depth of each node.
        """
        n = n_wished = 0
        gain = wished = expected = 0.0
        reached: dict[int, float] = {}  # depth: the probability that a token there is accepted
        affordable = True
        for i, (prob, depth) in enumerate(nodes, start=1):
            expected += prob
            cost = self.cost(i)
            reached[depth] = reached.get(depth, 0.0) + prob
            risk = 1 - reached.get(math.ceil(cost), 0.0)  # fewer tokens are accepted than it costs
            affordable = affordable and cost * max(risk, SURE) <= self.limits.loss
            if expected - cost > wished:
                n_wished, wished = i, expected - cost
                if affordable:
                    n, gain = n_wished, wished
        return n, gain, n_wished, wished

    def n_best(self, probs: Iterable[float], n_before: int = 0) -> int:
        """Return how many of these nodes, likeliest first, gain most after `n_before` others."""
        gain = most = 0.0
        n = 0
        for i, prob in enumerate(probs, start=1):
            gain += prob - self.cost(1, n_before + i - 1)
            if gain > most:
                most, n = gain, i
        return n

    def opened(self, forecast: Forecast, work: Work) -> OpenedWorth:
        """Return the worth of the tokens that a model adds. work: its first evaluation."""
        return OpenedWorth(self, forecast, work)

    def loss_s(self) -> float:
        """Return the most seconds that a step may take if its whole draft is rejected."""
        return self.limits.loss / self.price + self.seconds[1] if self.price else math.inf


class OpenedWorth:
    """The worth, in tokens, of what a model adds where it is opened, that is, evaluated first.

    reading_s: seconds in which it reads the text that is new to it, except for the last token.
    """

    def __init__(self, worth: Worth, forecast: Forecast, work: Work) -> None:
        self._worth, self.work = worth, work
        self._rate = max(1, round(25 * forecast.rate))  # of 25, so that few tables are made
        self.forecast = forecast._replace(rate=self._rate / 25)
        self._first_s = self._further_s = self.reading_s = 0.0
        if costs := worth.costs:
            self._first_s = costs.draft_token_s(work.n_cached)
            self._further_s = 0.0 if forecast.one_pass else self._first_s * costs.profile.growing
            if work.n_tokens > 1:
                self.reading_s = costs.draft(*work) - costs.draft(1, work.n_cached)

    def expected(self, n: int, prob: float, most: int) -> float:
        """Return the expected gain, in tokens, of up to `most` tokens of the model. It is estimated
        before the model is evaluated. The tokens follow a node of path probability `prob`, and are
        added to n nodes.
        """
        price = self._worth.price
        if not price:
            return prob * self.forecast.first * _expected(self._rate)[min(most, LOOK_AHEAD) - 1]
        gains = [(tokens, price * s) for tokens, s in self._lost_s(n, most)]
        least = min([lost / tokens for tokens, lost in gains])
        total = -price * self._first_s
        for share, first in self.forecast.histogram:
            if share > _RARE and prob * first > least:
                total += share * max([prob * first * tokens - lost for tokens, lost in gains])
        return total

    @property
    def is_hopeless(self) -> bool:
        """True if the model would not gain anything even with every token right."""
        certain = copy.copy(self)
        certain.forecast, certain._rate = self.forecast._replace(histogram=_CERTAIN), 25
        limits = self._worth.limits
        return certain.expected(0, 1.0, min(LOOK_AHEAD, limits.nodes)) <= limits.margin

    def reading(self, usual: Sequence[float]) -> float:
        """Return the tokens that reading costs this step. It is spread over the steps to come, but
        not if it recurs in each of them.

        usual: the acceptance probabilities of the first tokens of a draft.
        """
        limits, steps = self._worth.limits, 1.0
        if self.work.n_tokens > limits.recurring:
            steps = max(1.0, limits.n_ahead / (1 + sum(usual)))
        return limits.reading * limits.price * self.reading_s / steps

    def pays(self, n: int, prob: float, *, unknown: bool = False) -> bool:
        """Return whether a token of this path probability, with the tokens that may follow it, is
        worth its time after n nodes. unknown: the model has to be evaluated to guess it.
        """
        return not self._worth.costs or prob >= self._worth.price * self._least_s[unknown][n]

    @functools.cached_property
    def _least_s(self) -> tuple[list[float], list[float]]:
        """The least seconds per accepted token, for tokens added to 0, 1, 2, … nodes. The first
        list is for known tokens, the second for tokens that the model has yet to guess.
        """
        costs, forecast = self._worth.costs, self.forecast
        assert costs
        key = self._rate, self._further_s, forecast.max_depth
        if key not in costs.of_table:
            n, most = np.arange(costs.max_depth)[:, None], forecast.max_depth or LOOK_AHEAD
            k = np.arange(min(most, LOOK_AHEAD))
            seconds, tokens = np.array(self._worth.seconds), np.array(_expected(self._rate))[k]
            lost = seconds[n + k + 2] - seconds[n + 1] + k * self._further_s
            lost_s = np.stack([lost, lost + self._further_s]) / tokens
            costs.of_table[key] = tuple(lost_s.min(axis=2).tolist())
        least: tuple[list[float], list[float]] = costs.of_table[key]
        return least

    def n_losable(self, n: int) -> int:
        """Return how many tokens may be added to n nodes so that the loss stays within its budget
        even if all of them are rejected.
        """
        most_s, seconds = self._worth.loss_s() - self._first_s, self._worth.seconds
        return bisect.bisect_right(
            range(1, self._worth.limits.nodes - n + 1),
            most_s,
            key=lambda k: seconds[n + k + 1] + (k - 1) * self._further_s,
        )

    def n_together(self, n: int, probs: Sequence[float]) -> int:
        """Return how many of these nodes are worth evaluating in one call, at least 1.

        n: the nodes so far, including the first of these. probs: their path probabilities, falling.
        """
        forecast, worth, costs, count = self.forecast, self._worth, self._worth.costs, 1
        most, cached = min(len(probs), forecast.together), self.work.n_cached
        while costs and count < most:
            more_s = 0.0
            if not forecast.one_pass:
                more_s = costs.draft(count + 1, cached) - costs.draft(count, cached)
            cost = worth.price * more_s + worth.cost(1, n + count)
            if _ALONGSIDE * probs[count] * forecast.rate <= cost:
                break
            count += 1
        return count

    def _lost_s(self, n: int, most: int) -> list[tuple[float, float]]:
        """Return a pair for each of 1, 2, … tokens added to n nodes: the expected accepted tokens,
        divided by the first token's probability, and the seconds of all these tokens.
        """
        seconds, further_s = self._worth.seconds, self._further_s
        before, tokens = seconds[n + 1], _expected(self._rate)
        most = min(most, LOOK_AHEAD, self.forecast.max_depth or LOOK_AHEAD)
        return [(tokens[k], seconds[n + k + 2] - before + k * further_s) for k in range(most)]


@functools.cache
def _expected(rate: int) -> list[float]:
    """Return the expected accepted tokens of 1, 2, … tokens, divided by the first token's
    probability. rate: the acceptance rate after an accepted token, in 25ths.
    """
    return list(itertools.accumulate((rate / 25) ** i for i in range(LOOK_AHEAD)))
