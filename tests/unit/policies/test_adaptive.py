"""The controller, by hand-made guesses, profiles and step statistics: no clock."""

from itertools import accumulate
from operator import mul

import pytest

from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.drafters.base import Forecast, Role
from edgespec.policies.adaptive import MARGIN, RISK, Adaptive
from edgespec.policies.base import Limits
from edgespec.policies.worth import Worth
from edgespec.types import NO_DRAFT, Budget, StepStats, Work
from tests.helpers.policies import OWN, Lookup, Model, begin, depth, emitted, grow, line, lookup

PLAIN = StepStats("", 0, 0, 1, 1, 100, 0.0, 1.0, 1.0)


def under_way(profile, **options):
    """Return a policy after its first step, which is plain and took one second."""
    made = Adaptive(Costs(profile, **options))
    made.observe(PLAIN, emitted(7), None)
    return made


def policy(slope=0.01, draft=None, reading=0.0, **options):
    """Return costs with a plain step of one second."""
    return under_way(Profile(line(1.0, slope), draft and line(draft, reading), 0.0), **options)


def falling(share, n=40):
    return lookup(*accumulate([share] * n, mul))


def is_plain(made, *drafters, **budget):
    """Return whether nothing is drafted, and let the policy see the plain step if it is so."""
    growth = grow(made, *drafters, **budget)
    plain = growth.draft == NO_DRAFT
    if plain:
        made.observe(PLAIN, emitted(7), growth)
    return plain


@pytest.mark.parametrize("max_depth", [0, -1])
def test_no_depth_at_all_is_refused(max_depth):
    with pytest.raises(ValueError, match=f"at least 1, not {max_depth}"):
        policy(max_depth=max_depth)


@pytest.mark.parametrize("drafters", [(), (lookup(),), (lookup(), lookup())])
def test_plain_when_there_is_nothing_to_draft(drafters):
    made = policy()
    assert is_plain(made, *drafters)
    assert made.reason == "no match"


def test_depth_of_a_lookup_grows_with_its_acceptance():
    drafts = [grow(policy(), falling(share)).draft for share in (0.5, 0.7, 0.9)]
    assert [len(draft.tokens) for draft in drafts] == [5, 10, 31]  # while share ** depth > 0.02
    assert drafts[0].expected == pytest.approx(sum(0.5**i for i in range(1, 6)))
    assert drafts[0].source == "suffix"


def test_steep_device_wants_more_than_a_guess():
    assert depth(policy(0.5), lookup(0.8)) == 1
    made = policy(0.9)
    assert is_plain(made, lookup(0.91))
    assert made.reason == "drafts too unsure"


def test_a_gain_within_the_margin_is_none():
    assert depth(policy(0.5), lookup(RISK * 0.5 + MARGIN - 0.001)) == 0
    assert depth(policy(0.5), lookup(RISK * 0.5 + MARGIN + 0.001)) == 1


@pytest.mark.parametrize(("share", "n"), [(0.5, 3), (0.7, 3), (0.9, 7), (0.97, 7)])
def test_a_draft_ends_before_a_step_that_does_not_pay(share, n):
    curve = Curve((1,), (1, 4, 5, 8), ((1.0, 1.0, 2.0, 2.0),))  # 4 for the price of 1, 8 of 2
    made = under_way(Profile(curve, overhead=0.0))
    assert depth(made, falling(share, 7)) == n


@pytest.mark.parametrize("drafter", [falling(0.99), Model(0.99)], ids=["lookup", "model"])
def test_depth_stays_in_its_limits(drafter):
    made = policy(0.0, draft=0.01, max_depth=5)
    assert [depth(made, drafter, limit=n) for n in (1, 3, 5, 9, 31)] == [1, 3, 5, 5, 5]


def test_the_better_source_is_taken():
    made = policy(0.02, draft=0.05)
    draft = grow(made, lookup(0.1), Model(0.9)).draft
    assert draft.source == "draft_model"
    assert draft.evaluated[0] == Work(1, 100)
    for drafters in ((falling(0.95), Model(0.6)), (Model(0.6), falling(0.95))):
        draft = grow(made, *drafters).draft
        assert (draft.source, draft.evaluated) == ("suffix", ())


def test_guesses_of_a_lookup_join_those_of_a_model_that_has_several():
    made = policy(0.02, draft=0.05)
    draft = grow(made, lookup(0.3), Model(0.6, n_choices=2)).draft
    assert draft.source == "draft_model+suffix"
    first = [token for token, parent in zip(draft.tokens, draft.parents, strict=True) if parent < 0]
    assert first == [OWN, OWN + 1, 0]
    assert grow(made, lookup(0.3), Model(0.6, n_choices=2), max_leaves=1).draft.parents == ()


KNOWN = tuple(accumulate([0.97] * 4, mul))


def test_a_draft_model_continues_what_is_known():
    draft = grow(policy(0.02, draft=0.05), lookup(*KNOWN), Model(0.9, rate=0.95)).draft
    assert draft.tokens[:5] == (0, 1, 2, 3, OWN)
    assert len(draft.tokens) > 12
    assert draft.evaluated[:2] == (Work(5, 100), Work(1, 105))  # four tokens to read, and its own
    assert draft.source == "draft_model+suffix"
    alone = grow(policy(0.02, draft=0.9), lookup(*KNOWN), Model(0.9)).draft
    assert (alone.tokens, alone.evaluated) == ((0, 1, 2, 3), ())


@pytest.mark.parametrize(("known", "opened"), [(0.2, False), (0.95, True)])
def test_what_a_model_adds_is_accepted_only_with_what_is_before_it(known, opened):
    made = policy(0.02, draft=0.3)
    made._pause = 1  # it is not looked at where the text ends
    draft = grow(made, lookup(known), Model(0.9)).draft
    assert draft.tokens[0] == 0
    assert (draft.tokens[1:2] == (OWN,)) == bool(draft.evaluated) == opened


def test_a_draft_model_is_not_asked_after_a_guess_that_does_not_pay():
    made, model = policy(0.1, draft=0.1, reading=0.02), Model(0.9, n_unread=200)
    growth = grow(made, lookup(0.05), model, n_emitted=30)
    assert growth.draft.tokens[0] == OWN
    assert model.expanded[0] == ()
    assert growth.draft.evaluated[0] == Work(200, 100)


@pytest.mark.parametrize(("draft", "sure", "reason"), [
    (1.5, 0.99, "draft too slow"), (0.95, 0.99, "draft too slow"), (9.0, 0.99, "draft too slow"),
    (0.5, 0.1, "drafts too unsure"),
    (None, 0.9, "costs are not measured yet"),
])  # fmt: skip
def test_reasons_against_a_draft_model(draft, sure, reason):
    made = policy(0.02, draft=draft)
    assert is_plain(made, Model(sure))
    assert made.reason == reason


@pytest.mark.parametrize(("draft", "sure"), [(1.5, 0.99), (0.5, 0.1)])
def test_a_draft_model_that_does_not_pay_is_left_alone_for_a_while(draft, sure):
    made, model, seen = policy(draft=draft), Model(sure), []
    for n in range(40):
        before = model.asked
        assert is_plain(made, lookup(), model, n_emitted=50 + n)
        seen.append(model.asked > before)
        assert made.reason == ("draft too slow" if draft > 1 else "drafts too unsure")
    assert [i for i, asked in enumerate(seen) if asked] == [0, 17, 34]


def test_a_draft_model_is_asked_in_each_answer():
    made, model = policy(draft=0.5), Model(0.1)
    for n_emitted, n_asked in ((50, 1), (51, 1), (0, 2)):
        if not n_emitted:
            begin(made, model)
        assert is_plain(made, lookup(), model, n_emitted=n_emitted)
        assert model.asked == n_asked


def test_what_a_draft_model_would_continue_is_looked_at_while_it_pauses():
    made, model = policy(0.02, draft=0.5), Model(0.1)
    assert is_plain(made, lookup(), model)
    assert depth(made, lookup(*KNOWN), model, n_emitted=51) == 4
    assert model.asked == 2  # at the end of the known tokens; else it is looked at twice
    made._pause = 0
    depth(made, lookup(*KNOWN), model, n_emitted=51)
    assert model.asked == 4


def test_lookup_drafts_while_a_draft_model_pauses():
    made, model = policy(draft=1.5), Model(0.9)
    assert is_plain(made, lookup(), model)
    growth = grow(made, falling(0.9), model, n_emitted=51)
    assert (growth.draft.source, growth.draft.evaluated) == ("suffix", ())
    for unlikely in (0.01, 0.03):
        assert is_plain(made, lookup(unlikely), model, n_emitted=52)
        assert made.reason == "draft too slow"


def test_a_draft_model_that_only_has_to_read_is_asked_at_every_step():
    made, model = policy(0.02, draft=0.1, reading=0.05), Model(0.9, n_unread=900)
    for n in (9, 10, 11):
        assert is_plain(made, lookup(), model, n_emitted=n)
        assert model.asked == n - 8


def test_reading_is_worth_it_in_long_answers_only():
    made, late = policy(0.02, draft=0.1, reading=0.05), Model(n_unread=150)
    assert depth(made, late, n_emitted=2) == 0
    growth = grow(made, late, n_emitted=150)
    assert growth.draft.tokens
    assert growth.reading_s == pytest.approx(149 * 0.05)
    assert depth(made, late, n_emitted=151, remaining=8) == 0
    assert depth(made, Model(n_unread=1), n_emitted=2) > 0


def test_what_is_read_between_two_drafts_is_paid_by_each_of_them():
    """The prompt is read once, and a passage that others drafted counts like it."""
    made = policy(0.02, draft=0.1, reading=0.2)
    late, later = Model(n_unread=30), Model(n_unread=34)
    drafted = StepStats("m", 1, 0, 1, 2, 101, 0.1, 1.0, 1.1, draft_evaluated=(Work(1, 99),))
    begin(made, late)
    for _ in range(4):
        made.observe(PLAIN, emitted(7), None)
    assert depth(made, late, n_emitted=100) > 0
    made.observe(drafted, emitted(7), grow(made, late, n_emitted=100))
    assert depth(made, later, n_emitted=101) > 0
    assert depth(made, late, n_emitted=101) == 0
    begin(made, late)
    assert depth(made, late, n_emitted=100) > 0


def test_an_answer_is_like_the_last_ones_as_far_as_it_can_be_seen():
    def begins(*answers):
        made, reading = policy(0.02, draft=0.1, reading=0.05), Model(n_unread=600)
        for length in answers:
            begin(made, reading)
            grow(made, n_emitted=0)
            grow(made, n_emitted=length)
        begin(made, reading)
        return next(n for n in range(300) if depth(made, reading, n_emitted=n))

    assert begins() == 43
    assert begins(300, 300) == 7  # 4 * 7 + 16 = 44 tokens are in sight
    assert begins(48, 300) == 43  # at the seventh it is 41
    assert begins(49, 300) == 43
    assert begins(50, 300) == 7


@pytest.mark.parametrize("draws", [True, False])
def test_tokens_are_drawn_only_where_they_pay(draws):
    made = policy(0.02, draft=0.05)
    draft = grow(made, lookup(0.5), Model(0.9, draws=draws)).draft
    assert draft.tokens[0] == OWN
    assert bool(draft.probs) == draws
    made = policy(0.3, draft=0.02)
    draft = grow(made, Model(0.9, 0.2, draws=draws)).draft
    assert (draft.tokens, bool(draft.probs)) == ((OWN,), draws)  # 0.18 is not worth 0.3


def opened(target, draft, rate=0.8, price=1.0, n_nodes=31, **forecast):
    """Return the worth of a model that is opened: e is the time of its evaluations."""
    costs = Costs(Profile(target, line(draft, 0.0), 0.0))
    histogram = forecast.pop("histogram", ((1.0, 0.95),))
    worth = Worth(Limits(n_nodes, price, costs, MARGIN), Budget(31, 100))
    return worth.opened(Forecast(histogram, rate, **forecast), Work(1, 100))


STAIRS = Curve(
    (1,), (1, 4, 5, 32), ((1.0, 1.0, 2.0, 2.0),)
)  # the fourth drafted token is the fifth


def test_a_token_is_added_and_a_further_one_evaluated_from_these_probabilities_on():
    worth = opened(line(1.0, 0.02), 0.2, price=RISK)
    for n in range(8):
        assert worth.pays(n, RISK * 0.02 + 1e-6)
        assert not worth.pays(n, RISK * 0.02 - 1e-6)
        assert worth.pays(n, RISK * 0.22 + 1e-6, unknown=True)
        assert not worth.pays(n, RISK * 0.22 - 1e-6, unknown=True)
    worth = opened(STAIRS, 0.1)
    assert [worth.pays(n, 0.3) for n in range(6)] == [True, True, True, False, True, True]
    assert worth.pays(2, 0.0)


def test_several_further_tokens_are_weighed():
    worth = opened(STAIRS, 0.1, price=RISK)
    # a row of its own costs a second, seven together no more: 1.6 seconds for 3.95 tokens
    least = RISK * 1.6 / sum(0.8**i for i in range(7))
    assert worth.pays(3, least + 1e-6)
    assert not worth.pays(3, least - 1e-6)


def test_a_draft_model_that_is_never_right_twice_is_asked_for_one_token():
    model = Model(0.95, rate=0.0)
    assert depth(policy(0.02, draft=0.2), model) == 1
    assert model.expanded == [()]


def test_costs_stay_as_they_are_within_the_tolerance():
    costs = Costs(Profile(line(1.0, 0.1), line(0.2, 0.0), 0.0), 31)

    def take(*ratios, draft=0.0):
        evaluated = (Work(1, 100),) if draft else ()
        for ratio in ratios:
            costs.observe(StepStats("", 0, 0, 1, 1, 101, draft, ratio, ratio, evaluated), 100)
        return costs.target(100)

    table, drafting = costs.target(100), costs.draft_token_s(100)
    assert take(*[1.03, 0.98] * 10) is table
    assert costs.draft_token_s(100) == drafting
    assert take(*[1.3] * 60)[1] == pytest.approx(1.3, rel=0.05)
    assert costs.draft_token_s(100) == pytest.approx(0.26, rel=0.05)
    take(*[1.3] * 60, draft=0.52)
    assert costs.draft_token_s(100) == pytest.approx(0.52, rel=0.1)
    assert costs.target(100) is costs.target(127) is not costs.target(128)


def test_no_more_is_drafted_than_may_be():
    curve = Curve((1,), (1, 2, 32), ((1.0, 1.9, 1.9),))
    made = under_way(Profile(curve, line(0.1, 0.0), overhead=0.0))
    assert depth(made, Model(0.95, 0.95)) > 1
    assert depth(made, Model(0.95, 0.95), limit=1) == 0  # one token alone is not worth 1 s


def test_an_unsure_start_costs_its_evaluation_only():
    def worth(*histogram):
        return opened(line(1.0, 0.3), 0.1, histogram=histogram).expected(0, 1.0, 4)

    assert worth((1.0, 0.01)) == pytest.approx(-0.1)
    assert worth((1.0, 0.9)) > 0
    assert worth((0.5, 0.9), (0.5, 0.01)) == pytest.approx((worth((1.0, 0.9)) - 0.1) / 2)


def test_a_draft_that_is_guessed_all_at_once_costs_one_evaluation():
    each, once = (
        opened(line(1.0, 0.0), 0.5, histogram=((1.0, 0.9),), one_pass=one_pass)
        for one_pass in (False, True)
    )
    assert once.expected(0, 1.0, 8) > each.expected(0, 1.0, 8)
    assert once.expected(0, 1.0, 8) == pytest.approx(0.9 * sum(0.8**i for i in range(8)) - 0.5)
    assert once.pays(0, 0.0)  # nodes cost the target nothing
    assert once.pays(0, 0.0, unknown=True)
    assert not each.pays(0, 0.1, unknown=True)
    dear = opened(line(1.0, 1.0), 0.5, histogram=((1.0, 0.9),), one_pass=True)
    assert not dear.pays(0, 0.99)
    assert dear.expected(0, 1.0, 8) == pytest.approx(-0.5)


@pytest.mark.parametrize("most", [0, 1, 3, 4, 8, 15])
def test_no_tokens_count_beyond_the_most_on_a_path(most):
    worth = opened(line(1.0, 0.0), 0.0, histogram=((1.0, 0.5),), one_pass=True, max_depth=most)
    gained = worth.expected(0, 1.0, 31)
    assert gained == pytest.approx(0.5 * sum(0.8**i for i in range(min(most or 8, 8))))
    model = Model(0.9, 0.9, one_pass=True, max_depth=most)
    assert depth(policy(0.0, draft=0.1), model) == (most or 31)


@pytest.mark.parametrize(("slope", "role", "rests"), [
    (0.01, Role.MATCHED, False), (0.2, Role.DRAWN, True),
])  # fmt: skip
def test_where_nothing_unlikely_pays_only_one_token_is_guessed_after_each_text(slope, role, rests):
    made, unlikely = policy(slope, draft=0.1), Lookup({}, wide=True)
    begin(made, lookup(), unlikely, Model())
    assert made.roles == (role, Role.OFF if rests else role, role)
    made = Adaptive(Costs(None))
    begin(made, lookup(), unlikely, Model())
    assert made.roles == (Role.MATCHED, Role.OFF, Role.MATCHED)  # nothing is known yet


def test_a_step_beside_a_prompt_is_no_plain_step():
    """Its time is that of the prompt, which says nothing of what a single token costs."""
    made = policy()
    before = made.costs.plain_s(100)
    for _ in range(20):
        made.observe(PLAIN._replace(verify_s=4.0, total_s=4.0, plain_s=4.0), emitted(7), None)
    assert made.costs.plain_s(100) == before


@pytest.mark.parametrize(("n_beside", "loses"), [(0, False), (2, True)])
def test_only_drafts_lose_time(n_beside, loses):
    made = policy()
    before = made.accounts.loss_budget
    slow = PLAIN._replace(verify_s=4.4, total_s=4.4, plain_s=4.0, n_beside=n_beside)
    for _ in range(9):
        made.observe(slow, emitted(7), None)
    assert (made.accounts.loss_budget < before) == loses


def test_an_answer_that_must_not_draft_shows_nothing_about_drafts():
    made, guesses = policy(0.1), falling(0.8)
    fast = PLAIN._replace(n_drafted=4, n_accepted=3, n_evaluated=5, n_emitted=4, total_s=1.4)
    begin(made, guesses)
    for n in range(60):
        grow(made, guesses, n_emitted=4 * n)
        made.observe(fast, emitted(7, 7, 7, 7), None)
    before = made.learned()
    assert made.accounts.speed > 2
    begin(made)
    for n in range(60):
        grow(made, n_emitted=n)
        made.observe(PLAIN, emitted(7), None)
    assert made.learned() == before
    assert made.costs.plain.n >= 60  # but how long a plain step takes
