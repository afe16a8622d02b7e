"""Trees of a draft model's own choices, on the toy backend: which nodes, at what cost, and what is
learned from them.
"""

import itertools

import numpy as np
import pytest

from edgespec import ConfigError, SamplingParams, SpeculativeConfig, ToyModel, drafters
from edgespec.drafters.ahead import AheadDrafter
from edgespec.drafters.base import DrafterContext
from edgespec.drafters.cascade import Cascade
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.model_tree import ModelTreeDrafter, TreeOptions
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.sampling.trees import depths_of, path_to
from edgespec.types import Draft, Thresholds, Verified

N = 16
PROMPT = [0, 1, 2]
SHOW = Thresholds((0.0,), (0.0,))  # nothing ends a draft, but how sure it is counts
GREEDY, COUPLED = SamplingParams(), SamplingParams(temperature=1.0, seed=7)
DRAWN = SamplingParams(temperature=1.0)


def three_ways(tokens):
    """Behind t come t + 1, t + 2 and t + 3 with falling probabilities; behind odd ones it is less
    sure.
    """
    first, second, third = (0.4, 0.3, 0.2) if tokens[-1] % 2 else (0.8, 0.12, 0.05)
    row = np.full(N, (1 - first - second - third) / (N - 3))
    for step, prob in enumerate((first, second, third), start=1):
        row[(tokens[-1] + step) % N] = prob
    return row


class Costs:
    """Evaluations of one second, and `more_s` for each token beside the first."""

    draft_token_s = 1.0
    known = True
    won_by_head = 0.0
    further_s = 1.0

    def __init__(self, more_s, least=0.0):
        self.more_s, self._least = more_s, [least]

    def least(self, n_past):
        return self._least

    def draft(self, n, n_past):
        return 1.0 + self.more_s * (n - 1)


def made(top_k=3, params=GREEDY, max_leaves=31, truncate=True, **options):
    model = ToyModel(three_ways, vocab_size=N, truncate=truncate)
    drafter = ModelTreeDrafter(model, N, TreeOptions(top_k, max_leaves), **options)
    drafter.model = model
    drafter.begin(Request(PROMPT, params, SeededRandomness(params.seed)))
    return drafter


def texts(draft):
    """Return the drafted text that ends with each node."""
    parents = draft.parents or range(-1, len(draft.tokens) - 1)
    paths = [path_to(parents, node) for node in range(len(draft.tokens))]
    return [tuple(draft.tokens[i] for i in path) for path in paths]


def test_one_choice_is_a_chain_and_drafts_as_one():
    chain = ModelDrafter(ToyModel(three_ways, vocab_size=N), N)
    chain.begin(Request(PROMPT, GREEDY, None))
    assert made(1).propose(PROMPT, 5, SHOW) == chain.propose(PROMPT, 5, SHOW)


@pytest.mark.parametrize("params", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_other_choices_are_siblings_and_cost_no_evaluation(n, params):
    drafter = made(2, params, truncate=False)  # it cannot grow: it is evaluated along one line
    draft = drafter.propose(PROMPT, n, SHOW)
    assert len(draft.tokens) == n
    assert draft.evaluated == (3, *(1,) * (n - 1))
    assert drafter.model.n_evaluated == 2 + n
    if n == 8:
        assert len(draft.parents) == 8
        assert len(set(texts(draft))) == 8


def test_a_tree_is_of_the_likeliest_tokens_of_each_row():
    draft = made(2).propose(PROMPT, 12, SHOW)
    for text in texts(draft):
        line = [*PROMPT, *text]
        assert all((b - a) % N in (1, 2) for a, b in itertools.pairwise(line[2:]))
    assert any(draft.parents.count(parent) == 2 for parent in range(12))


@pytest.mark.parametrize("head", [(), (9, 4)], ids=["alone", "behind another's draft"])
def test_coupled_siblings_win_their_races_first(head):
    context = [*PROMPT, *head]
    draft = made(3, COUPLED).propose(context, 12, SHOW)
    randomness = SeededRandomness(COUPLED.seed)
    depths = depths_of(draft.parents)
    for node, text in enumerate(texts(draft)):
        sampler = made(3, COUPLED)._sampler
        row = np.log(three_ways([*context, *text[:-1]]))
        position = len(context) + depths[node] - 1
        races = randomness.smallest(position, sampler.distribution(row), 3)
        assert text[-1] in [token for token, _ in races]
    assert len(set(draft.parents)) < 12
    assert draft.probs is None


@pytest.mark.parametrize("options", [{"acceptance": "rejection"}, {"costs": Costs(0.0, least=0.2)}])
def test_where_tokens_are_drawn_it_drafts_chains(options):
    draft = made(3, DRAWN, **options).propose(PROMPT, 6, SHOW)
    assert (len(draft.tokens), draft.parents, len(draft.probs)) == (6, (), 6)


def test_a_tree_is_the_same_at_every_temperature():
    assert made(3, DRAWN).propose(PROMPT, 8, SHOW) == made(3).propose(PROMPT, 8, SHOW)


def test_the_likeliest_node_is_evaluated_next_wherever_it_is():
    """Behind 3 it is unsure, so what follows its second choice at the root comes early."""
    drafter = made(2)
    drafter.propose(PROMPT, 10, SHOW)
    tree = drafter._tree
    evaluated = [tree.probs[node] for node in tree.evaluated]
    assert evaluated == sorted(evaluated, reverse=True)
    rest = set(range(len(tree.tokens))) - set(tree.evaluated)
    assert max(tree.probs[node] for node in rest) <= min(evaluated)


@pytest.mark.parametrize(("more_s", "several"), [(0.0, True), (1.0, False)])
def test_nodes_are_evaluated_together_where_that_takes_hardly_longer(more_s, several):
    thresholds = Thresholds((0.0,), (0.0,), price=0.02, seconds=[1.0 + i / 100 for i in range(40)])
    draft = made(costs=Costs(40 * more_s)).propose(PROMPT, 12, thresholds)
    assert (max(draft.evaluated[1:]) > 1) == several


@pytest.mark.parametrize("n_free", [3, 6])
def test_only_nodes_that_are_worth_their_rows_are_drafted(n_free):
    seconds = [1.0] * (n_free + 1) + [100.0] * 40
    thresholds = Thresholds((0.0,), (0.0,), price=1.0, seconds=seconds)
    assert len(made().propose(PROMPT, 12, thresholds).tokens) == n_free


@pytest.mark.parametrize(("least", "tree"), [(0.05, True), (0.2, False)])
def test_it_drafts_chains_where_a_row_takes_long(least, tree):
    draft = made(costs=Costs(0.0, least)).propose(PROMPT, 8, SHOW)
    assert bool(draft.parents) == tree


@pytest.mark.parametrize("leaves", [2, 3])
def test_leaves_are_limited(leaves):
    draft = made(max_leaves=leaves).propose(PROMPT, 12, SHOW)
    assert len(draft.tokens) - len({p for p in draft.parents if p >= 0}) == leaves


def test_no_more_branches_than_the_model_can_hold():
    drafter = made(max_leaves=31)
    can = drafter.model.capabilities
    drafter.model.capabilities = type(can)(can.max_rows, can.max_batch, max_leaves=5)
    drafter.propose(PROMPT, 24, SHOW)
    assert drafter._tree.n_leaves == 2  # and up to four at a time would fit


@pytest.mark.parametrize("emitted", [[3, 4, 9], [4, 5, 9], [9], [3, 5, 6, 7, 8, 9, 10]])
def test_what_it_has_evaluated_of_the_text_is_not_evaluated_again(emitted):
    drafter = made(3)
    drafter.propose(PROMPT, 12, SHOW)
    n_seen = len(drafter._tree.follow(emitted)) - 1
    drafter.accept(Verified(tuple(emitted)))
    before, context = drafter.model.n_evaluated, [*PROMPT, *emitted]
    expected = max(1, len(emitted) - n_seen)
    assert drafter.propose(context, 1, SHOW).evaluated == (expected,)
    assert drafter.model.n_evaluated - before == expected


def test_it_learns_which_choice_comes_even_where_it_was_not_drafted():
    drafter, drafted = made(3), []
    for _ in range(60):
        drafter.begin(Request(PROMPT, GREEDY, None))
        drafted.append(drafter.propose(PROMPT, 2, SHOW).tokens)
        drafter.accept(Verified((5,)))  # the third choice behind 2
    assert drafted[0][0] == 3
    assert 5 in drafted[-1]


@pytest.mark.parametrize("emitted", [(8, 7, 3), (8,), (7,)])
def test_it_learns_nothing_behind_another_text(emitted):
    """It drafted behind 8 and 2, and the target went on from another path of that tree."""
    drafter = made(3)
    drafter.propose([*PROMPT, 8, 2], 6, SHOW)
    before = drafter.learned()
    drafter.accept(Verified(emitted))
    assert drafter.learned() == before
    context = [*PROMPT, *emitted]
    assert drafter.propose(context, 6, SHOW).tokens == made(3).propose(context, 6, SHOW).tokens


def test_penalties_count_what_another_drafted_before():
    params = SamplingParams(presence_penalty=9.0)
    draft = made(2, params).propose([*PROMPT, 5, 4], 2, SHOW)
    assert draft.tokens == (6, 7)  # and not 5 again


def test_unsure_rows_give_no_tokens():
    drafter = made(3, p_min=0.5)
    draft = drafter.propose(PROMPT, 12)
    assert all(token % 2 == 0 for text in texts(draft) for token in text[:-1])
    assert any(token % 2 for text in texts(draft) for token in text)


def test_lookup_continues_the_first_path():
    prompt = [3, 4, 5, 9, 8, 7, 1, 2]
    model, lookup = made(2, max_leaves=2), SuffixDrafter(2)
    for drafter in (model, lookup):
        drafter.begin(Request(prompt, GREEDY, None))
    draft = Cascade(model, lookup).propose(prompt, 12, Thresholds((0.0,), (0.0, 0.0, 0.0, 2.0)))
    depths_of(draft.parents)
    assert len(draft.tokens) == len(draft.parents)
    assert (3, 4, 5, 9) in texts(draft)
    assert draft.parents != tuple(range(-1, len(draft.tokens) - 1))


@pytest.mark.parametrize("limit", [4, 6, 7])
def test_siblings_give_way_to_what_lookup_knows(limit):
    """Seven more tokens are known behind 3, 4, 5: at most `limit` of all are drafted."""
    prompt = [3, 4, 5, 9, 8, 7, 1, 2]
    model, lookup = made(2), SuffixDrafter(2)
    for drafter in (model, lookup):
        drafter.begin(Request(prompt, GREEDY, None))
    stops = Thresholds((0.0,), (0.0, 0.0, 0.0, 2.0))
    assert model.propose(prompt, limit, stops).parents
    draft = Cascade(model, lookup).propose(prompt, limit, stops)
    line = (3, 4, 5, 9, 8, 7, 1)[:limit]
    assert line in texts(draft)
    assert len(draft.tokens) == limit


class Tree:
    """A drafter of the same tree at each step."""

    name = "tree"

    def propose(self, context, limit, thresholds):
        return Draft((1, 2, 3), "tree", acceptance_prob=0.5, parents=(-1, 0, -1))


def test_two_trees_have_no_more_leaves_than_one():
    draft = Cascade(Tree(), Tree()).propose(PROMPT, 9, SHOW)
    assert texts(draft) == [(1,), (1, 2), (1, 2, 1), (1, 2, 1, 2), (3,)]


@pytest.mark.parametrize(("n", "expected"), [(0, 3), (1, 2), (2, 4), (3, 4)])
def test_nodes_that_gain_most_behind_others(n, expected):
    """A row costs 0.1 tokens, and the fourth 0.6."""
    seconds = [0.0, 1.0, 2.0, 3.0, 9.0, 10.0, 11.0, 12.0, 13.0]
    thresholds = Thresholds(price=0.1, seconds=seconds)
    found = thresholds.n_gaining([0.5, 0.4, 0.3, 0.25, 0.05], n)
    assert found == expected


def test_a_tree_continues_what_lookup_drafts():
    prompt = [3, 4, 5, 1, 2, 3, 4]
    model, lookup = made(2), SuffixDrafter(2)
    for drafter in (model, lookup):
        drafter.begin(Request(prompt, GREEDY, None))
    draft = Cascade(lookup, model).propose(prompt, 9, Thresholds((0.0,) * 6 + (0.1,), (0.0,)))
    depths_of(draft.parents)
    known = [text for text in texts(draft) if len(text) == 1]
    assert known == [(5,)]
    assert len(draft.tokens) == len(set(texts(draft)))
    model.accept(Verified((5, 9)))
    assert model.propose([*prompt, 5, 9], 1, SHOW).evaluated[0] <= 2


def test_drafting_ahead_follows_the_first_path():
    model = made(2, acceptance="coupled")
    ahead = AheadDrafter(model)
    ahead.begin(Request(PROMPT, GREEDY, None))
    draft = ahead.propose(PROMPT, 6, SHOW)
    assert draft.parents
    path = max(texts(draft)[: draft.parents.index(-1, 1)], key=len)
    ahead.draft_ahead(PROMPT, draft, 4, lambda: False)
    emitted = (*path, (path[-1] + 1) % N)
    ahead.accept(Verified(emitted))
    after = ahead.propose([*PROMPT, *emitted], 6, SHOW)
    assert after.source == "ahead"
    assert after.tokens[0] == (emitted[-1] + 1) % N
    depths_of(after.parents or range(-1, len(after.tokens) - 1))


def ahead_of(model):
    """Return the drafter, and a draft whose end is found ahead: the draft before was accepted."""
    ahead = AheadDrafter(model)
    draft = ahead.propose(PROMPT, 6, SHOW)
    path = max(texts(draft)[: draft.parents.index(-1, 1)], key=len)
    ahead.draft_ahead(PROMPT, draft, 2, lambda: False)
    emitted = (*path, (path[-1] + 1) % N)
    ahead.accept(Verified(emitted))
    context = [*PROMPT, *emitted]
    return ahead, context, ahead.propose(context, 8, SHOW)


def hits_of_others(model):
    """Return how often tokens came that were not a row's likeliest."""
    outcomes = model.learned()["draft_model"]["outcomes"]
    return sum(hits for kind, hits, _ in outcomes if isinstance(kind, tuple))


def test_it_learns_as_much_while_it_drafts_ahead():
    here, there = made(3), made(3)
    ahead = AheadDrafter(there)
    for emitted in ((5,), (3, 5), (3, 4, 5, 9)):
        draft = here.propose(PROMPT, 8, SHOW)
        assert ahead.propose(PROMPT, 8, SHOW) == draft
        ahead.draft_ahead(PROMPT, draft, 4, lambda: False)
        for drafter in (here, ahead):
            drafter.accept(Verified(emitted))
            drafter.begin(Request(PROMPT, GREEDY, None))
        assert here.learned() == there.learned()


def test_it_learns_of_the_tree_behind_what_was_found_ahead():
    model = made(2, acceptance="coupled")
    ahead, _, draft = ahead_of(model)
    assert draft.source == "ahead"
    assert draft.parents[:2] == (-1, 0)
    before = hits_of_others(model)
    ahead.accept(Verified((*draft.tokens[:2], (draft.tokens[1] + 2) % N)))  # the second choice
    assert hits_of_others(model) == before + 1


def test_ahead_of_a_tree_behind_what_was_found_ahead_it_reads_nothing_twice():
    model = made(2, acceptance="coupled")
    ahead, context, draft = ahead_of(model)
    assert -1 not in draft.parents[1:]
    before = model.model.n_evaluated
    ahead.draft_ahead(context, draft, 3, lambda: False)
    assert model.model.n_evaluated - before == 4


@pytest.mark.parametrize("top_k", [0, 9, "2", 1.5])
def test_impossible_options(top_k):
    config = SpeculativeConfig("draft_model", options={"top_k": top_k})
    toy = ToyModel(three_ways, vocab_size=N)
    with pytest.raises(ConfigError, match="top_k must be 1 to 8"):
        drafters.make([drafters.entry("draft_model")], DrafterContext(config, N, toy, None, toy))


@pytest.mark.parametrize(("top_k", "truncate", "tree"), [(2, True, True), (1, True, False),
                                                         (2, False, False)])  # fmt: skip
def test_trees_are_drafted_where_the_target_takes_them(top_k, truncate, tree):
    config = SpeculativeConfig("draft_model", options={"top_k": top_k})
    target = ToyModel(three_ways, vocab_size=N, truncate=truncate)
    draft_model = ToyModel(three_ways, vocab_size=N)
    context = DrafterContext(config, N, target, None, draft_model)
    drafter = drafters.make([drafters.entry("draft_model")], context)[0]
    drafter.begin(Request(PROMPT, GREEDY, None))
    assert bool(drafter.propose(PROMPT, 8).parents) == tree


def test_nothing_is_left_of_a_tree_whose_request_ended():
    drafter = made(3)
    drafter.propose(PROMPT, 8, SHOW)
    drafter.begin(Request([0, 1, 5], GREEDY, None))
    assert drafter.propose([0, 1, 5], 3, SHOW).evaluated[0] == 1
