"""The lessons of the controller from its steps, and the budgets it keeps: no clock."""

from functools import partial

import msgspec
import pytest

from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.policies.accounts import (
    EXPLORE,
    LEAST_LOSS_BUDGET,
    LOSS_BUDGET,
    MOST_REFUND,
    Accounts,
)
from edgespec.policies.adaptive import RISK, Adaptive
from edgespec.types import StepStats, Work
from tests.helpers.policies import Lookup, Model, begin, depth, emitted, grow, line, lookup

WRONG = 99  # a token that nothing guesses


def policy(slope=0.01, draft=None):
    """After its first step, which is plain and took one second."""
    made = Adaptive(Costs(Profile(line(1.0, slope), draft and line(draft, 0.0), 0.0)))
    observe(made, a_step())
    return made


def observe(made, step, growth=None, tokens=()):
    """Let the policy see a step; nothing that was drafted before is emitted if not said."""
    made.observe(step, emitted(*(tokens or (WRONG,) * step.n_emitted)), growth)


def a_step(n_drafted=0, n_accepted=0, slope=0.01, slow=1.0, **changes):
    seconds = slow * (1 + slope * n_drafted)
    counts = (n_drafted, n_accepted, n_accepted + 1, n_drafted + 1)
    return StepStats("x", *counts, 100, 0.0, seconds, seconds)._replace(**changes)


@pytest.mark.parametrize("unit", [1.0, 0.1])
def test_an_answer_does_not_lose_more_than_its_loss_budget(unit):
    made, risky = Adaptive(Costs(Profile(line(unit, 0.2 * unit), None, 0.0))), lookup(*[0.3] * 8)
    step = partial(a_step, slope=0.2, slow=unit)
    for _ in range(4):  # plain decoding is measured before anything else
        observe(made, step())
    assert depth(made, risky, n_emitted=0) == 8
    observe(made, step(8))
    observe(made, step(8))  # loses 3.2 of 3.5
    assert depth(made, risky, n_emitted=1) == 2  # 0.7 * RISK * 0.2 * 2 is at stake
    observe(made, step(8))
    assert depth(made, risky, n_emitted=2) == 0
    observe(made, step(8, 8))  # gains 6.4
    observe(made, step(8, slow=1.5 * unit))
    assert depth(made, risky, n_emitted=12) > 0
    for _ in range(6):
        observe(made, step(8))
    assert depth(made, risky, n_emitted=18) == 0
    observe(made, step(31, 31))
    observe(made, step(slow=4 * unit))  # a plain step loses nothing
    assert depth(made, risky, n_emitted=60) == 8


def test_the_loss_budget_outlives_an_answer():
    made, risky = policy(0.2), lookup(*[0.3] * 8)
    for _ in range(4):
        observe(made, a_step())
    for _ in range(2):
        observe(made, a_step(8, slope=0.2))  # loses 1.6
    assert depth(made, risky, n_emitted=8) == 2
    observe(made, a_step(8, slope=0.2))
    assert depth(made, risky, n_emitted=9) == 0
    begin(made, lookup())
    assert depth(made, risky, n_emitted=0) == 8  # another answer
    observe(made, a_step(8, slope=0.2))
    assert depth(made, risky, n_emitted=1) == 0  # it began with less
    observe(made, a_step(31, 31, slope=0.2))  # gains 24.8
    assert depth(made, risky, n_emitted=33) == 8
    begin(made, lookup())
    grow(made, n_emitted=0)
    for _ in range(2):
        observe(made, a_step(8, slope=0.2))
    assert depth(made, risky, n_emitted=1) == 2  # that was for another answer


def used_up(slope=0.2, draft=None):
    """Return a policy whose answer has lost what it may, after 48 tokens."""
    made = policy(slope, draft)
    for _ in range(3):
        observe(made, a_step())
    assert depth(made, RISKY, n_emitted=48) == 8
    for _ in range(3):
        observe(made, a_step(8, slope=slope))  # loses 1.6 of 3.5
    observe(made, a_step())
    return made


RISKY = lookup(*[0.3] * 8)  # the tokens from 0 to 7, each of which would cost 0.2 of a step
COST = RISK * 0.2 * 8


def go_on(made, *tokens, n_emitted=50, drafter=RISKY):
    """Return how much is drafted at each step, one of which emits each of these tokens."""
    depths = []
    for i, token in enumerate(tokens):
        growth = grow(made, drafter, n_emitted=n_emitted + i)
        observe(made, a_step(), growth, (token,))
        depths.append(len(growth.draft.tokens))
    return depths


def test_what_a_forbidden_draft_would_have_won_is_refunded():
    assert go_on(used_up(), *range(8)) == [0] * 8
    assert go_on(used_up(), *range(8), 0) == [0] * 8 + [8]  # all eight were right
    for n_right in (0, 1, 2, 3, 6):
        made = used_up()
        before = made.accounts.loss_budget + EXPLORE * n_right
        assert go_on(made, *range(n_right)) == [0] * n_right
        assert made.accounts.loss_budget == pytest.approx(before)
        assert go_on(made, WRONG) == [0]
        won = n_right - COST  # two have to be right
        refunded = min(max(won, 0), LEAST_LOSS_BUDGET - before)
        assert made.accounts.loss_budget == pytest.approx(before + refunded + EXPLORE)
        if n_right < 3:
            go_on(made, *range(8))  # the next one is looked at
            assert made.accounts.refunded > refunded + 1


def test_what_is_wrong_is_seen_in_steps_of_several_tokens_too():
    def steps(*emissions):
        """Return what is refunded after steps that emit several tokens."""
        made = used_up()
        for tokens in emissions:
            observe(made, a_step(), grow(made, RISKY), tokens)
        return made.accounts.refunded

    whole = steps(range(12))  # all of it, and more
    assert whole == pytest.approx(LEAST_LOSS_BUDGET - used_up().accounts.loss_budget)
    for emission in ((WRONG, 0, 1, 2, 3, 4), (1, 2, 3, 4, 5, 6, 7), (0, WRONG, *range(1, 8))):
        assert steps(emission) == 0
    assert steps(range(4), (WRONG,)) == pytest.approx(4 - COST)
    assert steps(range(4), (3, 4, 5)) == pytest.approx(4 - COST)
    assert steps(range(2), (2, 3, WRONG)) == pytest.approx(4 - COST)
    assert steps(range(4), (4, 5, 6)) == 0  # it may go on


def test_what_goes_on_along_any_path_of_a_forbidden_tree_is_refunded():
    tree = Lookup({(): [(0, 0.4), (1, 0.35)], (0,): [(2, 0.9)], (1,): [(3, 0.9)]})
    for tokens, n_right in (((1, 3), 2), ((0, 2), 2), ((1, 2), 1), ((1, WRONG), 1), ((2,), 0)):
        made = used_up()
        assert go_on(made, *tokens, drafter=tree) == [0] * len(tokens)
        assert made.accounts.refunded == pytest.approx(max(0, n_right - RISK * 0.2 * 4))
        assert made._forbidden is None


def test_a_refund_is_not_handed_on():
    made = used_up()
    go_on(made, *range(8), 0, 1)
    assert made.accounts.refunded > 2
    observe(made, a_step(2, 2, slope=0.2))  # gains 1.6
    assert made.accounts.loss_budget > LEAST_LOSS_BUDGET
    grow(made, n_emitted=100)  # as long as answers are
    begin(made, lookup())
    grow(made, n_emitted=0)
    assert made.accounts.loss_budget == pytest.approx(LEAST_LOSS_BUDGET)


def test_a_forbidden_draft_is_forgotten_with_its_answer():
    made = used_up()
    go_on(made, *range(7))
    begin(made, lookup())
    observe(made, a_step(), tokens=(7,))
    assert made.accounts.refunded == 0


def test_no_answer_is_refunded_more_than_its_share():
    made, refunded = used_up(), 0.0
    for n in range(60, 360, 10):
        before = made.accounts.loss_budget
        go_on(made, *range(9), n_emitted=n)
        refunded += made.accounts.loss_budget - before - 9 * EXPLORE
        assert made.accounts.loss_budget <= LEAST_LOSS_BUDGET + 9 * EXPLORE
        observe(made, a_step(16, slope=0.2))
        observe(made, a_step())
    assert refunded == pytest.approx(MOST_REFUND)
    assert made.accounts.refunded == pytest.approx(MOST_REFUND)
    begin(made, lookup())
    grow(made, n_emitted=0)
    assert made.accounts.refunded == 0


def test_a_draft_model_is_refunded_nothing():
    model = Model(0.9, 0.9)
    drafted = grow(policy(0.2, draft=0.1), model).draft.tokens
    assert len(drafted) > 2
    made = used_up(draft=0.1)
    assert go_on(made, *drafted, WRONG, drafter=model) == [0] * (len(drafted) + 1)
    assert made.accounts.refunded == 0


TRIED = {"draft_s": 0.4, "draft_evaluated": (Work(1, 100),)}


def test_trying_costs_no_more_than_was_saved_for_it():
    made, unsure, spent = policy(0.02, draft=0.4), Model(0.2, 0.5), 0.0

    def step(n_emitted):
        growth = grow(made, unsure, n_emitted=n_emitted)
        assert bool(growth.draft.evaluated) == (growth.explored > 0)
        observe(made, a_step(**(TRIED if growth.explored else {})), growth)
        return growth.explored

    for n in range(3000):
        spent += step(n)
        assert spent <= EXPLORE * (n + 1) + 1e-9
    assert spent > 0.85 * EXPLORE * 3000
    for _ in range(300):
        observe(made, a_step())
    begin(made, lookup())
    assert step(5) == 0  # not of a short answer
    begin(made, lookup())
    assert (
        2 < sum(step(500) for _ in range(50)) < 4 + 50 * EXPLORE
    )  # what was saved long ago is gone


def test_what_could_not_pay_is_never_tried():
    made, model = policy(0.02, draft=1.5), Model(0.99, 0.99)
    for n in range(1000):
        growth = grow(made, model, n_emitted=n)
        assert growth.draft.evaluated == ()
        observe(made, a_step(), growth)
    assert made.reason == "draft too slow"


def test_time_is_dearer_where_much_is_emitted():
    made = policy(0.2)
    assert depth(made, lookup(0.4)) == 1
    for _ in range(50):
        observe(made, a_step(4, 3, slope=0.2))  # 4 tokens in 1.8 s
    assert depth(made, lookup(0.8), n_emitted=249) == 0  # a plain step is due
    observe(made, a_step())
    assert depth(made, lookup(0.4), n_emitted=250) == 0
    assert depth(made, lookup(0.8), n_emitted=251) == 1


def test_speed_follows_the_device():
    made = policy(0.05)
    step = partial(a_step, slope=0.05)
    assert made.costs.plain_s(100) == pytest.approx(1)
    observe(made, step(verify_s=100.0, total_s=100.0))  # a hiccup
    assert 1 < made.costs.plain_s(100) < 1.05
    for n_drafted in [0, 4] * 100:
        observe(made, step(n_drafted, n_drafted, slow=2.0))
    assert made.costs.plain_s(100) == pytest.approx(2, rel=0.01)
    for _ in range(200):
        observe(made, step(slow=0.5))
    assert made.costs.plain_s(100) == pytest.approx(0.5, rel=0.01)
    observe(made, step(slow=0.5))
    falling = lookup(*[0.7**i for i in range(1, 32)])
    assert depth(made, falling, n_emitted=500) == 6  # wide steps may be as slow as ever
    for _ in range(100):
        observe(made, step(4, slow=0.5))
    observe(made, step(slow=0.5))
    assert depth(made, falling, n_emitted=501) == 8  # only ratios matter


def test_speed_of_a_draft_model_is_its_own():
    made, model = policy(0.02, draft=0.1), Model(0.8, 0.8)

    def pays(**budget):
        growth = grow(made, model, **budget)
        return len(growth.draft.evaluated) > 0 and not growth.explored

    def drafted(n, n_accepted, draft_s, n_read=1):
        work = (Work(n_read, 100), *[Work(1, 101)] * (n - 1))
        changes = {"draft_s": draft_s, "draft_evaluated": work}
        observe(made, a_step(n, n_accepted, slope=0.02, **changes))

    for _ in range(4):
        observe(made, a_step())
    assert pays()
    for _ in range(9):
        drafted(4, 2, draft_s=3.6)
    observe(made, a_step())
    assert not pays()  # nine tenths of a plain step a token
    drafted(2, 2, draft_s=9.0, n_read=90)  # it read, which tells nothing
    observe(made, a_step())
    for _ in range(30):
        drafted(9, 9, draft_s=0.9)
    for _ in range(200):  # nothing else emits so much
        observe(made, a_step())
    assert pays(n_emitted=90)


def test_costs_are_those_of_the_length():
    made = Adaptive(Costs(Profile(Curve((0, 100), (1, 2), ((1.0, 1.0), (2.0, 2.0))), None, 0.0)))
    observe(made, a_step(3, 3, n_past=104, verify_s=2.0))  # it began after 100
    assert [made.costs.plain_s(n) for n in (640, 1280)] == pytest.approx([7.4, 13.8])


def test_the_first_step_is_plain():
    profile, risky = Profile(line(1.0, 0.2), None, 0.0), lookup(*[0.3] * 8)
    made = Adaptive(Costs(profile))
    assert depth(made, risky) == 0
    assert made.reason == "measuring plain decoding"
    observe(made, a_step(n_evaluated=300))  # it ended the prefill as well
    assert depth(made, risky, n_emitted=51) == 0
    observe(made, a_step(slow=0.4))  # the profile was measured in a bad moment
    assert depth(made, risky, n_emitted=52) == 0
    made = Adaptive(Costs(profile))
    observe(made, a_step())
    assert depth(made, risky) > 0


def test_the_end_of_a_prefill_teaches_nothing():
    made, risky = policy(0.2), lookup(*[0.3] * 8)
    depth(made, risky, n_emitted=0)
    for _ in range(9):
        observe(made, a_step(8, slope=0.2, n_evaluated=300, verify_s=50.0, total_s=50.0))
    assert made.costs.plain_s(100) == pytest.approx(1)
    assert depth(made, risky, n_emitted=9) == 8


def test_reading_that_was_not_won_back_is_put_off():
    profile = Profile(line(1.0, 0.02), Curve((1,), (1, 641), ((0.1, 64.1),)), 0.0)
    made, model = Adaptive(Costs(profile)), Model(0.8, 0.8, 321)
    for _ in range(4):
        observe(made, a_step())

    def begins():
        """Tokens of an answer before a draft model reads 320 others, after two answers of 60, and
        the growth in which it does.
        """
        for _ in range(2):
            begin(made, model)
            grow(made, n_emitted=0)
            grow(made, n_emitted=60)
        begin(made, model)
        for n in range(60):
            growth = grow(made, model, n_emitted=n)
            if growth.draft.evaluated:
                return n, growth
        return 60, growth

    def step(growth):
        work = (Work(321, 100), *[Work(1, 421)] * 3)
        read = a_step(4, 4, 0.02, draft_s=32.4, total_s=33.5, draft_evaluated=work)
        observe(made, read, growth)
        observe(made, a_step())

    first, growth = begins()
    assert growth.reading_s == pytest.approx(32)
    before = made.accounts.loss_budget
    step(growth)  # wins 3.5, less than it took to read, which is not lost: it is for later steps
    assert made.accounts.loss_budget == pytest.approx(before + 3.5 + 6 * EXPLORE)
    later, _ = begins()
    assert first < later
    for _ in range(3):
        step(grow(made, model, n_emitted=59))
        for _ in range(2):
            work = (Work(1, 421),) * 9
            observe(made, a_step(31, 31, 0.02, draft_s=0.9, draft_evaluated=work))
        begins()
    for _ in range(200):  # time is as cheap as it was
        observe(made, a_step())
    assert begins()[0] == first


def limits(*lengths, max_tokens=None, won=0):
    """Return what an answer may lose after others that won so many tokens, and ones that lost."""
    found = []
    for budget in (100, -100):
        made = Accounts(won=0)
        for n in lengths:
            made.begin(None)
            made.count(won, 0)
            made.end(n)
        made.loss_budget = budget
        made.begin(max_tokens)
        found.append(made.loss_budget)
    return found


def test_what_an_answer_may_lose_is_in_proportion_to_its_length():
    assert limits(100) == [LOSS_BUDGET, LEAST_LOSS_BUDGET]
    assert limits(100, max_tokens=32) == pytest.approx([0.32 * LOSS_BUDGET, 0.48])
    assert limits(*[15] * 40, max_tokens=500) == pytest.approx([0.2 * LOSS_BUDGET, 0.3], rel=0.02)
    assert limits(*[5] * 40) == pytest.approx([0.2 * LOSS_BUDGET, 0.3])
    assert limits(*[900] * 20) == pytest.approx([1.25 * LOSS_BUDGET, 1.25 * LEAST_LOSS_BUDGET])


def test_what_answers_win_may_be_lost_again():
    assert limits(*[20] * 40, won=1)[0] == pytest.approx(0.2 * LOSS_BUDGET + 1, rel=0.02)
    assert limits(*[20] * 40, won=9)[0] == LOSS_BUDGET
    assert limits(*[900] * 20, won=9)[0] == pytest.approx(1.25 * LOSS_BUDGET)
    assert limits(*[20] * 40, won=-1) == pytest.approx([0.2 * LOSS_BUDGET, 0.3], rel=0.02)


def test_another_policy_goes_on_where_one_ended():
    old, new = used_up(), policy(0.2)
    go_on(old, *range(10))
    new.relearn(msgspec.json.decode(msgspec.json.encode(old.learned())))
    for made in (old, new):
        begin(made, lookup())
    assert new.accounts == old.accounts
    assert new.accounts.usual != Accounts().usual
    new.relearn({"accounts of another": 1})
    assert new.accounts == old.accounts


@pytest.mark.parametrize("damaged", [
    {}, {"usual": "x"}, {"usual": float("nan")}, {"won": float("inf")}, {"lengths": [1]},
    {"lengths": [1, -1]}, {"loss_budget": 1e300}, {"catch_up_penalty": 9}, {"other": 1},
])  # fmt: skip
def test_damaged_accounts_are_refused_as_a_whole(damaged):
    made = policy()
    before = made.learned()
    state = before["accounts"] | damaged if damaged else [1]
    with pytest.raises((ValueError, TypeError)):
        made.relearn({"accounts": state})
    assert made.learned() == before
