"""Trees of a draft model's own choices, on the toy backend: which nodes, at what cost, and what is
learned from them.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from edgespec import (
    ConfigError,
    SamplingParams,
    SpeculativeConfig,
    ToyModel,
    ToyTokenizer,
    assemble,
    drafters,
)
from edgespec.drafters.base import DrafterContext, Role
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import Verified, Work
from tests.helpers.growing import begin, costs, drafted, grow, line, said, texts

N = 16
PROMPT = [0, 1, 2]
GREEDY, COUPLED = SamplingParams(), SamplingParams(temperature=1.0, seed=7)
DRAWN = SamplingParams(temperature=1.0)


def three_ways(tokens):
    """After t come t + 1, t + 2 and t + 3 with falling probabilities; after odd ones it is less
    sure.
    """
    first, second, third = (0.4, 0.3, 0.2) if tokens[-1] % 2 else (0.8, 0.12, 0.05)
    row = np.full(N, (1 - first - second - third) / (N - 3))
    for step, prob in enumerate((first, second, third), start=1):
        row[(tokens[-1] + step) % N] = prob
    return row


def made(top_k=3, params=GREEDY, prompt=PROMPT, truncate=True, role=Role.MATCHED, **options):
    """Return a drafter; evaluated: the paths that it was asked for, in order."""
    model = ToyModel(three_ways, vocab_size=N, truncate=truncate)
    drafter = ModelDrafter(model, N, top_k=top_k, **options)
    drafter.model, drafter.evaluated, expand = model, [], drafter.expand
    drafter.expand = lambda texts: drafter.evaluated.extend(t.path for t in texts) or expand(texts)
    begin(drafter, prompt, params, role=role, randomness=SeededRandomness(params.seed))
    return drafter


def tokens_of(children):
    return [token for token, _ in children]


@pytest.mark.parametrize("params", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("n", [1, 3, 8])
def test_other_choices_are_siblings_and_cost_no_evaluation(n, params):
    drafter = made(2, params, truncate=False)  # it cannot grow: it is evaluated along one line
    draft = drafted(drafter, n)
    assert len(draft.tokens) == n
    assert draft.evaluated == (Work(3, 0), *[Work(1, 3 + i) for i in range(n - 1)])
    assert drafter.model.n_evaluated == 2 + n
    if n == 8:
        assert len(draft.parents) == 8
        assert len(set(texts(draft))) == 8


def test_one_choice_is_a_chain():
    draft = drafted(made(1), 5)
    assert (draft.tokens, draft.parents) == ((3, 4, 5, 6, 7), ())


def test_a_tree_is_of_the_likeliest_tokens_of_each_row():
    draft = drafted(made(2), 12)
    for text in texts(draft):
        assert all((b - a) % N in (1, 2) for a, b in itertools.pairwise([2, *text]))
    assert any(draft.parents.count(parent) == 2 for parent in range(12))


@pytest.mark.parametrize("path", [(), (3,), (9, 4), (9, 4, 5)])
def test_coupled_siblings_win_their_races_first(path):
    drafter = made(3, COUPLED)
    row = np.log(three_ways([*PROMPT, *path]))
    q = drafter._sampler.distribution(row, path)
    races = SeededRandomness(COUPLED.seed).smallest(len(PROMPT) + len(path), q, 3)
    assert tokens_of(said(drafter, *path)) == [token for token, _ in races]
    assert drafted(drafter, 12).probs is None


def test_races_beside_pictures_are_those_of_the_whole_prompt():
    """A draft model sees the text alone, the target decides each race by the place in all."""
    drafter = made(3, COUPLED)
    drafter._request = replace(drafter._request, n_unseen=7)
    q = drafter._sampler.distribution(np.log(three_ways(PROMPT)), ())
    races = SeededRandomness(COUPLED.seed).smallest(len(PROMPT) + 7, q, 3)
    assert races != SeededRandomness(COUPLED.seed).smallest(len(PROMPT), q, 3)
    assert tokens_of(said(drafter)) == [token for token, _ in races]


@pytest.mark.parametrize("options", [{"acceptance": "rejection"}, {"role": Role.DRAWN}])
def test_where_tokens_are_drawn_it_drafts_chains(options):
    draft = drafted(made(3, DRAWN, **options), 6)
    assert (len(draft.tokens), draft.parents, len(draft.probs)) == (6, (), 6)


@pytest.mark.parametrize("params", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_nothing_is_drawn_where_that_cannot_be(params):
    drafter = made(3, params, role=Role.DRAWN)
    assert drafter.forecast().n_choices == 1
    draft = drafted(drafter, 6)
    assert (len(draft.tokens), draft.parents, draft.probs) == (6, (), None)


def test_a_tree_is_the_same_at_every_temperature():
    assert drafted(made(3, DRAWN), 8) == drafted(made(3), 8)


def test_the_likeliest_node_is_evaluated_next_wherever_it_is():
    """After 3 it is unsure, so what follows its second choice at the root comes early."""
    drafter = made(2)
    drafted(drafter, 10)
    paths, probs = list(drafter.evaluated), {(): 1.0}
    for path in paths:
        for token, chance in said(drafter, *path):
            probs[(*path, token)] = probs[path] * chance
    assert {path[:1] for path in paths} == {(), (3,), (4,)}
    order = [probs[path] for path in paths]
    assert order == sorted(order, reverse=True)
    assert max(prob for path, prob in probs.items() if path not in paths) <= min(order)


@pytest.mark.parametrize(("more_s", "several"), [(1e-6, True), (40.0, False)])
def test_nodes_are_evaluated_together_where_that_takes_hardly_longer(more_s, several):
    found = costs([1.0, 1.01], 0.2, more_s)
    draft = drafted(made(), 12, price=0.02, costs=found)
    assert (max(work.n_tokens for work in draft.evaluated[1:]) > 1) == several


@pytest.mark.parametrize("n_free", [3, 6])
def test_only_nodes_that_are_worth_their_rows_are_drafted(n_free):
    steps = [1.0] * (n_free + 1) + [100.0 * i for i in range(1, 20)]
    draft = drafted(made(), 12, price=1.0, costs=costs(steps, 1e-6))
    assert len(draft.tokens) == n_free


@pytest.mark.parametrize("leaves", [2, 3])
def test_leaves_are_limited(leaves):
    draft = drafted(made(), 12, max_leaves=leaves)
    assert len(draft.tokens) - len({p for p in draft.parents if p >= 0}) == leaves


def test_no_more_branches_than_the_model_can_hold():
    drafter = made()
    can = drafter.model.capabilities
    drafter.model.capabilities = type(can)(can.max_rows, can.max_batch, max_leaves=5)
    drafted(drafter, 24)
    paths = set(drafter.evaluated)
    leaves = paths - {path[:-1] for path in paths}
    assert len(leaves) == 2  # and up to four at a time would fit


@pytest.mark.parametrize("emitted", [(3, 4, 9), (4, 5, 9), (9,), (3, 5, 6, 7, 8, 9, 10)])
def test_what_it_has_evaluated_of_the_text_is_not_evaluated_again(emitted):
    drafter = made(3)
    drafted(drafter, 12)
    seen = [n for n in range(len(emitted)) if emitted[:n] in drafter.evaluated]
    drafter.accept(Verified(emitted))
    before, expected = drafter.model.n_evaluated, max(1, len(emitted) - seen[-1])
    assert drafted(drafter, 1).evaluated == (Work(expected, len(PROMPT) + len(emitted) - expected),)
    assert drafter.model.n_evaluated - before == expected


def test_it_learns_which_choice_comes_even_where_it_was_not_drafted():
    drafter, firsts = made(3), []
    for _ in range(60):
        begin(drafter, PROMPT)
        firsts.append(drafted(drafter, 2).tokens)
        drafter.accept(Verified((5,)))  # the third choice after 2
    assert firsts[0][0] == 3
    assert 5 in firsts[-1]


@pytest.mark.parametrize("emitted", [(8, 7, 3), (8,), (7,)])
def test_it_learns_nothing_after_another_text(emitted):
    """It drafted after 8 and 2, and the target went on from another path of that tree."""
    drafter = made(3)
    line(drafter, 4, (8, 2))
    before = drafter.learned()["draft_model"]["outcomes"]
    drafter.accept(Verified(emitted))
    assert drafter.learned()["draft_model"]["outcomes"] == before
    fresh = made(3, prompt=[*PROMPT, *emitted])
    assert drafted(drafter, 6).tokens == drafted(fresh, 6).tokens


def test_penalties_count_what_another_drafted_before():
    drafter = made(2, SamplingParams(presence_penalty=9.0))
    assert tokens_of(said(drafter, 5, 4)) == [6, 7]  # and not 5 again


def test_unsure_rows_give_no_tokens():
    found = texts(drafted(made(3, p_min=0.5), 12))
    assert all(token % 2 == 0 for text in found for token in text[:-1])
    assert any(token % 2 for text in found for token in text)


@pytest.mark.parametrize("top_k", [0, 9, "2", 1.5])
def test_impossible_options(top_k):
    config = SpeculativeConfig("draft_model", options={"top_k": top_k})
    toy = ToyModel(three_ways, vocab_size=N)
    with pytest.raises(ConfigError, match="top_k must be 1 to 8"):
        drafters.make([drafters.entry("draft_model")], DrafterContext(config, N, toy, None, toy))


@pytest.mark.parametrize(("top_k", "max_leaves", "tree"), [(2, 8, True), (1, 8, False),
                                                           (2, 1, False)])  # fmt: skip
def test_trees_are_drafted_where_the_target_takes_them(top_k, max_leaves, tree):
    config = SpeculativeConfig("draft_model", options={"top_k": top_k})
    models = [ToyModel(three_ways, vocab_size=N) for _ in range(2)]
    context = DrafterContext(config, N, models[0], None, models[1], max_leaves)
    (drafter,) = drafters.make([drafters.entry("draft_model")], context)
    begin(drafter, PROMPT)
    assert bool(grow([], [drafter], nodes=8, leaves=max_leaves).draft.parents) == tree


@pytest.mark.parametrize(("options", "tree"), [({"top_k": 2}, True), ({}, False)])
def test_a_fixed_depth_has_trees_where_several_choices_are_asked_for(options, tree):
    config = {"method": "draft_model", "num_speculative_tokens": 6, "draft_p_min": 0.0}
    models = [ToyModel(three_ways, vocab_size=N) for _ in range(2)]
    config |= {"options": options}
    tokenizer = ToyTokenizer([chr(97 + i) for i in range(N)])
    with assemble(models[0], tokenizer, models[1], config) as engine:
        stats = engine.generate("abc", max_tokens=30, ignore_eos=True).stats
    assert any(n > stats.num_draft_steps for n in stats.drafted_per_position) == tree


def test_nothing_is_left_of_a_tree_whose_request_ended():
    drafter = made(3)
    drafted(drafter, 8)
    begin(drafter, [0, 1, 5])
    assert drafted(drafter, 3).evaluated[0] == Work(1, 2)
