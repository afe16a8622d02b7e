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
from edgespec.types import Budget, StepStats
from tests.helpers.policies import Model, asks, begin, line, lookup


def policy(slope=0.01, draft=None):
    """Behind its first step, which is plain and took one second."""
    made = Adaptive(Costs(Profile(line(1.0, slope), draft and line(draft, 0.0), 0.0)))
    made.observe(a_step())
    return made


def choose(made, *estimates, n_emitted=50):
    return made.choose(asks(made.costs, estimates), Budget(31, 100, n_emitted))


def a_step(n_drafted=0, n_accepted=0, slope=0.01, slow=1.0, **changes):
    seconds = slow * (1 + slope * n_drafted)
    counts = (n_drafted, n_accepted, n_accepted + 1, n_drafted + 1)
    return StepStats("x", *counts, 100, 0.0, seconds, seconds)._replace(**changes)


@pytest.mark.parametrize("unit", [1.0, 0.1])
def test_an_answer_does_not_lose_more_than_its_loss_budget(unit):
    made, risky = Adaptive(Costs(Profile(line(unit, 0.2 * unit), None, 0.0))), lookup(*[0.3] * 8)
    step = partial(a_step, slope=0.2, slow=unit)
    for _ in range(4):  # plain decoding is measured before anything else
        made.observe(step())
    assert choose(made, risky, n_emitted=0).depth == 8
    made.observe(step(8))
    made.observe(step(8))  # loses 3.2 of 3.5
    assert choose(made, risky, n_emitted=1).depth == 2  # 0.7 * RISK * 0.2 * 2 is at stake
    made.observe(step(8))
    assert choose(made, risky, n_emitted=2).depth == 0
    made.observe(step(8, 8))  # gains 6.4
    made.observe(step(8, slow=1.5 * unit))
    assert choose(made, risky, n_emitted=12).depth > 0
    for _ in range(6):
        made.observe(step(8))
    assert choose(made, risky, n_emitted=18).depth == 0
    made.observe(step(31, 31))
    made.observe(step(slow=4 * unit))  # a plain step loses nothing
    assert choose(made, risky, n_emitted=60).depth == 8


def test_the_loss_budget_outlives_an_answer():
    made, risky = policy(0.2), lookup(*[0.3] * 8)
    for _ in range(4):
        made.observe(a_step())
    for _ in range(2):
        made.observe(a_step(8, slope=0.2))  # loses 1.6
    assert choose(made, risky, n_emitted=8).depth == 2
    made.observe(a_step(8, slope=0.2))
    assert choose(made, risky, n_emitted=9).depth == 0
    begin(made)
    assert choose(made, risky, n_emitted=0).depth == 8  # another answer
    made.observe(a_step(8, slope=0.2))
    assert choose(made, risky, n_emitted=1).depth == 0  # it began with less
    made.observe(a_step(31, 31, slope=0.2))  # gains 24.8
    assert choose(made, risky, n_emitted=33).depth == 8
    begin(made)
    choose(made, n_emitted=0)
    for _ in range(2):
        made.observe(a_step(8, slope=0.2))
    assert choose(made, risky, n_emitted=1).depth == 2  # that was for another answer


def used_up(slope=0.2):
    """Return a policy whose answer has lost what it may, after 48 tokens."""
    made = policy(slope)
    for _ in range(3):
        made.observe(a_step())
    assert choose(made, lookup(*[0.3] * 8), n_emitted=48).depth == 8
    for _ in range(3):
        made.observe(a_step(8, slope=slope))  # loses 1.6 of 3.5
    made.observe(a_step())
    return made


def go_on(made, *streaks, n_emitted=50, kind=lookup):
    """Return the depths chosen, token by token, with a source that was right so often."""
    depths = []
    for i, streak in enumerate(streaks):
        depths.append(look(made, streak, n_emitted + i, kind))
        made.observe(a_step())
    return depths


def look(made, streak, n_emitted, kind=lookup):
    """Return the depth chosen for eight tokens that would cost 0.2 of a step each."""
    return choose(made, kind(*[0.3] * 8, streak=streak), n_emitted=n_emitted).depth


def test_what_a_forbidden_draft_would_have_won_is_refunded():
    assert go_on(used_up(), *range(5, 13)) == [0] * 8
    assert go_on(used_up(), *range(5, 14)) == [0] * 8 + [8]  # all eight were right
    for n_right in (0, 1, 2, 3, 6):
        made = used_up()
        before = made.accounts.loss_budget + EXPLORE * (n_right + 1)
        assert go_on(made, *range(n_right + 1)) == [0] * (n_right + 1)
        assert made.accounts.loss_budget == pytest.approx(before)
        look(made, 0, 51 + n_right)
        won = n_right - RISK * 0.2 * 8  # two have to be right
        assert made.accounts.loss_budget == pytest.approx(
            before + min(max(won, 0), LEAST_LOSS_BUDGET - before)
        )
        if n_right < 6:
            assert made._forbidden.n_emitted == 51 + n_right  # the next one is looked at


def test_what_is_wrong_is_seen_in_steps_of_several_tokens_too():
    made = used_up()
    before = made.accounts.loss_budget
    look(made, 0, 50)
    look(made, 12, 62)  # all of it, and more
    assert made.accounts.refunded == pytest.approx(LEAST_LOSS_BUDGET - before)
    for streak, said in ((5, 6), (0, 9), (8, 9)):
        made = used_up()
        look(made, streak, 50)
        look(made, streak and said - 1, 50 + said)  # the first one was wrong
        assert made.accounts.refunded == 0
        assert made._forbidden.n_emitted == 50 + said
    made = used_up()
    look(made, 3, 50)
    look(made, 7, 54)
    look(made, 6, 61)  # four were right, then one was not
    assert made.accounts.refunded == pytest.approx(4 - RISK * 0.2 * 8)


def test_a_refund_is_not_handed_on():
    made = used_up()
    go_on(made, *range(10))
    assert made.accounts.refunded > 2
    made.observe(a_step(2, 2, slope=0.2))  # gains 1.6
    assert made.accounts.loss_budget > LEAST_LOSS_BUDGET
    choose(made, n_emitted=100)  # as long as answers are
    begin(made)
    choose(made, n_emitted=0)
    assert made.accounts.loss_budget == pytest.approx(LEAST_LOSS_BUDGET)


def test_no_answer_is_refunded_more_than_its_share():
    made, refunded = used_up(), 0.0
    for n in range(60, 360, 10):
        before = made.accounts.loss_budget
        go_on(made, *range(9), n_emitted=n)
        refunded += made.accounts.loss_budget - before - 9 * EXPLORE
        assert made.accounts.loss_budget <= LEAST_LOSS_BUDGET + 9 * EXPLORE
        made.observe(a_step(16, slope=0.2))
        made.observe(a_step())
    assert refunded == pytest.approx(MOST_REFUND)
    assert made.accounts.refunded == pytest.approx(MOST_REFUND)
    begin(made)
    choose(made, n_emitted=0)
    assert made.accounts.refunded == 0


def test_a_draft_model_is_refunded_nothing():
    made = used_up()
    kind = lambda *known, streak: Model(0.0, 0.0, known=known, streak=streak)  # noqa: E731
    assert go_on(made, *range(12), kind=kind) == [0] * 12
    assert made.accounts.refunded == 0


def test_trying_costs_no_more_than_was_saved_for_it():
    made, unsure, spent = policy(0.02, draft=0.4), Model(0.2, 0.5, probs=(0.2,)), 0.0
    for n in range(3000):
        plan = choose(made, unsure, n_emitted=n)
        assert plan.gain <= 0
        spent -= plan.gain
        assert spent <= EXPLORE * n + 1e-9
        made.observe(a_step())
    assert spent > 0.85 * EXPLORE * 3000
    for _ in range(300):
        made.observe(a_step())
    assert choose(made, unsure, n_emitted=5).depth == 0  # not of a short answer
    tries = [choose(made, unsure, n_emitted=500 + i).gain for i in range(50)]
    assert -4 <= sum(tries) < -2  # what was saved long ago is gone


def test_what_could_not_pay_is_never_tried():
    made, estimate = policy(0.02, draft=1.5), Model(0.9, 0.9, probs=(0.9,))
    for n in range(1000):
        assert choose(made, estimate, n_emitted=n).depth == 0
        made.observe(a_step())
    assert made.reason == "draft too slow"


def test_time_is_dearer_where_much_is_emitted():
    made = policy(0.2)
    assert choose(made, lookup(0.4)).depth == 1
    for _ in range(50):
        made.observe(a_step(4, 3, slope=0.2))  # 4 tokens in 1.8 s
    assert choose(made, lookup(0.8), n_emitted=249).depth == 0  # a plain step is due
    made.observe(a_step())
    assert choose(made, lookup(0.4), n_emitted=250).depth == 0
    assert choose(made, lookup(0.8), n_emitted=251).depth == 1


def test_speed_follows_the_device():
    made = policy()
    assert made.costs.plain_s(100) == pytest.approx(1)
    made.observe(a_step(verify_s=100.0, total_s=100.0))  # a hiccup
    assert 1 < made.costs.plain_s(100) < 1.05
    for n_drafted in [0, 4] * 100:
        made.observe(a_step(n_drafted, n_drafted, slow=2.0))
    assert made.costs.plain_s(100) == pytest.approx(2, rel=0.01)
    for _ in range(200):
        made.observe(a_step(slow=0.5))
    assert made.costs.plain_s(100) == pytest.approx(0.5, rel=0.01)
    made.observe(a_step(slow=0.5))
    falling = lookup(*[0.7**i for i in range(1, 32)])
    assert choose(made, falling, n_emitted=500).depth == 10  # wide steps may be as slow as ever
    for _ in range(100):
        made.observe(a_step(4, slow=0.5))
    made.observe(a_step(slow=0.5))
    assert choose(made, falling, n_emitted=501).depth == 12  # only ratios matter


def test_speed_of_a_draft_model_is_its_own():
    made, estimate = policy(0.02, draft=0.1), Model(0.8, 0.8, probs=(0.8,))
    for _ in range(4):
        made.observe(a_step())
    assert choose(made, estimate).gain > 0.5
    for _ in range(9):
        made.observe(a_step(4, 2, slope=0.02, draft_s=3.6, draft_evaluated=(1, 1, 1, 1)))
    made.observe(a_step())
    assert choose(made, estimate).gain <= 0  # nine tenths of a plain step a token
    made.observe(a_step(4, 4, slope=0.02, draft_s=9.0, draft_evaluated=(90, 1)))  # it read
    for _ in range(30):
        made.observe(a_step(9, 9, slope=0.02, draft_s=0.9, draft_evaluated=(1,) * 9))
    for _ in range(200):  # nothing else emits so much
        made.observe(a_step())
    assert choose(made, estimate, n_emitted=90).gain > 0.3


def test_costs_are_those_of_the_length():
    made = Adaptive(Costs(Profile(Curve((0, 100), (1, 2), ((1.0, 1.0), (2.0, 2.0))), None, 0.0)))
    made.observe(a_step(3, 3, n_past=104, verify_s=2.0))  # it began behind 100
    assert [made.costs.plain_s(n) for n in (640, 1280)] == pytest.approx([7.4, 13.8])


def test_the_first_step_is_plain():
    profile, risky = Profile(line(1.0, 0.2), None, 0.0), lookup(*[0.3] * 8)
    made = Adaptive(Costs(profile))
    assert choose(made, risky).depth == 0
    assert made.reason == "measuring plain decoding"
    made.observe(a_step(n_evaluated=300))  # it ended the prefill as well
    assert choose(made, risky, n_emitted=51).depth == 0
    made.observe(a_step(slow=0.4))  # the profile was measured in a bad moment
    assert choose(made, risky, n_emitted=52).depth == 0
    made = Adaptive(Costs(profile))
    made.observe(a_step())
    assert choose(made, risky).depth > 0


def test_the_end_of_a_prefill_teaches_nothing():
    made, risky = policy(0.2), lookup(*[0.3] * 8)
    choose(made, risky, n_emitted=0)
    for _ in range(9):
        made.observe(a_step(8, slope=0.2, n_evaluated=300, verify_s=50.0, total_s=50.0))
    assert made.costs.plain_s(100) == pytest.approx(1)
    assert choose(made, risky, n_emitted=9).depth == 8


def test_reading_that_was_not_won_back_is_put_off():
    profile = Profile(line(1.0, 0.02), Curve((1,), (1, 641), ((0.1, 64.1),)), 0.0)
    made, reading = Adaptive(Costs(profile)), Model(0.8, 0.8, 641, probs=(0.8,))
    for _ in range(4):
        made.observe(a_step())

    def begins():
        """Tokens of an answer before a draft model reads 640 others, after two answers of 60."""
        for _ in range(2):
            begin(made)
            choose(made, n_emitted=0)
            choose(made, n_emitted=60)
        begin(made)
        return next((n for n in range(60) if choose(made, reading, n_emitted=n).depth), 60)

    def step():
        made.observe(a_step(4, 4, 0.02, draft_s=64.4, total_s=65.5, draft_evaluated=(641, 1, 1, 1)))
        made.observe(a_step())

    first = begins()
    step()  # wins 3.6, less than it took to read
    later = begins()
    assert first < later
    for _ in range(3):
        choose(made, reading, n_emitted=59)
        step()
        for _ in range(2):
            made.observe(a_step(31, 31, 0.02, draft_s=0.9, draft_evaluated=(1,) * 9))
        begins()
    for _ in range(200):  # time is as cheap as it was
        made.observe(a_step())
    assert begins() == first


def limits(*lengths, max_tokens=None, won=0):
    """Return what an answer may lose behind others that won so many tokens, and ones that lost."""
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
        begin(made)
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
