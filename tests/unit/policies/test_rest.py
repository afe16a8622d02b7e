"""The rest of a head that is not worth its hidden states: when it begins, and what it ends."""

import itertools

import numpy as np
import pytest

from edgespec import SamplingParams, ToyModel, ToyTokenizer
from edgespec.backends.features import Features
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.base import Role
from edgespec.policies.adaptive import Adaptive
from edgespec.policies.base import Limits
from edgespec.policies.growth import Growth
from edgespec.policies.rest import Rest
from edgespec.sampling.base import Request
from edgespec.types import Budget, Requires, Stats, StepStats, Work
from edgespec.verifiers.local import LocalVerifier
from tests.helpers.policies import OWN, Head, begin, emitted, line, lookup

N = OWN + 100  # tokens: those that a fake head guesses among them
STATES, NONE = Requires((1, 3)), Requires()


def acting(made, speed=1.0):
    """Begin an answer, and return whether the head acts in it."""
    made.can_act = not made.begin(speed)
    return made.can_act


@pytest.mark.parametrize(("won", "rests"), [(-0.09, False), (-0.11, True)])
def test_what_lost_a_token_in_an_answer_rests_in_the_next_eight(won, rests):
    made = Rest()
    assert acting(made)
    for _ in range(10):
        assert not made.count(won, drafted=True, speed=1.0)
    assert [acting(made) for _ in range(9)] == [not rests] * 8 + [True]


def test_losses_of_several_answers_are_no_reason():
    made = Rest()
    for _ in range(20):
        assert acting(made)
        made.count(-0.9, drafted=True, speed=1.0)


@pytest.mark.parametrize(("lost", "rests"), [(-3.0, False), (-6.0, True)])
def test_a_loss_that_earlier_answers_made_up_for_is_no_reason(lost, rests):
    made = Rest()
    assert acting(made)
    made.count(5.0, drafted=True, speed=1.0)
    assert acting(made)
    made.count(lost, drafted=True, speed=1.0)
    assert acting(made) is not rests


def test_what_is_not_used_rests_at_once():
    made = Rest()
    assert acting(made)
    assert [made.count(-0.01, drafted=False, speed=1.0) for _ in range(32)] == [False] * 31 + [True]
    made.can_act = False
    assert not made.count(-9, drafted=False, speed=1.0)  # which is not its fault
    assert [acting(made) for _ in range(9)] == [False] * 7 + [True] * 2


@pytest.mark.parametrize(("won", "pauses"), [
    ((-1.1,) * 5, [8, 16, 32, 32, 32]),
    ((-1.1, -1.1, 9.0, -30.0), [8, 16, 0, 8]),  # it has won meanwhile
])  # fmt: skip
def test_a_head_that_wins_nothing_is_paused_for_twice_as_long_each_time(won, pauses):
    made, seen = Rest(), []
    assert acting(made)
    for each in won:
        made.count(each, drafted=True, speed=1.0)
        seen.append(0)
        while not acting(made):
            seen[-1] += 1
    assert seen == pauses


@pytest.mark.parametrize(("won", "n_resting"), [(5.0, 0), (-0.5, 7)])
def test_what_has_won_before_rests_for_the_rest_of_an_answer_alone(won, n_resting):
    made = Rest()
    assert acting(made)
    made.count(won, drafted=True, speed=1.0)
    assert acting(made)
    assert [made.count(-0.01, drafted=False, speed=1.0) for _ in range(32)].index(True) == 31
    assert [acting(made) for _ in range(8)] == [False] * n_resting + [True] * (8 - n_resting)


@pytest.mark.parametrize(("later", "rests"), [(1.7, True), (1.5, False)])
def test_a_pause_ends_where_others_have_become_slower(later, rests):
    """They were twice as fast as plain decoding when it began, for example with a file to edit."""
    made = Rest()
    assert acting(made)
    made.count(-1.1, drafted=True, speed=2.0)
    assert not acting(made, 2.0)
    assert acting(made, later) is not rests


def test_what_is_not_used_in_several_short_answers_is_paused_as_well():
    made, seen = Rest(), []
    for _ in range(4):
        assert acting(made)
        seen += [made.count(-0.01, drafted=False, speed=1.0) for _ in range(10) if not any(seen)]
    assert seen.index(True) == 31
    assert [acting(made) for _ in range(8)] == [False] * 7 + [True]


def test_what_is_used_once_stays():
    made = Rest()
    assert acting(made)
    assert not any(made.count(-0.001, drafted=i == 31, speed=1.0) for i in range(31 + 100))


def with_head(tapping=0.04, resting=False, unit=1.0, draft=0.1):
    """Return a policy with a head whose hidden states take the target so long a step."""
    curves = line(unit, 0.0), line(unit * draft, 0.0)
    made = Adaptive(Costs(Profile(*curves, overhead=0.0, tapping=unit * tapping)))
    if resting:
        made._rest._answers = 8
    begin(made, lookup(), Head())
    take(made)
    return made


def take(made, n_accepted=None, total_s=1.0, free_gain=0.0):
    """Let the policy see a step, a plain one if nothing is said of a draft."""
    n = 0 if n_accepted is None else 4
    evaluated = (Work(1, 100),) * n
    n_emitted = 1 + (n_accepted or 0)
    step = StepStats(
        "head", n, n_accepted or 0, n_emitted, n + 1, 100 + n_emitted, 0.1 * n, 1.0, total_s,
        evaluated,
    )  # fmt: skip
    growth = Growth((), (), Limits(), Budget(0, 0, 100))
    growth.free_gain = free_gain
    made.observe(step, emitted(*range(n_emitted)), growth)


@pytest.mark.parametrize("resting", [True, False])
def test_what_hidden_states_cost_is_lost_at_every_step(resting):
    made = with_head(resting=resting)
    before = made.accounts.loss_budget, made._rest._won
    for _ in range(10):
        take(made)
    lost = before[0] + 10 * 0.01 - made.accounts.loss_budget
    assert lost == pytest.approx(0.0 if resting else 0.4)
    won = made._rest._won - before[1]
    assert won == pytest.approx(0.0 if resting else -0.402)  # Python's time counts, too


@pytest.mark.parametrize("resting", [True, False])
def test_plain_decoding_is_without_hidden_states(resting):
    made = with_head(resting=resting)
    for _ in range(8):
        take(made)
    assert made.plain_s(100) == pytest.approx(1.0 if resting else 0.96)


@pytest.mark.parametrize(("n_accepted", "free_gain", "won"), [
    (0, 0.0, -0.44), (1, 0.0, 0.56), (4, 0.0, 3.56), (4, 3.0, 0.56),
])  # fmt: skip
def test_what_a_head_has_won_over_the_free_guesses(n_accepted, free_gain, won):
    """Its time has the price that all drafting makes, and 0.2 ms of Python's time count, too."""
    made = with_head()
    before = made._rest._won
    take(made, n_accepted, 1.4, free_gain)
    won -= 0.4 * (made._price - 1) + 2e-4
    assert made._rest._won - before == pytest.approx(won)


def test_a_head_has_no_part_in_an_answer_that_begins_without_it():
    made = with_head()
    assert made.roles[1]
    for _ in range(4):
        take(made, 0, total_s=1.4)
    assert made.roles[1], "drafts that lost are no reason to leave an answer"
    for answer in range(9):
        begin(made, lookup(), Head())
        assert made.roles[0] is Role.MATCHED
        assert made.roles[1] is (Role.OFF if answer < 8 else Role.MATCHED)
        take(made)


def test_answers_without_drafts_do_not_shorten_the_rest():
    made = with_head()
    for _ in range(4):
        take(made, 0, total_s=1.4)
    for answer in range(9):
        begin(made)  # a request that turned drafts off
        take(made)
        begin(made, lookup(), Head())
        assert made.roles[1] is (Role.OFF if answer < 8 else Role.MATCHED)
        take(made)


def test_a_head_that_is_left_costs_nothing_any_more():
    made = with_head()
    while made.roles[1]:
        take(made)
    before = made.accounts.loss_budget
    take(made)
    assert made.accounts.loss_budget == pytest.approx(before + 0.01)


def test_lookups_alone_never_rest():
    made = Adaptive(Costs(Profile(line(1.0, 0.0), line(0.1, 0.0), 0.0, tapping=0.04)))
    begin(made, lookup())
    roles = made.roles
    for _ in range(100):
        take(made)
    assert made.roles is roles
    assert made.plain_s(100) == pytest.approx(1.0)  # nobody wants hidden states


def test_what_a_head_forgets_is_forgotten_by_the_policy_too():
    made = with_head()
    for _ in range(4):
        take(made, 0, total_s=1.4)
    made.relearn({})
    begin(made, lookup(), Head())
    assert made.roles[1]


class Watched(LocalVerifier):
    """Notes what else is required, after how many steps of an answer."""

    def __init__(self, *arguments, **options):
        self.required, self.n_steps = [], 0
        super().__init__(*arguments, **options)

    def begin(self, request):
        self.n_steps = 0
        return super().begin(request)

    def require(self, requires):
        if not self.required or self.required[-1][1] != requires:
            self.required.append((self.n_steps, requires))
        super().require(requires)

    def verify(self, draft):
        self.n_steps += 1
        return super().verify(draft)


class Told(Head):
    """A head that counts how often it is told what was emitted."""

    n_told = 0

    def accept(self, verified):
        self.n_told += 1


def answers(head, n_answers, evaluation_s, n=60):
    """Return what is required during answers of n tokens, with the number of steps before it, how
    often the head is told what was emitted, and the layers whose states are given in the end.
    """
    ticks = itertools.count()
    clock = lambda: 1e-3 * next(ticks)  # noqa: E731
    target = ToyModel(lambda tokens: np.full(N, 1 / N), vocab_size=N, n_ctx=400)
    verifier = Watched(target, clock=clock, states=Features())
    profile = Profile(line(1e-3, 0.0), line(evaluation_s, 0.0), 0.0, tapping=4e-5)
    session = Session(verifier, [lookup(), head], Adaptive(Costs(profile)), clock=clock)
    params, seen = SamplingParams(max_tokens=n, ignore_eos=True), []
    for _ in range(n_answers):
        verifier.required, head.n_told = [], 0
        request = Request([1, 2, 3], params, None)
        list(session.generate(request, Output(ToyTokenizer(["a"] * N), params), Stats()))
        seen.append((verifier.required, head.n_told, target._layers))
    return seen


def test_a_head_that_is_not_used_is_left_in_that_very_answer():
    head = Told(0.05)
    seen = answers(head, 9, evaluation_s=9e-4)  # dearer than 32 tokens may lose by a trial
    assert head.expanded == []
    assert seen[0] == ([(0, STATES), (33, NONE)], 33, ())  # a step that ends a prompt is not one
    assert seen[1:8] == [([(60, NONE)], 0, ())] * 7
    assert seen[8] == ([(60, STATES), (32, NONE)], 32, ())


def test_a_head_that_drafts_stays():
    head = Told(0.9)
    [(required, n_told, layers)] = answers(head, 1, evaluation_s=1e-4)
    assert head.expanded
    assert required == [(0, STATES)]
    assert n_told > 40
    assert layers == (1, 3)
