"""The promises of policies, run against each of them with hand-made guesses: no clock."""

import math
import random
from functools import partial

import pytest

from edgespec import SpeculativeConfig, policies
from edgespec.bench.replay import FirstSource
from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.policies.adaptive import Adaptive
from edgespec.policies.base import PolicyContext
from edgespec.policies.fixed import FixedDepth
from edgespec.types import StepStats, Work
from tests.helpers.policies import OWN, Head, Lookup, Model, begin, emitted, grow, lookup

LIMIT = 31
TARGET = Curve((0, 1000), (1, 33), ((1.0, 1.3), (1.1, 1.5)))
DRAFT = Curve((0,), (1, 128), ((0.1, 0.5),))


def costs(draft=DRAFT, **options):
    return Costs(Profile(TARGET, draft), **options)


MAKERS = {
    "fixed": lambda: FixedDepth(4),
    "fixed, a tree": lambda: FixedDepth(6, max_leaves=8),
    "fixed, deeper than any draft": lambda: FixedDepth(LIMIT),
    "fixed, two at least": lambda: FixedDepth(4, 2),
    "fixed, none": lambda: FixedDepth(0),
    "first source": lambda: FirstSource(4),
    "adaptive": lambda: Adaptive(costs()),
    "adaptive without a draft model": lambda: Adaptive(costs(None)),
    "adaptive, shallow": lambda: Adaptive(costs(max_depth=2)),
    "adaptive, slow draft model": lambda: Adaptive(costs(Curve((0,), (1,), ((3.0,),)))),
    "adaptive, nothing measured": lambda: Adaptive(Costs(None)),
}


def registered(name):
    """Return the policy that a configuration gets by this name."""
    return policies.make(PolicyContext(SpeculativeConfig(policy=name), costs, 8))


MAKERS |= {f"registered as {name}": partial(registered, name) for name in policies.names()}


@pytest.fixture(params=MAKERS)
def policy(request):
    return MAKERS[request.param]()


def a_step(n_drafted=0, n_accepted=0, **changes):
    """Return a step of the target's own seconds; changes: other fields."""
    seconds = TARGET(n_drafted + 1)
    counts = (n_drafted, n_accepted, n_accepted + 1, n_drafted + 1)
    return StepStats("x", *counts, 100, 0.0, seconds, seconds)._replace(**changes)


def observe(policy, step, growth=None):
    policy.observe(step, emitted(*range(step.n_emitted)), growth)


def warmed_up(policy, *drafters, n=3):
    """Begin a request and let the policy see plain steps."""
    begin(policy, *drafters)
    for _ in range(n):
        observe(policy, a_step())
    return policy


def step(policy, *drafters, share=0.0, slow=1.0, **budget):
    """Let a draft grow, check it, and let the policy see that a share of it is accepted."""
    growth = grow(policy, *drafters, **budget)
    draft = growth.draft if growth else None
    n = check(draft, drafters, **budget) if draft else 0
    evaluated = draft.evaluated if draft else ()
    seconds, draft_s = slow * TARGET(n + 1), 0.1 * len(evaluated)
    observe(policy, a_step(
        n, round(share * n), verify_s=seconds, total_s=seconds + draft_s, draft_s=draft_s,
        draft_evaluated=evaluated,
    ), growth)  # fmt: skip
    if not n and not evaluated:
        assert isinstance(policy.reason, str)
        assert policy.reason
    return n


def check(draft, drafters, limit=LIMIT, max_leaves=8, **budget):
    """Check a draft of these drafters, and return its length."""
    n = len(draft.tokens)
    assert n <= max(0, limit)
    assert len(draft.parents) in (0, n)
    assert all(-1 <= parent < i for i, parent in enumerate(draft.parents))
    leaves = set(range(n)) - set(draft.parents) if draft.parents else {n - 1}
    assert len(leaves) <= max_leaves
    assert math.isfinite(draft.expected)
    assert 0 <= draft.expected <= n + 1e-9
    assert draft.probs is None or len(draft.probs) == n
    assert all(work.n_tokens > 0 for work in draft.evaluated)
    names = {drafter.name for drafter in drafters}
    assert set(draft.source.split("+")) <= (names if n else {"none"})
    parents = draft.parents or range(-1, n - 1)
    assert len(set(zip(parents, draft.tokens, strict=True))) == n, "equal siblings"
    return n


def test_beginning_twice(policy):
    drafters = lookup(0.9, 0.8), Model()
    begin(policy, *drafters)
    begin(policy, *drafters)
    step(policy, *drafters)


def test_every_drafter_has_a_role(policy):
    for drafters in ((), (lookup(),), (lookup(), Lookup({}, wide=True), Model(), Head())):
        warmed_up(policy, *drafters)
        assert len(policy.roles) == len(drafters)


def test_without_drafters_it_decodes_plainly(policy):
    for _ in range(2):
        warmed_up(policy)
        assert step(policy) == 0


def test_with_nothing_to_draft_it_decodes_plainly(policy):
    drafters = lookup(), lookup()
    warmed_up(policy, *drafters)
    for _ in range(20):
        assert step(policy, *drafters) == 0


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_no_draft_is_longer_than_the_limit(policy, limit):
    drafters = lookup(*[0.99] * 8), Model(0.99, 0.99), lookup(0.9, 0.9, first=50)
    warmed_up(policy, *drafters)
    for n_emitted in range(1, 70):
        budget = {"limit": limit, "n_emitted": n_emitted, "remaining": limit + 1}
        step(policy, *drafters, share=1.0, **budget)


@pytest.mark.parametrize("max_leaves", [1, 2, 5])
def test_no_draft_has_more_leaves_than_the_target_evaluates(policy, max_leaves):
    tree = Lookup({(): [(i, 0.2) for i in range(5)], (0,): [(i, 0.5) for i in range(2)]})
    drafters = tree, Model(0.7, 0.7, n_choices=4, max_leaves=max_leaves)
    warmed_up(policy, *drafters)
    for n_emitted in range(50, 60):
        step(policy, *drafters, share=0.5, n_emitted=n_emitted, max_leaves=max_leaves)


def test_what_nobody_guesses_is_not_drafted(policy):
    for n in (1, 2, 3, 5):
        drafters = lookup(*[0.99] * n), lookup()
        warmed_up(policy, *drafters)
        growth = grow(policy, *drafters)
        if growth:
            assert growth.draft.tokens == tuple(range(len(growth.draft.tokens)))
            assert len(growth.draft.tokens) <= n


def test_a_text_is_evaluated_at_most_once_a_step(policy):
    drafters = lookup(0.99, 0.98), Model(), lookup()
    warmed_up(policy, *drafters)
    for _ in range(60):
        drafters[1].expanded.clear()
        step(policy, *drafters, share=1.0)
        assert len(drafters[1].expanded) == len(set(drafters[1].expanded))


def test_what_was_evaluated_before_takes_no_time(policy):
    """As a model has it that went on while a draft was under way."""
    drafters = [Model(0.9, 0.9, known=((), (OWN,), (OWN, OWN + 10)))]
    warmed_up(policy, *drafters)
    growth = grow(policy, *drafters, limit=3)
    if growth and growth.draft.tokens:
        assert growth.draft.evaluated == ()
        assert growth.draft.tokens == (OWN, OWN + 10, OWN + 20)[: len(growth.draft.tokens)]


@pytest.mark.parametrize("observed", [
    a_step(), a_step(4), a_step(4, 2), a_step(4, 4), a_step(31, 31),
    a_step(n_evaluated=500), a_step(4, n_evaluated=505), a_step(n_emitted=0),
    a_step(4, 2, draft_s=0.4, draft_evaluated=(Work(1, 100),) * 4),
    a_step(draft_s=0.1, draft_evaluated=(Work(1, 100),)),
    a_step(2, draft_s=9.0, draft_evaluated=(Work(128, 0), Work(1, 128))),
    a_step(total_s=0.0, verify_s=0.0),
], ids=range(12))  # fmt: skip
def test_any_step_can_be_observed(policy, observed):
    drafters = lookup(0.9), Model()
    warmed_up(policy, *drafters)
    for _ in range(3):
        observe(policy, observed)
        step(policy, *drafters)


def test_plain_seconds_are_unknown_or_positive(policy):
    for _ in range(2):
        for n_past in (0, 1, 100, 5000):
            seconds = policy.plain_s(n_past)
            assert seconds is None or 0 < seconds < math.inf
        warmed_up(policy, Head())


def test_a_request_after_an_aborted_one(policy):
    drafters = lookup(*[0.95] * 8), Model()
    for n in (0, 1, 2, 5):
        warmed_up(policy, *drafters, n=n)
        for _ in range(4):
            step(policy, *drafters, share=0.5)
        grow(policy, *drafters)  # whose step is never observed


@pytest.mark.parametrize("seed", range(4))
def test_whole_conversations(policy, seed):
    chance = random.Random(seed)
    for _ in range(4):
        begin(policy, lookup(), lookup(), Model())
        n_emitted, n_tokens = 0, chance.choice([1, 20, 200])
        observe(policy, a_step(n_evaluated=300))
        while n_emitted < n_tokens:
            shares = [chance.random() for _ in range(chance.randrange(9))]
            probs = [math.prod(shares[: i + 1]) for i in range(len(shares))]
            drafters = (
                lookup(*probs),
                lookup(*probs[:3], first=20),
                Model(
                    chance.random(), chance.random(), chance.choice([1, 3, 90]),
                    known=chance.choice([(), ((),)]), draws=chance.random() < 0.3,
                    n_choices=chance.choice([1, 4]), together=chance.choice([1, 3]), max_leaves=8,
                ),
            )  # fmt: skip
            n = step(
                policy, *drafters, share=chance.random(), slow=chance.choice([1.0, 1.0, 5.0]),
                limit=chance.choice([0, 1, 8, LIMIT]), n_emitted=n_emitted,
                remaining=n_tokens - n_emitted, max_leaves=chance.choice([1, 8]),
            )  # fmt: skip
            n_emitted += n // 2 + 1
