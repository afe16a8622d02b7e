"""Drafters whose guesses and figures are given, and the steps of policies that are made of them."""

from edgespec import SamplingParams
from edgespec.costs.curves import Curve
from edgespec.drafters.base import NOT_DRAWN, Drafter, Forecast
from edgespec.policies.growth import Growth
from edgespec.sampling.base import Request
from edgespec.types import Budget, Distribution, Requires, Verified, Work

OWN = 1000  # a fake model's tokens begin here, a lookup's below


def line(first, each):
    """Return the curve of steps that take so long, and so much more for each further token."""
    return Curve((1,), (1, 33), ((first, first + 32 * each),))


class Lookup(Drafter):
    """A lookup that always guesses the same. after: what follows each path of tokens."""

    name = "suffix"

    def __init__(self, after, wide=False):
        self.after, self.wide, self.asked = after, wide, 0

    def children(self, state, least=0.0):
        self.asked += 1
        return self.after.get(state, ())


def lookup(*probs, first=0):
    """Return a lookup of one path of tokens, from `first` on, with these path probabilities."""
    chances = [prob / before for prob, before in zip(probs, (1.0, *probs), strict=False)]
    tokens = range(first, first + len(probs))
    return Lookup(
        {tuple(tokens[:i]): [(tokens[i], chance)] for i, chance in enumerate(chances)},
    )


class Model(Drafter):
    """A draft model whose forecast and work are given, and which is mostly as sure as that.

    sure: acceptance probability of its first token; rate: of each further one; n_unread: tokens
    that it has to read first. known: paths that it has evaluated before. draws: it draws its
    tokens. sure_now: how sure it is of its first token this time. others: further fields of its
    forecast. asked: how often somebody wanted a forecast; expanded: the states that were evaluated,
    in `n_calls` calls.
    """

    name = "draft_model"
    evaluates = True

    def __init__(
        self, sure=0.9, rate=0.8, n_unread=1, known=(), draws=False, sure_now=None, **others
    ):
        self.sure, self.rate, self.n_unread, self.known = sure, rate, n_unread, known
        self.sure_now = sure if sure_now is None else sure_now
        self.draws, self._others = draws, others
        self.asked, self.n_calls, self.expanded = 0, 0, []

    def forecast(self):
        self.asked += 1
        return Forecast(((1.0, self.sure),), self.rate, **self._others)

    def work(self, states):
        if all(state in self.known for state in states):
            return Work(0, 0)
        guessed = [token for token in states[0] if token >= OWN]
        n = len(states) if guessed else self.n_unread + len(states[0])
        return Work(n, 100 + len(guessed))

    def expand(self, states):
        self.expanded += states
        self.n_calls += 1
        return [self._children(state) for state in states]

    def _children(self, state):
        guessed = [token for token in state if token >= OWN]
        chance = self.rate if guessed else self.sure_now
        if self.draws:
            return [(NOT_DRAWN, chance)]
        n = self._others.get("n_choices", 1)
        return [(OWN + 10 * len(guessed) + i, chance * (1 - chance) ** i) for i in range(n)]

    def draw(self, state):
        token = OWN + 10 * len(state)
        return token, Distribution([token], [1.0])


class Head(Model):
    """A head, which reads hidden states of the target."""

    name = "head"
    reads_states = True

    def begin(self, request, role):
        return Requires((1, 3))


def begin(policy, *drafters):
    """Begin an answer."""
    policy.begin(Request([1], SamplingParams(), None), drafters)


def grow(policy, *drafters, limit=31, n_emitted=50, remaining=400, max_leaves=8):
    """Return the growth of a step to its end, None if the policy wants no draft."""
    budget = Budget(limit, 100, n_emitted, remaining, max_leaves)
    limits = policy.limits(budget)
    assert 0 <= limits.nodes <= max(limit, 0)
    if limits.nodes <= 0:
        return None
    return grown(limits, *drafters, budget=budget)


def grown(limits, *drafters, budget, matcher=None):
    """Return the growth of a draft within these limits to its end."""
    lookups = [drafter for drafter in drafters if not drafter.evaluates]
    models = [drafter for drafter in drafters if drafter.evaluates]
    growth = Growth(lookups, models, limits, budget, matcher)
    wish = growth.next()
    while wish:
        wish = growth.next(wish.do())
    return growth


def depth(policy, *drafters, **budget):
    """Return how many tokens are drafted in a step."""
    growth = grow(policy, *drafters, **budget)
    return len(growth.draft.tokens) if growth else 0


def emitted(*tokens):
    """Return what drafters and policies see of a step that emitted these tokens."""
    return Verified(tokens)
