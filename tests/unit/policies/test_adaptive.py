"""The controller, by hand-made estimates, profiles and step statistics: no clock."""

from functools import partial
from itertools import accumulate
from operator import mul

import pytest

from edgespec.backends.features import Features
from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs, FurtherTokens
from edgespec.costs.profiles import Profile
from edgespec.policies.adaptive import MARGIN, RISK, Adaptive
from edgespec.types import Budget, DraftEstimate, StepStats
from tests.helpers.policies import Model, asks, begin, line, lookup


def under_way(profile, **options):
    """Return a policy behind its first step, which is plain and took one second."""
    made = Adaptive(Costs(profile, **options))
    made.observe(StepStats("", 0, 0, 1, 1, 100, 0.0, 1.0, 1.0))
    return made


def policy(slope=0.01, draft=None, reading=0.0, **options):
    """Return costs with a plain step of one second."""
    return under_way(Profile(line(1.0, slope), draft and line(draft, reading), 0.0), **options)


def falling(share, n=40):
    return lookup(*accumulate([share] * n, mul))


@pytest.mark.parametrize("max_depth", [0, -1])
def test_no_depth_at_all_is_refused(max_depth):
    with pytest.raises(ValueError, match=f"at least 1, not {max_depth}"):
        policy(max_depth=max_depth)


def choose(made, *estimates, limit=31, n_emitted=50, remaining=400):
    return decide(made, asks(made.costs, estimates), limit, n_emitted, remaining)


def decide(made, sources, limit=31, n_emitted=50, remaining=400):
    return made.choose(sources, Budget(limit, 100, n_emitted, remaining))


def test_plain_when_there_is_nothing_to_draft():
    for estimates in ((), (lookup(),), (lookup(), DraftEstimate("other"))):
        made = policy()
        assert choose(made, *estimates).depth == 0
        assert made.reason == "no match"


def test_depth_of_a_lookup_grows_with_its_acceptance():
    plans = [choose(policy(), falling(share)) for share in (0.5, 0.7, 0.9)]
    assert [plan.depth for plan in plans] == [6, 12, 31]  # while share ** depth > 0.011
    cost = RISK * 0.01
    assert plans[0].gain == pytest.approx(sum(0.5**i - cost for i in range(1, 7)))


def test_steep_device_wants_more_than_a_guess():
    assert choose(policy(0.5), lookup(0.8)).depth == 1
    made = policy(0.9)
    assert choose(made, lookup(0.8)).depth == 0
    assert made.reason == "drafts too unsure"


def test_a_gain_within_the_margin_is_none():
    assert choose(policy(0.5), lookup(RISK * 0.5 + MARGIN - 0.001)).depth == 0
    assert choose(policy(0.5), lookup(RISK * 0.5 + MARGIN + 0.001)).depth == 1


@pytest.mark.parametrize(("share", "depth"), [(0.5, 3), (0.7, 3), (0.9, 7), (0.97, 7)])
def test_a_draft_ends_before_a_step_that_does_not_pay(share, depth):
    curve = Curve((1,), (1, 4, 5, 8), ((1.0, 1.0, 2.0, 2.0),))  # 4 for the price of 1, 8 of 2
    made = under_way(Profile(curve, overhead=0.0))
    assert choose(made, falling(share, 7)).depth == depth


@pytest.mark.parametrize("estimate", [falling(0.99), Model(0.99)], ids=["lookup", "model"])
def test_depth_stays_in_its_limits(estimate):
    made = policy(0.0, draft=0.01, max_depth=5)
    assert [choose(made, estimate, limit=n).depth for n in (1, 3, 5, 9, 31)] == [1, 3, 5, 5, 5]


def test_the_better_source_is_taken():
    made = policy(0.02, draft=0.05)
    assert choose(made, lookup(0.1), Model(0.9)).source == 1
    assert choose(made, falling(0.95), Model(0.6)).source == 0
    assert choose(made, Model(0.6), falling(0.95)).source == 1


def test_a_draft_model_continues_what_is_known():
    known = tuple(accumulate([0.97] * 4, mul))
    alone, both = lookup(*known), Model(0.9, known=known)
    made = policy(0.02, draft=0.05)
    plan = choose(made, alone, both)
    assert (plan.source, plan.depth) == (1, 31)
    assert plan.thresholds.keep[:5] == (0, 0, 0, 0, pytest.approx(RISK * 0.02))
    assert plan.thresholds.extend[:5] == (0,) * 5 < plan.thresholds.extend[5:]
    assert choose(policy(0.02, draft=0.9), alone, both).source == 0
    for known, index in (((0.2,), 0), ((0.95,), 1)):  # what stands behind it survives with it
        assert choose(policy(0.02, 0.3), lookup(*known), Model(0.9, known=known)).source == index


def test_a_draft_model_is_not_asked_behind_nothing():
    made, known = policy(0.1, draft=0.1, reading=0.02), (0.05,)
    alone, both = Model(0.9, n_unread=200), Model(0.9, n_unread=200, known=known)
    plan = choose(made, lookup(*known), alone, both, n_emitted=30)
    assert plan.depth > 0
    assert plan.source == 1 or plan.thresholds.keeps(0, known[0])


def test_reasons_against_a_draft_Model():
    for draft, sure, reason in (
        (1.5, 0.99, "draft too slow"), (0.95, 0.99, "draft too slow"),
        (0.5, 0.1, "drafts too unsure"),
    ):  # fmt: skip
        made = policy(0.02, draft=draft)
        assert choose(made, Model(sure)).depth == 0
        assert made.reason == reason
    assert choose(policy(), Model()).depth == 0  # its costs are not known


class Asked(list):
    """Sources, and which of them were asked."""

    def __init__(self, made, estimates):
        self.seen = set()
        for index, ask in enumerate(asks(made.costs, estimates)):
            self.append(partial(self._ask, index, ask))

    def _ask(self, index, ask):
        self.seen.add(index)
        return ask()


@pytest.mark.parametrize(("draft", "sure"), [(1.5, 0.99), (0.5, 0.1)])
def test_a_draft_model_that_does_not_pay_is_left_alone_for_a_while(draft, sure):
    made = policy(draft=draft)
    seen = []
    for n in range(40):
        sources = Asked(made, [lookup(), Model(sure)])
        assert decide(made, sources, n_emitted=50 + n).depth == 0
        seen.append(sources.seen)
        assert made.reason == ("draft too slow" if draft > 1 else "drafts too unsure")
    assert [i for i, asked in enumerate(seen) if 1 in asked] == [0, 17, 34]
    assert all(0 in asked for asked in seen)


def test_a_draft_model_is_asked_in_each_answer():
    made = policy(draft=0.5)
    sources = Asked(made, [lookup(), Model(0.1)])
    assert decide(made, sources).depth == 0
    sources.seen.clear()
    decide(made, sources, n_emitted=51)
    assert sources.seen == {0}
    begin(made)
    decide(made, sources, n_emitted=0)
    assert sources.seen == {0, 1}


def test_what_a_draft_model_would_continue_is_looked_at_while_it_pauses():
    made = policy(0.9, draft=0.5)
    sources = Asked(made, [lookup(0.2), Model(0.1), Model(0.1, known=(0.2,))])
    assert decide(made, sources).depth == 0
    sources.seen.clear()
    decide(made, sources, n_emitted=51)
    assert sources.seen == {0, 2}


def test_lookup_drafts_while_a_draft_model_pauses():
    made = policy(draft=1.5)
    assert choose(made, lookup(), Model(0.9)).depth == 0
    sources = Asked(made, [falling(0.9), Model(0.9)])
    assert decide(made, sources, n_emitted=51).source == 0
    assert sources.seen == {0}
    assert choose(made, lookup(0.01), Model(0.9), n_emitted=52).depth == 0
    assert made.reason == "draft too slow"


def test_a_draft_model_that_only_has_to_read_is_asked_at_every_step():
    made = policy(0.02, draft=0.1, reading=0.05)
    for n in (9, 10, 11):
        sources = Asked(made, [lookup(), Model(0.9, n_unread=900)])
        assert decide(made, sources, n_emitted=n).depth == 0
        assert sources.seen == {0, 1}


def test_reading_is_worth_it_in_long_answers_only():
    made, late = policy(0.02, draft=0.1, reading=0.05), Model(n_unread=150)
    assert choose(made, late, n_emitted=2).depth == 0
    assert choose(made, late, n_emitted=150).depth > 0
    assert choose(made, late, n_emitted=151, remaining=8).depth == 0
    assert choose(made, Model(n_unread=1), n_emitted=2).depth > 0


def test_an_answer_is_like_the_last_ones_as_far_as_it_can_be_seen():
    def begins(*answers):
        made, reading = policy(0.02, draft=0.1, reading=0.05), Model(n_unread=600)
        for length in answers:
            begin(made)
            choose(made, n_emitted=0)
            choose(made, n_emitted=length)
        begin(made)
        return next(n for n in range(300) if choose(made, reading, n_emitted=n).depth)

    assert begins() == 43
    assert begins(300, 300) == 7  # 4 * 7 + 16 = 44 tokens are in sight
    assert begins(48, 300) == 43  # at the seventh it is 41
    assert begins(49, 300) == 43
    assert begins(50, 300) == 7


def test_thresholds():
    plan = choose(policy(0.02, draft=0.2), Model(0.95, 0.8))
    keep, extend = plan.thresholds.keep, plan.thresholds.extend
    assert len(keep) == len(extend) == plan.depth
    assert min(*keep, *extend) >= 0
    assert keep == pytest.approx([RISK * 0.02] * plan.depth)
    assert extend[0] == 0  # one evaluation is what was chosen
    assert extend[1:] == pytest.approx([RISK * 0.22 / 0.8] * (plan.depth - 1))
    curve = Curve((1,), (1, 4, 5, 32), ((1.0, 1.0, 2.0, 2.0),))
    made = under_way(Profile(curve, line(0.1, 0.0), overhead=0.0))
    keep = choose(made, Model(0.95)).thresholds.keep
    assert keep[3] > 0.3 > keep[2] == keep[4] == 0  # the fourth drafted token is the fifth


def test_thresholds_weigh_several_further_tokens():
    curve = Curve((1,), (1, 4, 5, 32), ((1.0, 1.0, 2.0, 2.0),))
    made = under_way(Profile(curve, line(0.1, 0.0), overhead=0.0))
    keep = choose(made, Model(0.95, rate=0.8)).thresholds.keep
    # a row of its own costs a second, eight together no more: 1.7 seconds for 4.16 tokens
    assert keep[3] == pytest.approx(RISK * 1.7 / sum(0.8**i for i in range(8)))


def test_a_draft_model_that_is_never_right_twice_is_asked_for_one_token():
    thresholds = choose(policy(0.02, draft=0.2), Model(0.95, rate=0.0)).thresholds
    assert min(thresholds.extend[1:]) > 5


def test_costs_stay_as_they_are_within_the_tolerance():
    costs = Costs(Profile(line(1.0, 0.1), line(0.2, 0.0), 0.0), 31)

    def take(*ratios, draft=0.0):
        evaluated = (1,) if draft else ()
        for ratio in ratios:
            costs.observe(StepStats("", 0, 0, 1, 1, 101, draft, ratio, ratio, evaluated), 100)
        return costs.target(100)

    table = costs.target(100)
    further = costs.further(0.8, costs.draft_token_s)
    assert take(*[1.03, 0.98] * 10) is table
    assert costs.further(0.8, costs.draft_token_s) is further
    assert take(*[1.3] * 60)[1] == pytest.approx(1.3, rel=0.05)
    assert costs.draft_token_s == pytest.approx(0.26, rel=0.05)
    take(*[1.3] * 60, draft=0.52)
    assert costs.draft_token_s == pytest.approx(0.52, rel=0.1)
    assert costs.target(100) is costs.target(127) is not costs.target(128)


def test_no_more_is_drafted_than_may_be():
    curve = Curve((1,), (1, 2, 32), ((1.0, 1.9, 1.9),))
    made = under_way(Profile(curve, line(0.1, 0.0), overhead=0.0))
    assert choose(made, Model(0.95, 0.95)).depth > 1
    assert choose(made, Model(0.95, 0.95), limit=1).depth == 0  # one token alone is not worth 1 s


def test_an_unsure_start_costs_its_evaluation_only():
    further = FurtherTokens(0.1, 0.8, [0.0, *(1.0 + 0.3 * i for i in range(40))])

    def worth(*histogram):
        return further.worth(histogram, 4, 1.0, 1.0)

    assert worth((1.0, 0.01)) == pytest.approx(-0.1)
    assert worth((1.0, 0.9)) > 0
    assert worth((0.5, 0.9), (0.5, 0.01)) == pytest.approx((worth((1.0, 0.9)) - 0.1) / 2)


def test_a_draft_that_is_guessed_all_at_once_costs_one_evaluation():
    flat, steep = ([0.0, *(1.0 + step * i for i in range(40))] for step in (0.0, 1.0))
    each, once = FurtherTokens(0.5, 0.8, flat), FurtherTokens(0.5, 0.8, flat, 0.0)
    assert (each.drafting_s(8), once.drafting_s(8)) == (4.0, 0.5)
    histogram = ((1.0, 0.9),)
    assert once.worth(histogram, 8, 1.0, 1.0) > each.worth(histogram, 8, 1.0, 1.0)
    assert once.worth(histogram, 8, 1.0, 1.0) == pytest.approx(
        0.9 * sum(0.8**i for i in range(8)) - 0.5
    )
    deep = once.thresholds(0, 8, 1.0)
    assert max(deep.keep) == max(deep.extend) == 0  # nodes cost the target nothing
    dear = FurtherTokens(0.5, 0.8, steep, 0.0)
    assert min(dear.thresholds(0, 8, 1.0).extend[1:]) > 1
    assert dear.worth(histogram, 8, 1.0, 1.0) == pytest.approx(-0.5)


@pytest.mark.parametrize("most", [0, 1, 3, 4, 8, 15])
def test_no_tokens_count_beyond_the_most_on_a_path(most):
    further = FurtherTokens(0.0, 0.8, [0.0, *([1.0] * 40)], 0.0, most)
    gained = further.worth(((1.0, 0.5),), 31, 1.0, 1.0)
    assert gained == pytest.approx(0.5 * sum(0.8**i for i in range(min(most or 8, 8))))
    assert len(further.thresholds(0, 31, 1.0).keep) == 31


def with_head(given, tapping=0.04):
    """Return a policy beside a head whose hidden states take the target so long a step."""
    made = under_way(Profile(line(1.0, 0.0), line(0.1, 0.0), 0.0, tapping=tapping))
    made.costs.features = Features()
    made.costs.features.given = given
    return made


def take(made, n_accepted=None, total_s=1.0):
    """Let the policy see a step, a plain one if nothing is said of a draft."""
    n = 0 if n_accepted is None else 4
    evaluated = (1,) * n
    emitted = 1 + (n_accepted or 0)
    made.observe(StepStats(
        "head", n, n_accepted or 0, emitted, n + 1, 100 + emitted, 0.1 * n, 1.0, total_s, evaluated
    ))  # fmt: skip


@pytest.mark.parametrize("given", [True, False])
def test_what_hidden_states_cost_is_lost_at_every_step(given):
    made = with_head(given)
    before = made.accounts.loss_budget, made.costs.won_by_head
    for _ in range(10):
        take(made)
    lost = before[0] + 10 * 0.01 - made.accounts.loss_budget
    assert lost == pytest.approx(0.4 if given else 0.0)
    assert before[1] - made.costs.won_by_head == pytest.approx(0.4 if given else 0.0)


@pytest.mark.parametrize("given", [True, False])
def test_plain_decoding_is_without_hidden_states(given):
    made = with_head(given)
    for _ in range(8):
        take(made)
    assert made.plain_s(100) == pytest.approx(0.96 if given else 1.0)


@pytest.mark.parametrize(("n_accepted", "won"), [(0, -0.44), (1, 0.56), (4, 3.56)])
def test_what_a_head_has_won(n_accepted, won):
    made = with_head(given=True)
    before = made.costs.won_by_head
    take(made, n_accepted, total_s=1.4)
    assert made.costs.won_by_head - before == pytest.approx(won)
