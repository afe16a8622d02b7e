"""The promises of policies, run against each of them with hand-made estimates: no clock."""

import math
import random

import pytest

from edgespec.bench.replay import FirstSource
from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.policies.adaptive import Adaptive
from edgespec.policies.fixed import FixedDepth
from edgespec.types import NO_THRESHOLDS, Budget, StepStats
from tests.helpers.policies import Model, asks, begin, lookup

LIMIT = 31
TARGET = Curve((0, 1000), (1, 33), ((1.0, 1.3), (1.1, 1.5)))
DRAFT = Curve((0,), (1, 128), ((0.1, 0.5),))


def costs(draft=DRAFT, **options):
    return Costs(Profile(TARGET, draft), **options)


MAKERS = {
    "fixed": lambda: FixedDepth(4),
    "fixed, deeper than any draft": lambda: FixedDepth(LIMIT),
    "fixed, two at least": lambda: FixedDepth(4, 2),
    "fixed, none": lambda: FixedDepth(0),
    "first source": lambda: FirstSource(4),
    "adaptive": lambda: Adaptive(costs()),
    "adaptive without a draft model": lambda: Adaptive(costs(None)),
    "adaptive, shallow": lambda: Adaptive(costs(max_depth=2)),
    "adaptive, slow draft model": lambda: Adaptive(costs(Curve((0,), (1,), ((3.0,),)))),
}


@pytest.fixture(params=MAKERS)
def policy(request):
    return MAKERS[request.param]()


def sources(policy, *estimates):
    """Return what a session hands to the policy, priced by the policy's own costs."""
    return asks(getattr(policy, "costs", None) or costs(), estimates)


def a_step(n_drafted=0, n_accepted=0, **changes):
    """Return a step of the target's own seconds; changes: other fields."""
    seconds = TARGET(n_drafted + 1)
    counts = (n_drafted, n_accepted, n_accepted + 1, n_drafted + 1)
    return StepStats("x", *counts, 100, 0.0, seconds, seconds)._replace(**changes)


def warmed_up(policy, n=3):
    """Begin a request and let the policy see plain steps."""
    begin(policy)
    for _ in range(n):
        policy.observe(a_step())
    return policy


def check(policy, plan, budget, estimates):
    """Check a plan for sources with these estimates."""
    assert 0 <= plan.depth <= max(0, budget.limit)
    assert math.isfinite(plan.gain)
    if not plan.depth:
        assert isinstance(policy.reason, str)
        assert policy.reason
        return
    assert plan.source in range(len(estimates))
    chosen = estimates[plan.source]
    if not isinstance(chosen, Model) and len(estimates) > 1:
        assert plan.depth <= len(chosen.acceptance_probs)
    for thresholds in (plan.thresholds.keep, plan.thresholds.extend):
        assert all(x >= 0 for x in thresholds)


def test_beginning_twice(policy):
    begin(policy)
    begin(policy)
    estimates = lookup(0.9, 0.8), Model()
    budget = Budget(LIMIT, 100)
    check(policy, policy.choose(sources(policy, *estimates), budget), budget, estimates)


def test_without_sources_it_decodes_plainly(policy):
    for _ in range(2):
        warmed_up(policy)
        assert policy.choose([], Budget(LIMIT, 100)).depth == 0
        assert policy.reason


def test_with_nothing_to_draft_it_decodes_plainly(policy):
    warmed_up(policy)
    for _ in range(20):
        assert policy.choose(sources(policy, lookup(), lookup()), Budget(LIMIT, 100)).depth == 0
        assert policy.reason
        policy.observe(a_step())


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_no_plan_is_deeper_than_the_limit(policy, limit):
    warmed_up(policy)
    estimates = lookup(*[0.99] * 8), Model(0.99, 0.99), Model(known=(0.9, 0.9))
    for n_emitted in range(1, 70):
        budget = Budget(limit, 100, n_emitted, limit + 1)
        plan = policy.choose(sources(policy, *estimates), budget)
        check(policy, plan, budget, estimates)
        policy.observe(a_step(plan.depth, plan.depth))


def test_known_tokens_end_where_they_are_unknown(policy):
    warmed_up(policy)
    for n in (1, 2, 3, 5):
        estimates = lookup(*[0.99] * n), lookup()
        budget = Budget(LIMIT, 100, 50)
        check(policy, policy.choose(sources(policy, *estimates), budget), budget, estimates)


def test_a_source_is_asked_at_most_once_a_step(policy):
    warmed_up(policy)
    asked = []

    def counting(i, ask):
        return lambda: asked.append(i) or ask()

    for _ in range(60):
        asked.clear()
        made = sources(policy, lookup(0.99, 0.98), Model(), lookup())
        plan = policy.choose([counting(i, a) for i, a in enumerate(made)], Budget(LIMIT, 100, 50))
        assert len(asked) == len(set(asked))
        policy.observe(a_step(plan.depth, plan.depth))


@pytest.mark.parametrize("step", [
    a_step(), a_step(4), a_step(4, 2), a_step(4, 4), a_step(31, 31),
    a_step(n_evaluated=500), a_step(4, n_evaluated=505), a_step(n_emitted=0),
    a_step(4, 2, draft_s=0.4, draft_evaluated=(1, 1, 1, 1)),
    a_step(draft_s=0.1, draft_evaluated=(1,)), a_step(2, draft_s=9.0, draft_evaluated=(128, 1)),
    a_step(total_s=0.0, verify_s=0.0),
], ids=range(12))  # fmt: skip
def test_any_step_can_be_observed(policy, step):
    warmed_up(policy)
    estimates = lookup(0.9), Model()
    budget = Budget(LIMIT, 100, 50)
    for _ in range(3):
        policy.observe(step)
        check(policy, policy.choose(sources(policy, *estimates), budget), budget, estimates)


def test_plain_seconds_are_unknown_or_positive(policy):
    for _ in range(2):
        for n_past in (0, 1, 100, 5000):
            seconds = policy.plain_s(n_past)
            assert seconds is None or 0 < seconds < math.inf
        warmed_up(policy)


def test_a_request_after_an_aborted_one(policy):
    estimates = lookup(*[0.95] * 8), Model()
    for n in (0, 1, 2, 5):
        warmed_up(policy, n)
        for _ in range(4):
            budget = Budget(LIMIT, 100, 50)
            plan = policy.choose(sources(policy, *estimates), budget)
            check(policy, plan, budget, estimates)
            policy.observe(a_step(plan.depth, plan.depth // 2))
        policy.choose(sources(policy, *estimates), budget)  # whose step is never observed


@pytest.mark.parametrize("seed", range(4))
def test_whole_conversations(policy, seed):
    chance = random.Random(seed)
    for _ in range(4):
        begin(policy)
        n_emitted, n_tokens = 0, chance.choice([1, 20, 200])
        policy.observe(a_step(n_evaluated=300))
        while n_emitted < n_tokens:
            shares = [chance.random() for _ in range(chance.randrange(9))]
            probs = [math.prod(shares[: i + 1]) for i in range(len(shares))]
            estimates = (
                lookup(*probs, streak=chance.randrange(9)),
                Model(chance.random(), chance.random(), chance.choice([1, 3, 90]), known=probs),
                Model(chance.random(), chance.random()),
            )
            budget = Budget(chance.choice([0, 1, 8, LIMIT]), 100, n_emitted, n_tokens - n_emitted)
            plan = policy.choose(sources(policy, *estimates), budget)
            check(policy, plan, budget, estimates)
            n_accepted = chance.randint(0, plan.depth)
            evaluated = (1,) * plan.depth if plan.source else ()
            slow = chance.choice([1.0, 1.0, 5.0])
            seconds = slow * TARGET(plan.depth + 1)
            policy.observe(a_step(
                plan.depth, n_accepted, verify_s=seconds, total_s=seconds + 0.1 * len(evaluated),
                draft_s=0.1 * len(evaluated), draft_evaluated=evaluated,
            ))  # fmt: skip
            n_emitted += n_accepted + 1


def test_plans_of_no_depth_have_no_thresholds(policy):
    warmed_up(policy)
    plan = policy.choose(sources(policy, lookup(), lookup()), Budget(LIMIT, 100))
    assert plan.thresholds == NO_THRESHOLDS
