"""One growth over several streams: rows and seconds are priced for all that wait."""

import itertools
from types import SimpleNamespace

import pytest

from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.drafters.base import Drafter
from edgespec.errors import DecodeError
from edgespec.policies.base import PLAIN, Limits
from edgespec.policies.growth import Growth
from edgespec.policies.together import grow_together
from edgespec.types import Budget, Draft

STEPPED = [1.0, 1.05, 1.1, 1.15, 2.0, 2.05, 2.1, 2.15, 3.0, 3.05, 3.1, 3.15]
RISING = [1 + 0.5 * n for n in range(12)]


def costs_of(seconds):
    widths = tuple(range(1, len(seconds) + 1))
    return Costs(Profile(Curve((0,), widths, (tuple(seconds),)), overhead=0.0))


class Chain(Drafter):
    """Guesses one text, with a probability for each of its tokens."""

    name = "chain"

    def __init__(self, probs):
        self._probs = probs

    def root(self):
        return 0

    def step(self, state, token):
        return state + 1

    def children(self, state, least):
        return [(7, self._probs[state])] if state < len(self._probs) else []


class Answer:
    """A stream whose only guesses are those of a chain."""

    def __init__(self, *probs, loss=100.0, rate=1.0, limit=8):
        self.budget, self.loss_budget, self.rate = Budget(limit, 10), loss, rate
        self._chain, self.growth, self.seen, self.error = Chain(probs), None, None, None

    def limits(self, budget):
        self.seen = budget
        if not self.rate:
            return PLAIN
        price = self.rate / budget.plain_s
        return Limits(8, price, COSTS[0], margin=0.03, loss=self.loss_budget)

    def start(self, limits):
        return Growth([self._chain], [], limits, self.budget)

    @property
    def n_drafted(self):
        return len(self.growth.draft.tokens) if self.growth else 0


COSTS = [None]


def grown(seconds, *streams, **options):
    COSTS[0] = costs_of(seconds)
    plain_s = grow_together(streams, COSTS[0], **options)
    return [stream.n_drafted for stream in streams], plain_s


def test_free_rows_go_to_the_surest_tokens():
    found, plain_s = grown(STEPPED, Answer(0.9, 0.3), Answer(0.8, 0.7))
    assert found == [1, 1]  # two of four rows are taken by the two streams themselves
    assert plain_s == pytest.approx(1.05)


def test_a_step_of_the_curve_is_crossed_for_several_streams_together():
    """One stream's tokens would not pay for the next four rows, those of both do."""
    sure = 0.97, 0.97, 0.97
    alone, _ = grown(STEPPED, Answer(*sure), Answer(), Answer(), Answer())
    both, _ = grown(STEPPED, Answer(*sure), Answer(*sure), Answer(), Answer())
    assert (alone, both) == ([0, 0, 0, 0], [2, 2, 0, 0])


@pytest.mark.parametrize("n", [1, 2, 4])
def test_what_pays_for_one_stream_does_not_pay_for_many(n):
    """Each row of a stream costs the time of all."""
    found, _ = grown(RISING, *[Answer(0.6, 0.6) for _ in range(n)])
    assert sum(found) == {1: 1, 2: 0, 4: 0}[n]


def test_no_choice_gains_more():
    """All numbers of tokens of both streams are tried."""
    for seconds, probs in itertools.product(
        (STEPPED, RISING), itertools.product((0.3, 0.6, 0.95), repeat=4)
    ):
        chains = probs[:2], probs[2:]
        found, plain_s = grown(seconds, *[Answer(*chain) for chain in chains])

        def gain(counts, seconds=seconds, chains=chains, plain_s=plain_s):
            tokens = 2.0
            for n, chain in zip(counts, chains, strict=True):
                tokens += sum(itertools.accumulate(chain[:n], lambda a, b: a * b))
            return tokens - 2 / plain_s * seconds[2 + sum(counts) - 1]

        best = max(gain(counts) for counts in itertools.product(range(3), repeat=2))
        assert gain(found) >= best - 0.03 - 1e-9


class Drawn:
    """A finished growth of which some tokens were drawn from a model."""

    def __init__(self, *probs, n_staying):
        self.n_staying = n_staying
        self.nodes = [SimpleNamespace(prob=prob, depth=i) for i, prob in enumerate(probs, 1)]
        self.cut(len(probs))

    def next(self):
        return None

    def cut(self, n):
        self.draft = Draft((7,) * n)


@pytest.mark.parametrize(("n_staying", "n_left"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_drawn_tokens_stay_however_unlikely(n_staying, n_left):
    stream = Answer()
    stream.start = lambda limits: Drawn(0.9, 0.1, 0.05, n_staying=n_staying)
    found, _ = grown(RISING, stream, Answer(0.9))
    assert found[0] == n_left


def test_a_draft_that_did_not_fit_is_kept():
    late, other = Answer(0.9, 0.9), Answer(0.9)
    late.growth = kept = Drawn(0.1, 0.1, n_staying=2)
    found, plain_s = grown(STEPPED, late, other)
    assert (late.growth, found) == (kept, [2, 0])  # there is no room left among four rows
    assert plain_s == pytest.approx(1.05)


def test_others_losses_end_drafts():
    found, _ = grown(STEPPED, *[Answer(0.9, 0.9, 0.9) for _ in range(3)], Answer(loss=0.1))
    assert found == [0, 0, 0, 0]
    found, _ = grown(STEPPED, *[Answer(0.9, 0.9, 0.9) for _ in range(3)], Answer(loss=9.0))
    assert sum(found) > 3


def test_rows_and_reading_of_others_count():
    beside, plain_s = grown(STEPPED, Answer(0.6, 0.6), n_rows=3)
    assert (beside, plain_s) == ([0], pytest.approx(1.15))
    for prob, n in ((0.4, 0), (0.6, 0), (0.9, 1)):  # 0.5 s more, at two tokens in 1.5 s
        reading, plain_s = grown(RISING, Answer(prob), n_readers=1, reading_s=10.0)
        assert (reading, plain_s) == ([n], pytest.approx(11.0))  # the reader waits, too


def test_streams_are_told_the_time_of_a_plain_step():
    streams = Answer(0.9), Answer(rate=0), Answer(0.9, limit=0)
    found, plain_s = grown(STEPPED, *streams)
    assert found == [1, 0, 0]
    assert streams[0].seen.plain_s == plain_s == pytest.approx(1.1)
    assert streams[2].seen is None


class Failing(Answer):
    """A stream whose drafts cannot be made."""

    def start(self, limits):
        raise DecodeError("the draft model fails")


def test_a_draft_that_fails_ends_its_own_stream_alone():
    streams = Answer(0.9), Failing(0.9), Answer(0.8)
    found, _ = grown(STEPPED, *streams)
    assert found == [1, 0, 0]
    assert [bool(stream.error) for stream in streams] == [False, True, False]
