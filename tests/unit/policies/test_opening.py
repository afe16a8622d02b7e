"""The growth of a draft from given guesses, at given times and prices: no policy, no clock."""

import pytest

from edgespec import SamplingParams
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.decoding.drafting import Drafting
from edgespec.drafters.base import NOWHERE, Role
from edgespec.policies.base import Limits
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.types import NO_DRAFT, Budget
from tests.helpers.policies import OWN, Lookup, Model, emitted, grown, line, lookup


def grow(*drafters, slope=0.1, evaluation=0.05, price=1.0, max_leaves=8, matcher=None, **limits):
    """Return the growth of a draft where a plain step takes a second, another token `slope`, and a
    model's token `evaluation`.
    """
    costs = Costs(Profile(line(1.0, slope), line(evaluation, 0.0), 0.0))
    given = Limits(limits.pop("nodes", 16), price, costs, **limits)
    budget = Budget(31, 100, 50, 400, max_leaves)
    return grown(given, *drafters, budget=budget, matcher=matcher)


def paths(draft):
    """Return the paths of a draft's nodes, each in its place."""
    found = {-1: ()}
    for i, token in enumerate(draft.tokens):
        parent = draft.parents[i] if draft.parents else i - 1
        found[i] = (*found[parent], token)
    return [found[i] for i in range(len(draft.tokens))]


TREE = {(): [(1, 0.5), (2, 0.3)], (1,): [(3, 0.8)], (2,): [(4, 0.9), (5, 0.05)]}


def test_guesses_after_a_text_are_together_at_most_certain():
    draft = grow(*[lookup(0.9, first=10 * i) for i in range(6)], slope=0.0).draft
    assert draft.tokens == (0, 10)
    assert draft.expected == pytest.approx(0.9 + 0.8 * 0.1)  # the third has 0.8 of 0.02 left


class Ending(Lookup):
    """A lookup that is lost after its first token."""

    def step(self, state, token):
        assert state is not NOWHERE
        return NOWHERE

    def children(self, state, least=0.0):
        assert state is not NOWHERE
        return super().children(state)


def test_a_lookup_that_is_nowhere_is_not_asked():
    draft = grow(Ending({(): [(0, 0.9)], (0,): [(1, 0.9)]}), lookup(0.9, 0.8)).draft
    assert paths(draft) == [(0,), (0, 1)]
    assert paths(grow(Ending(TREE)).draft) == [(1,), (2,)]


class Form:
    """A form of which one token is no part after another one."""

    def allows(self, token, ahead=()):
        return (token, *ahead) != (3, 1)


def test_what_a_form_refuses_is_not_drafted():
    assert paths(grow(Lookup(TREE), matcher=Form()).draft) == [(1,), (2,), (2, 4)]


def test_what_drafts_have_to_be():
    assert grow(lookup(0.9, 0.8), at_least=3).draft == NO_DRAFT
    assert len(grow(lookup(0.9, 0.8), at_least=2).draft.tokens) == 2
    assert grow(lookup(0.9, 0.5, 0.4), p_min=0.45).draft.tokens == (0, 1)
    assert grow(lookup(0.9, 0.8), Model(0.99), lookups_only=True).draft.tokens == (0, 1)
    assert grow(Model(0.99), lookups_only=True).draft == NO_DRAFT


def test_a_fixed_depth_is_drafted_whatever_it_costs():
    def n(policy, *drafters, limit=31):
        budget = Budget(limit, max_leaves=8)
        return len(grown(policy.limits(budget), *drafters, budget=budget).draft.tokens)

    assert n(FixedDepth(4), Model(0.01, 0.01)) == 4
    assert n(FixedDepth(4), Model(0.01, 0.01), limit=3) == 3
    assert n(FixedDepth(4, 3), lookup(0.9, 0.8)) == 0
    assert n(FixedDepth(4, 2), lookup(0.9, 0.8)) == 2
    assert n(FixedDepth(4, p_min=0.85), lookup(0.9, 0.8)) == 1
    assert n(FixedDepth(8), Lookup(TREE)) == 2  # a chain
    assert n(FixedDepth(8, max_leaves=8), Lookup(TREE)) == 5


def test_a_draft_model_is_opened_after_what_is_drafted_not_after_what_is_guessed():
    model = Model(0.9, 0.8)
    draft = grow(lookup(0.95, 0.9, 0.25), model, price=3.0, evaluation=0.05).draft
    assert model.expanded[0] == (0, 1)  # the third guess is worth less than 0.3
    assert draft.tokens[:3] == (0, 1, OWN)


def test_a_node_that_is_less_likely_waits_for_a_call_of_its_own():
    model = Model(0.6, 0.8, n_choices=2, together=3, max_leaves=8)
    grow(model, slope=0.1, evaluation=0.01)  # the second choice promises 0.19 and costs 0.1
    assert model.n_calls == len(model.expanded) > 3
    assert any(state[0] == OWN + 1 for state in model.expanded[1:])


def test_matched_guesses_may_follow_a_drawn_token():
    after = Lookup({(OWN,): [(7, 0.9)]})
    draft = grow(Model(0.9, 0.0, draws=True), after, slope=0.1).draft
    assert draft.tokens == (OWN, 7)
    assert [(q.ids, q.probs) for q in draft.probs] == [([OWN], [1.0]), ([7], [1.0])]


@pytest.mark.parametrize(("prob", "loss", "n"), [
    (0.99, 0.079, 1), (0.99, 0.081, 2),  # as if it failed in 40 of 100 cases: 0.08 are at stake
    (0.3, 0.139, 1), (0.3, 0.141, 2),  # it fails in 70 cases
])  # fmt: skip
def test_what_may_be_lost_is_weighed_with_the_chance_of_failure(prob, loss, n):
    assert len(grow(lookup(prob, prob - 0.01), loss=loss).draft.tokens) == n


class Spying(Lookup):
    """A lookup that notes what a session tells it."""

    def __init__(self, after, **options):
        super().__init__(after, **options)
        self.told = []

    def begin(self, request, role):
        self.told.append(role)

    def accept(self, verified):
        self.told.append(verified.tokens)


class Roles(FixedDepth):
    def begin(self, request, drafters):
        self.roles = (Role.OFF, Role.DRAWN, Role.MATCHED)


def test_a_session_leaves_drafters_without_a_role_alone_and_asks_likely_ones_first():
    off, wide, likely = Spying(TREE), Spying(TREE, wide=True), Spying(TREE)
    drafting = Drafting([off, wide, likely], Roles(4))
    drafting.begin(Request([1], SamplingParams(), None))
    growth = drafting.grow(Budget(8))
    assert growth.draft.source == "suffix"
    drafting.accept(emitted(1, 3))
    assert off.told == []
    assert off.asked == 0 < wide.asked
    assert (wide.told, likely.told) == ([Role.DRAWN, (1, 3)], [Role.MATCHED, (1, 3)])
    assert drafting._lookups == [likely, wide]
