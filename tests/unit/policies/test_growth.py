"""Growth of a draft: where a model is opened, what is evaluated and drawn, and what it costs."""

import functools

import numpy as np
import pytest

from edgespec import SamplingParams, ToyModel, ToyTokenizer
from edgespec.decoding.drafting import Drafting
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.base import Role
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.policies.base import Limits
from edgespec.policies.fixed import FixedDepth
from edgespec.policies.worth import Worth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import Budget, Draft, Stats, Verified, Work
from edgespec.verifiers.local import LocalVerifier
from tests.helpers.enumeration import law, total_variation
from tests.helpers.growing import HALF, Table, TableModel, begin, costs, grow, said, texts

LINE = {t: {t + 1: 0.8} for t in range(1, 40)}
TREE = {t: {t + 1: 0.6, t + 20: 0.3} for t in range(1, 60)}
CHEAP = {"price": 1.0, "costs": costs([1.0, 1.01], 0.01, 0.001)}


def first(*probs):
    """Return a table of a chain 1, 2, 3, … with these probabilities."""
    return {i: {i + 1: prob} for i, prob in enumerate(probs, start=1)}


def onehot(q, token):
    return (q.ids, q.probs) == ([token], [1.0])


# Free guesses


def test_free_guesses_end_where_they_gain_most():
    """Each costs 0.5 tokens, but the third none."""
    found = costs([1.0, 1.5, 2.0, 2.0, 2.5])
    lookup = Table(first(0.9, 0.7, 0.1, 0.9))
    assert len(grow([lookup], price=1.0, costs=found).draft.tokens) == 3
    assert len(grow([lookup], price=1.6, costs=found).draft.tokens) == 1
    assert len(grow([lookup], price=2.0, costs=found).draft.tokens) == 0


def test_free_guesses_that_gain_too_little_are_not_drafted():
    found = costs([1.0, 1.5])
    for margin, n in ((0.3, 1), (0.5, 0)):
        growth = grow([Table(first(0.9))], price=1.0, costs=found, margin=margin)
        assert len(growth.draft.tokens) == n
    assert growth.reason == "drafts too unsure"


def test_free_guesses_that_only_the_loss_budget_forbids_are_told():
    found = costs([1.0, 1.5, 2.0])
    lookup = Table(first(0.9, 0.9))
    growth = grow([lookup], price=1.0, costs=found, loss=0.1)
    assert growth.draft.tokens == ()
    assert growth.forbidden.draft.tokens == (2, 3)
    assert growth.forbidden.cost == pytest.approx(1.0)
    assert grow([lookup], price=1.0, costs=found).forbidden is None


FOURS = [1.0, 1.4, 1.8, 1.5, 2.1, 2.2, 2.6, 2.4]


def test_rows_that_cost_nothing_are_guesses_if_there_are_any_else_filled():
    found = costs(FOURS)
    found.fills = True
    for probs, n, n_filled in (
        ((0.9, 0.8, 0.03), 3, 0), ((0.9, 0.8), 2, 1), ((0.3,), 0, 0), ((0.9,), 1, 0),
        ((0.9, 0.9, 0.9, 0.9, 0.9, 0.9), 6, 1),
    ):  # fmt: skip
        draft = grow([Table(first(*probs))], price=1.0, costs=found).draft
        assert (len(draft.tokens), draft.n_filled) == (n, n_filled)


def test_rows_are_filled_only_where_that_is_allowed_and_saves_time():
    found = costs(FOURS)
    assert found.target(0)[1:5] == pytest.approx([1.0, 1.4, 1.8, 1.5])
    assert grow([Table(first(0.9, 0.9))], price=0.5, costs=found).draft.n_filled == 0
    nearly = costs([1.0, 1.4, 1.52, 1.5])  # noise, by which nothing is saved
    nearly.fills = True
    assert grow([Table(first(0.9, 0.9))], price=0.5, costs=nearly).draft.n_filled == 0


@pytest.mark.parametrize(("n", "expected"), [(0, 3), (1, 2), (2, 4), (3, 4)])
def test_nodes_that_gain_most_after_others(n, expected):
    """A row costs 0.1 tokens, and the fourth 0.6."""
    found = costs([1.0, 2.0, 3.0, 4.0, 10.0, 11.0, 12.0, 13.0])
    worth = Worth(Limits(8, 0.1, found), Budget(8))
    assert worth.n_best([0.5, 0.4, 0.3, 0.25, 0.05], n) == expected


# Where a model is opened


def test_lookups_continue_a_chain_of_a_model():
    """After 4 the model says nothing."""
    model, lookup = TableModel(first(0.9, 0.9, 0.9), sure=0.9), Table({4: {5: 0.9}, 5: {6: 0.9}})
    draft = grow([lookup], [model]).draft
    assert draft.tokens == (2, 3, 4, 5, 6)
    assert draft.source == "model+table"
    assert draft.evaluated == tuple(Work(1, 9 + i) for i in range(4))


def test_a_model_continues_the_likeliest_path_of_lookups():
    """Here the path's end is not at the other guess, which is drafted as well."""
    lookup = Table({1: {2: 0.8, 30: 0.1}, 2: {3: 0.8}}, name="lookup")
    model = TableModel({3: {4: 0.9}, 4: {5: 0.9}, 1: {9: 0.9}}, sure=0.5)
    draft = grow([lookup], [model], nodes=5).draft
    assert texts(draft) == [(2,), (2, 3), (2, 3, 4), (2, 3, 4, 5), (30,)]
    assert draft.source == "model+lookup"
    assert model.calls[0] == [(2, 3)]


def test_a_model_leads_and_lookups_are_drafted_with_it():
    lookup = Table({1: {5: 0.3, 2: 0.1}, 5: {6: 0.9}}, name="lookup")
    draft = grow([lookup], [TableModel({1: {2: 0.6}}, n_choices=2)]).draft
    assert texts(draft) == [(2,), (5,), (5, 6)]
    assert draft.expected == pytest.approx(0.6 + 0.4 * 0.3 * (1 + 0.9))


def test_the_model_that_promises_most_is_opened():
    dull, sharp = TableModel(LINE, sure=0.3, rate=0.3), TableModel(LINE, sure=0.9, rate=0.9)
    grow([], [dull, sharp], nodes=3)
    assert (len(dull.calls), len(sharp.calls)) == (0, 3)


def test_a_model_that_cannot_read_is_left_alone():
    model = TableModel(LINE)
    model.readable = False
    growth = grow([Table(first(0.9))], [model])
    assert (growth.draft.tokens, model.calls) == ((2,), [])


def test_a_model_is_not_opened_where_that_is_forbidden():
    model = TableModel(LINE)
    assert grow([], [model], lookups_only=True).draft.tokens == ()
    assert grow([], [model], paused=True).draft.tokens == ()
    assert model.log == []
    assert grow([Table(first(0.9))], [model], nodes=4, paused=True).draft.tokens == (2, 3, 4, 5)


def test_a_model_that_is_too_slow_is_not_opened():
    found = costs([1.0, 1.1], 9.0)
    growth = grow([], [TableModel(LINE, sure=0.99, rate=0.99)], price=1.0, costs=found)
    assert (growth.draft.tokens, growth.reason, growth.idle) == ((), "draft too slow", True)


def test_a_model_whose_costs_are_unknown_is_not_opened():
    growth = grow([], [TableModel(LINE)], price=1.0, costs=costs([1.0, 1.1]))
    assert (growth.draft.tokens, growth.reason) == ((), "costs are not measured yet")


def test_a_model_that_would_lose_is_tried_within_the_exploration_budget():
    """What it may lose is told, and what it then says counts."""
    options = {"price": 1.0, "costs": costs([1.0, 1.2], 0.2)}
    growth = grow([], [TableModel(LINE, sure=0.1)], nodes=4, **options)
    assert (growth.draft.tokens, growth.reason) == ((), "drafts too unsure")
    growth = grow([], [TableModel(LINE, sure=0.1)], nodes=4, explore=1.0, **options)
    assert growth.draft.tokens[:2] == (2, 3)
    assert 0 < growth.explored <= 1.0


@pytest.mark.parametrize(
    ("n_ahead", "recurring", "opened"), [(1000, 0, True), (2, 0, False), (1000, 50, False)]
)
def test_reading_a_text_is_spread_over_the_steps_to_come(n_ahead, recurring, opened):
    """It is not spread if as much has to be read before each draft."""
    model = TableModel(LINE, n_unread=50)
    limits = {"n_ahead": n_ahead, "recurring": recurring}
    found = costs([1.0, 1.01], 0.01, 0.1)
    growth = grow([], [model], nodes=4, price=1.0, costs=found, **limits)
    assert bool(model.calls) == opened
    assert growth.reading_s == pytest.approx(4.9 if opened else 0)


def test_a_model_adds_no_more_than_may_be_lost():
    """Each token costs 0.5 of the target, and 0.1 of the model: 1.2 tokens are two."""
    options = {"price": 1.0, "costs": costs([1.0, 1.5], 0.1)}
    for loss, n in ((1.25, 2), (0.5, 0)):
        model = TableModel(first(*[1.0] * 9), sure=1.0, rate=1.0)
        assert len(grow([], [model], loss=loss, **options).draft.tokens) == n


# What is evaluated


def test_a_model_is_evaluated_along_its_line_up_to_the_limit():
    model = TableModel(LINE)
    draft = grow([], [model], nodes=4).draft
    assert draft.tokens == (2, 3, 4, 5)
    assert model.calls == [[()], [(2,)], [(2, 3)], [(2, 3, 4)]]
    assert draft.evaluated == tuple(Work(1, 9 + i) for i in range(4))


def test_evaluations_end_where_they_promise_less_than_they_cost():
    """Tokens are nothing for the target, and an evaluation costs a third of one."""
    options = {"price": 1.0, "costs": costs([1.0, 1.0001], 0.3)}
    model = TableModel(first(0.9, 0.9, 0.2, 0.9), rate=0.1)
    draft = grow([], [model], **options).draft
    assert len(model.calls) == 1
    assert draft.tokens == (2,)
    model = TableModel(first(0.9, 0.9, 0.05, 0.9), rate=0.9)
    assert grow([], [model], **options).draft.tokens == (2, 3, 4)
    assert len(model.calls) == 3


def test_nodes_of_a_model_that_are_not_worth_their_rows_are_cut():
    """The third takes as long as a hundred."""
    found = costs([1.0, 1.0, 1.0, 100.0, 101.0], 1e-6)
    model = TableModel(TREE, n_choices=2, together=4, max_leaves=9)
    assert len(grow([], [model], price=1.0, costs=found).draft.tokens) == 2


def test_the_likeliest_node_is_evaluated_next_wherever_it_is():
    table = {1: {2: 0.5, 3: 0.4}, 2: {4: 0.1}, 3: {5: 0.9}, 5: {6: 0.9}}
    model = TableModel(table, n_choices=2, max_leaves=9)
    grow([], [model], nodes=5)
    assert model.calls == [[()], [(2,)], [(3,)], [(3, 5)], [(3, 5, 6)]]


@pytest.mark.parametrize(("more_s", "several"), [(0.0001, True), (40.0, False)])
def test_nodes_are_evaluated_together_where_that_takes_hardly_longer(more_s, several):
    model = TableModel(TREE, n_choices=2, together=4, max_leaves=31)
    grow([], [model], nodes=12, price=0.02, costs=costs([1.0, 1.01], 0.2, more_s))
    assert (max(map(len, model.calls)) > 1) == several


def test_no_more_leaves_are_evaluated_than_a_model_can_hold():
    model = TableModel(TREE, n_choices=2, max_leaves=3)
    grow([], [model], nodes=24)
    paths = {path for call in model.calls for path in call}
    assert len(paths - {path[:-1] for path in paths}) == 3


def test_a_model_is_evaluated_no_deeper_than_it_guesses():
    model = TableModel(LINE, max_depth=3)
    assert grow([], [model]).draft.tokens == (2, 3, 4)
    assert len(model.calls) == 3


def test_what_was_evaluated_before_costs_nothing():
    """It says a chain and its own end is opened: no work is counted, and none is done twice."""
    model = TableModel(LINE, known=[(), (2,), (2, 3)])
    growth = grow([], [model], paused=True, **CHEAP)
    assert growth.draft.tokens[:3] == (2, 3, 4)
    assert (model.calls or [[(2, 3, 4)]])[0] == [(2, 3, 4)]
    hopeless = TableModel(LINE, known=[(), (2,), (2, 3)])
    growth = grow([], [hopeless], price=1.0, costs=costs([1.0, 1.01], 9.0))
    assert (growth.draft.tokens, growth.draft.evaluated) == ((2, 3, 4), ())


# Tokens that are drawn


def test_a_drawn_chain_and_what_it_was_drawn_from():
    model = TableModel(LINE, drawn=[1, 2, 1])
    draft = grow([], [model], nodes=3).draft
    assert (draft.tokens, draft.parents, draft.probs) == ((1, 2, 1), (), (HALF,) * 3)


def test_whether_a_token_is_drawn_is_decided_before():
    """A token is drawn only where the chance of its row pays, whatever it is then."""
    model = TableModel({1: {0: 0.9}, 2: {0: 0.1}, 9: {0: 0.9}}, drawn=[2, 5])
    options = {"price": 1.0, "costs": costs([1.0, 1.5], 0.001)}
    draft = grow([], [model], **options).draft
    assert draft.tokens == (2,)
    assert model.log == [("expand", ()), ("draw", ()), ("expand", (2,))]
    model = TableModel({1: {0: 0.9}, 2: {0: 0.9}, 9: {0: 0.1}}, drawn=[9, 5], rate=0.9)
    assert grow([], [model], **options).draft.tokens == (9,)


def test_what_was_drawn_stays_whatever_came():
    """After a drawn token nothing is said: the token itself stays, unlikely as it is; so do the
    lookups' nodes before it.
    """
    steps = costs([1.0, 1.01, 1.02, 1.03, 1.04, 50.0], 0.001)
    lookup = Table(first(0.9, 0.9))
    for drawn in (7, 8):
        model = TableModel({3: {0: 0.3}, 7: {0: 0.9}}, drawn=[drawn, 7], sure=0.3)
        draft = grow([lookup], [model], price=1.0, costs=steps, nodes=3).draft
        assert draft.tokens == (2, 3, drawn)
        assert onehot(draft.probs[0], 2)
        assert onehot(draft.probs[1], 3)
        assert draft.probs[2] == HALF


@pytest.mark.parametrize(("drawn", "tokens"), [([7], (7,)), ([], ())])
def test_no_later_cut_removes_a_drawn_token(drawn, tokens):
    """The first row promises seven tokens for the price of one. The second says nothing, and the
    token by itself is not worth its row: a matched one is cut.
    """
    found = costs([1.0, 1.7, 1.75], 0.001)
    model = TableModel({1: {7: 0.6}, 7: {8: 0.0001}}, drawn=[*drawn, *drawn], rate=0.99)
    draft = grow([], [model], price=1.0, costs=found).draft
    assert draft.tokens == tokens
    assert len(model.calls) == 2


def test_no_sibling_is_drafted_next_to_a_drawn_token():
    """Lookups guess 5 after the text, and 6 after what was drawn."""
    lookup = Table({1: {5: 0.3}, 2: {6: 0.9}}, name="lookup")
    draft = grow([lookup], [TableModel({1: {0: 0.9}}, drawn=[2], n_choices=2)]).draft
    assert texts(draft) == [(2,), (2, 6)]
    assert draft.probs[0] == HALF
    assert onehot(draft.probs[1], 6)


def test_a_drawn_token_that_lookups_guess_too_is_drawn_nevertheless():
    lookup = Table({1: {2: 0.5}}, name="lookup")
    draft = grow([lookup], [TableModel({1: {0: 0.4}}, drawn=[2], sure=0.99, n_choices=2)]).draft
    assert (draft.tokens, draft.probs) == ((2,), (HALF,))
    assert draft.source == "model"


def test_where_a_token_is_not_drawn_lookups_may_be_matched():
    lookup = Table({1: {2: 0.7, 5: 0.2}}, name="lookup")
    options = {"price": 1.0, "costs": costs([1.0, 1.1], 0.001)}
    model = TableModel({1: {0: 0.08}}, drawn=[2], sure=0.9, n_choices=2)
    draft = grow([lookup], [model], **options).draft
    assert texts(draft) == [(2,), (5,)]
    assert (draft.probs, draft.expected) == (None, pytest.approx(0.9))
    assert ("draw", ()) not in model.log


def test_masks_leave_drawn_tokens_alone():
    """The sampler masks the row before it is drawn from; only other guesses are filtered."""

    class Never:
        def allows(self, token, ahead=()):
            return False

    model = TableModel(LINE, drawn=[2, 3])
    draft = grow([Table({3: {4: 0.9}})], [model], nodes=2, matcher=Never()).draft
    assert (draft.tokens, len(draft.probs)) == ((2, 3), 2)
    matched = grow([], [TableModel(LINE)], nodes=2, matcher=Never()).draft
    assert matched.tokens == ()


def test_a_limit_of_leaves_leaves_drawn_tokens_alone():
    lookup = Table({1: {5: 0.9, 6: 0.08}, 6: {7: 0.9}}, name="lookup")
    model = TableModel({5: {0: 0.3}}, drawn=[2], sure=0.99)
    draft = grow([lookup], [model], leaves=1).draft
    assert (draft.tokens, draft.probs[1]) == ((5, 2), HALF)


@pytest.mark.parametrize("p_min", [0.0, 0.7, 0.95])
def test_p_min_is_decided_before_drawing(p_min):
    """A row that is not sure enough is not drawn from: no number is taken."""

    class Numbers(SeededRandomness):
        n_drawn = 0

        def draw(self, distribution):
            self.n_drawn += 1
            return super().draw(distribution)

    table = np.full((5, 5), 0.05)
    table[np.arange(5), (np.arange(5) + 1) % 5] = 0.8
    model, numbers = ModelDrafter(ToyModel(table), 5, p_min=p_min), Numbers(3)
    params = SamplingParams(temperature=1.0)
    begin(model, [0, 1], params, role=Role.DRAWN, randomness=numbers)
    draft = grow([], [model], nodes=3, p_min=p_min).draft
    assert len(draft.tokens) == numbers.n_drawn == (3 if p_min < 0.8 else 0)


def test_a_model_draws_from_the_row_that_its_sampler_leaves():
    table = np.full((5, 5), 0.2)
    model = ModelDrafter(ToyModel(table), 5)
    params = SamplingParams(temperature=1.0, logit_bias={3: -100.0}, top_k=2)
    begin(model, [0, 1], params, role=Role.DRAWN, randomness=SeededRandomness(3))
    draft = grow([], [model], nodes=4).draft
    for token, q in zip(draft.tokens, draft.probs, strict=True):
        assert q.prob(token) == pytest.approx(0.5)
        assert 3 not in q.ids


def test_a_row_that_was_drawn_from_is_not_used_again():
    """The text went on through drawn tokens, and the rows after them are evaluated anew."""
    model = ModelDrafter(ToyModel(np.full((5, 5), 0.2)), 5)
    params = SamplingParams(temperature=1.0)
    begin(model, [0, 1], params, role=Role.DRAWN, randomness=SeededRandomness(3))
    first = grow([], [model], nodes=3).draft
    model.accept(Verified(first.tokens[:2]))
    again = grow([], [model], nodes=3).draft
    assert (len(again.tokens), len(again.probs)) == (3, 3)
    assert len(again.evaluated) == 3


# Drafting ahead


def counting(top_k=2):
    """Return a draft model that counts on, 0.98 sure."""
    table = np.eye(32)[[*range(1, 32), 0]] * 0.98 + 0.02 / 32
    return ModelDrafter(ToyModel(table), 32, acceptance="coupled", top_k=top_k)


def ahead_of(model, draft, most=4, until=lambda: False, prompt=(0, 1, 2)):
    """Let a model draft ahead of a draft that is under way, and return the loop's part."""
    drafting = Drafting([model], FixedDepth(8, max_leaves=31))
    params = SamplingParams(temperature=1.0, seed=3)
    drafting.begin(Request(prompt, params, SeededRandomness(3)))
    drafting.grow_ahead(draft, most, until)
    return drafting


@pytest.mark.parametrize(("parents", "path"), [
    ((), (5, 6, 7)), ((-1, 0, 0), (5, 6)), ((-1, -1, 1), (5,)),
])  # fmt: skip
def test_ahead_of_a_chain_and_of_a_trees_first_path(parents, path):
    model = TableModel({7: {9: 0.9}, 6: {9: 0.9}, 5: {9: 0.9}})
    ahead_of(model, Draft((5, 6, 7), parents=parents))
    assert model.calls == [[path], [(*path, 9)]]


def test_ahead_of_a_draft_no_more_is_evaluated_than_asked_for():
    for most in (0, 2):
        model = TableModel(LINE)
        ahead_of(model, Draft((2,)), most)
        assert len(model.calls) == most + 1
    model = TableModel(LINE)
    answers = iter([False, False, True])
    ahead_of(model, Draft((2,)), 9, lambda: next(answers))
    assert len(model.calls) == 2


def test_nothing_is_drawn_ahead():
    model = TableModel(LINE, drawn=[2, 3])
    ahead_of(model, Draft((2,)))
    assert "draw" not in [what for what, _ in model.log]


def test_rows_that_were_evaluated_ahead_are_valid_after_the_draft_was_accepted():
    """They cost no work, and are what the model says of the text."""
    model, fresh = counting(), counting()
    drafting = ahead_of(model, Draft((3, 4)), 3)
    before = model._model.n_evaluated
    drafting.accept(Verified((3, 4, 5)))
    growth = drafting.grow(Budget(3, 6))
    assert model._model.n_evaluated == before
    assert growth.draft.tokens == (6, 7, 8)
    assert growth.draft.evaluated == ()
    ahead_of(fresh, Draft(), 0, lambda: True, prompt=(0, 1, 2, 3, 4, 5))
    assert [token for token, _ in said(model)] == [token for token, _ in said(fresh)]


def test_rows_that_were_evaluated_ahead_of_another_text_are_forgotten():
    model = counting()
    drafting = ahead_of(model, Draft((3, 4)), 3)
    drafting.accept(Verified((3, 9)))
    assert model.work([model.root()]).n_tokens >= 1
    assert drafting.grow(Budget(3, 5)).draft.tokens[0] == 10


@pytest.mark.parametrize("top_k", [1, 2])
def test_growth_goes_on_from_what_was_evaluated_ahead(top_k):
    """What it has of a tree after the text is gone, but for its rows."""
    model = counting(top_k)
    drafting = ahead_of(model, Draft((3, 4)), 2)
    drafting.accept(Verified((3, 4, 5)))
    draft = drafting.grow(Budget(8, 6)).draft
    assert len(draft.tokens) == 8
    assert draft.evaluated[0].n_tokens == top_k


def test_it_learns_as_much_where_it_drafts_ahead():
    here, there = counting(), counting()
    for emitted in ((5,), (3, 5), (3, 4, 5, 9)):
        loops = [ahead_of(model, Draft(), 0, lambda: True) for model in (here, there)]
        drafts = [loop.grow(Budget(4, 3)).draft for loop in loops]
        assert drafts[0] == drafts[1]
        loops[1].grow_ahead(drafts[1], 4, lambda: False)
        for loop in loops:
            loop.accept(Verified(emitted))
        assert here.learned() == there.learned()


# The law of the text


@functools.cache
def law_of(kind, seed, price=0.0):
    """Return the exact law of an answer of three tokens. kind: what drafts for it."""

    def probs(n):
        rng = np.random.default_rng(n)
        return ToyModel(rng.dirichlet([0.8, 0.8, 0.8], size=3))

    def run(chance):
        model = ModelDrafter(probs(2 + seed), 3, top_k=2)
        lookups = [SuffixDrafter(1), Table({0: {1: 0.6, 2: 0.3}, 1: {1: 0.5}}, last=1)]
        drafters = {"plain": [], "model": [model]}.get(kind, [*lookups, model])
        policy = InRole(Role.DRAWN if kind != "matched" else Role.MATCHED, price)
        request = Request([0, 1, 0, 1], SamplingParams(temperature=1.0, max_tokens=3), chance)
        output = Output(ToyTokenizer("abc"), request.params)
        session = Session(LocalVerifier(probs(1 + seed)), drafters, policy)
        list(session.generate(request, output, Stats()))
        return tuple(output.token_ids)

    return law(run)


class InRole(FixedDepth):
    """Drafts trees of three nodes, all drafters in one role; at a price above 0, what pays."""

    def __init__(self, role, price):
        super().__init__(3, max_leaves=31)
        self._role = role
        self._limits = self._limits._replace(price=price, costs=costs([1.0, 1.3], 0.01))

    def begin(self, request, drafters):
        self.roles = (self._role,) * len(drafters)


@pytest.mark.parametrize("price", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["model", "drawn", "matched"])
def test_the_law_of_the_text_is_that_of_plain_decoding(kind, price):
    for seed in range(3):
        assert total_variation(law_of(kind, seed, price), law_of("plain", seed)) <= 1e-12
