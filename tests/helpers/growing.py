"""Growth in tests: drafters whose guesses are known, and the loop that does what is wanted."""

from edgespec import SamplingParams
from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.drafters.base import NOT_DRAWN, Drafter, Forecast, Role
from edgespec.policies.base import Limits
from edgespec.policies.growth import Growth
from edgespec.sampling.base import Request
from edgespec.sampling.trees import path_to
from edgespec.types import Budget, Distribution, Work

HALF = Distribution([1, 2], [0.5, 0.5])


class Table(Drafter):
    """Guesses for nothing by the last token: {token: {a token after it: its probability}}.

    last: of the text.
    """

    def __init__(self, table, last=1, name="table"):
        self._table, self._last, self.name = table, last, name

    def root(self):
        return self._last

    def step(self, state, token):
        return token

    def children(self, state, least=0.0):
        return list(self._table.get(state, {}).items())

    def accept(self, verified):
        self._last = verified.tokens[-1]


class TableModel(Drafter):
    """A draft model that says what a table says, by the last token.

    sure, rate: of its forecast. drawn: tokens that it draws, in turn, in place of those of the
    table. known: paths that it has evaluated before. readable: whether it can read the text.
    calls: the paths of each evaluation. log: what it was asked for, in order.
    """

    name = "model"
    evaluates = True

    def __init__(
        self, table, last=1, *, sure=0.8, rate=0.8, drawn=(), known=(), n_unread=1, **forecast
    ):
        self._table, self._last, self._drawn = table, last, list(drawn)
        self._forecast = Forecast(((1.0, sure),), rate, **forecast)
        self._known, self._n_unread = set(known), n_unread
        self.readable, self.calls, self.log = True, [], []

    def forecast(self):
        return self._forecast

    def work(self, states):
        new = [state for state in states if state not in self._known]
        if not new:
            return Work(0, 0)
        return (
            Work(len(new) + (self._n_unread - 1) * (not self.calls), 9) if self.readable else None
        )

    def expand(self, states):
        self.log += [("expand", state) for state in states]
        if self.work(states).n_tokens:
            self.calls.append(list(states))
        self._known |= set(states)
        rows = [self._table.get(state[-1] if state else self._last, {}) for state in states]
        if self._drawn:
            return [[(NOT_DRAWN, max(row.values()))] if row else [] for row in rows]
        return [list(row.items()) for row in rows]

    def draw(self, state):
        self.log.append(("draw", state))
        return self._drawn.pop(0), HALF


def grow(lookups=(), models=(), *, nodes=31, leaves=31, matcher=None, **limits):
    """Return the growth of a draft, done as a session does it. limits: as in Limits."""
    growth = Growth(
        lookups, models, Limits(nodes, **limits), Budget(nodes, 100, max_leaves=leaves), matcher
    )
    wish = growth.next()
    while wish:
        wish = growth.next(wish.do())
    return growth


def drafted(drafter, n, **limits):
    """Return a draft of one drafter, of at most n tokens that cost nothing."""
    sources = ([], [drafter]) if drafter.evaluates else ([drafter], [])
    return grow(*sources, nodes=n, **limits).draft


def chances(drafter, n=1):
    """Return the probability that the first 1, 2, … tokens of a chain are accepted, by a lookup."""
    found, state, prob = [], drafter.root(), 1.0
    while state is not None and len(found) < n and (children := drafter.children(state)):
        prob *= children[0][1]
        found.append(prob)
        state = drafter.step(state, children[0][0])
    return found


def said(drafter, *path):
    """Return what a model says after these tokens."""
    (children,) = drafter.expand([state_after(drafter, path)])
    return children


def line(drafter, n, ahead=()):
    """Return the n likeliest tokens, each after those before, by a model; `ahead`: where."""
    tokens = []
    while len(tokens) < n and (children := said(drafter, *ahead, *tokens)):
        tokens.append(children[0][0])
    return tokens


def state_after(drafter, path):
    """Return the state of a drafter after these tokens."""
    state = drafter.root()
    for token in path:
        state = drafter.step(state, token)
    return state


def texts(draft):
    """Return the drafted text that ends with each node."""
    parents = draft.parents or range(-1, len(draft.tokens) - 1)
    paths = [path_to(parents, node) for node in range(len(draft.tokens))]
    return [tuple(draft.tokens[i] for i in path) for path in paths]


def begin(drafter, prompt, params=None, *, role=Role.MATCHED, randomness=None, **options):
    """Begin a request, and return what it requires."""
    return drafter.begin(Request(prompt, params or SamplingParams(), randomness, **options), role)


def costs(steps, draft_s=0.0, reading_s=0.0, max_depth=31):
    """Return costs by the seconds of steps of 1, 2, … tokens; further ones are as steep as the
    last two. draft_s: of an evaluation by the draft model; reading_s: of each further token.
    """
    widths = tuple(range(1, len(steps) + 1))
    drafting = Curve((0,), (1, 2), ((draft_s, draft_s + reading_s),)) if draft_s else None
    profile = Profile(Curve((0,), widths, (tuple(steps),)), drafting, overhead=0.0)
    return Costs(profile, max_depth)
