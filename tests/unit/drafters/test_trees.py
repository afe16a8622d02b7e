"""Trees of guesses: which nodes, in which order, from one source and from several."""

import itertools

import numpy as np
import pytest

from edgespec import SamplingParams, ToyModel, ToyTokenizer
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.recycling import RecyclingBranches
from edgespec.drafters.runner_ups import RunnerUpBranches
from edgespec.drafters.suffix import SuffixBranches
from edgespec.drafters.trees import Tree, TreeDrafter, grow
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.sampling.trees import children_of, depths_of, path_to
from edgespec.types import Draft, DraftEstimate, Stats, Verified
from edgespec.verifiers.local import LocalVerifier


class Table:
    """Guesses by the last token, from a table."""

    def __init__(self, table):
        self._table = table

    def begin(self, request):
        self._last = request.prompt[-1]

    def root(self):
        return self._last

    def step(self, state, token):
        return token

    wide = False

    def children(self, state, least):
        return list(self._table.get(state, {}).items())

    def accept(self, verified):
        self._last = verified.tokens[-1]


def begin(drafter, prompt):
    drafter.begin(Request(prompt, SamplingParams(), None))
    return list(prompt)


BINARY = {t: {2 * t % 7: 0.6, (2 * t + 1) % 7: 0.3} for t in range(7)}


def drafter(*tables, max_leaves=31):
    return TreeDrafter({f"table {i}": Table(table) for i, table in enumerate(tables)}, max_leaves)


def every_path(table, root, depth):
    """Return the probabilities of all paths up to a depth, falling."""
    found, level = [], [(root, 1.0)]
    for _ in range(depth):
        level = [(t, p * q) for token, p in level for t, q in table[token].items()]
        found += [p for _, p in level]
    return sorted(found, reverse=True)


@pytest.mark.parametrize("n", [1, 4, 9, 16])
def test_nodes_are_those_of_the_likeliest_paths(n):
    made = drafter(BINARY)
    probs = made.estimate(begin(made, [1]), n).acceptance_probs
    assert probs == pytest.approx(every_path(BINARY, 1, 6)[:n])


@pytest.mark.parametrize("n", range(1, 16))
def test_a_draft_is_in_depth_first_order_with_the_likeliest_first(n):
    made = drafter(BINARY)
    context = begin(made, [1])
    estimated = made.estimate(context, 31).acceptance_probs
    draft = made.propose(context, n)
    parents = draft.parents or tuple(range(-1, n - 1))
    depths_of(parents)
    assert len(draft.tokens) == n
    probs = []
    for node, token in enumerate(draft.tokens):
        line = [1, *(draft.tokens[i] for i in path_to(parents, node)[:-1])]
        probs.append(BINARY[line[-1]][token] * (probs[parents[node]] if parents[node] >= 0 else 1))
    assert sorted(probs, reverse=True) == pytest.approx(estimated[:n])
    for siblings in children_of(parents):
        assert [probs[i] for i in siblings] == sorted((probs[i] for i in siblings), reverse=True)
        assert len({draft.tokens[i] for i in siblings}) == len(siblings)


@pytest.mark.parametrize("leaves", [1, 2, 5])
def test_leaves_are_limited_in_every_prefix(leaves):
    made = drafter(BINARY, max_leaves=leaves)
    context = begin(made, [1])
    for n in range(1, 20):
        draft = made.propose(context, n)
        parents = draft.parents or tuple(range(-1, len(draft.tokens) - 1))
        assert len(set(range(-1, len(parents))) - set(parents)) <= leaves
        assert leaves > 1 or not draft.parents


def test_what_two_sources_guess_is_one_node():
    made = drafter({1: {2: 0.5, 3: 0.2}, 2: {4: 0.5}}, {1: {2: 0.3, 5: 0.1}, 2: {6: 0.4}})
    draft = made.propose(begin(made, [1]), 31)
    assert draft.tokens == (2, 4, 6, 3, 5)
    assert draft.parents == (-1, 0, 0, -1, -1)


def test_guesses_behind_one_node_are_certain_at_most():
    made = drafter({1: {2: 0.9, 3: 0.6}}, {1: {4: 0.5}})
    assert sum(made.estimate(begin(made, [1]), 31).acceptance_probs) < 1


def test_nothing_unlikely_is_drafted():
    made = TreeDrafter({"tree": Table(BINARY)}, 31, p_min=0.25)
    assert made.estimate(begin(made, [1]), 31).acceptance_probs == pytest.approx((0.6, 0.36, 0.3))


def test_a_context_that_goes_on_beyond_the_text():
    made = drafter(BINARY)
    context = begin(made, [1])
    made.estimate(context, 4)
    assert made.propose([*context, 2], 1).tokens == (4,)


def test_growing_ends_with_nothing_to_guess():
    assert grow(0, lambda state, least: [], lambda state, token: 0, 8, 8) == Tree()


def test_lookup_guesses_all_that_followed_most_frequent_first():
    made = TreeDrafter({"suffix": SuffixBranches()}, 31)
    draft = made.propose(begin(made, [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2]), 31)
    firsts = [token for token, parent in zip(draft.tokens, draft.parents, strict=True)
              if parent == -1]  # fmt: skip
    assert firsts[:2] == [3, 4]


def test_lookup_adds_what_followed_shorter_endings():
    branches = SuffixBranches()
    begin(branches, [5, 1, 2, 3, 6, 1, 2, 4, 5, 1, 2])
    guesses = branches.children(branches.root(), 0.0)
    assert [token for token, _ in guesses] == [3, 4]
    assert guesses[0][1] > guesses[1][1] > 0


def test_lookup_learns_which_of_its_guesses_are_right():
    branches = SuffixBranches()
    begin(branches, [1, 2, 3] * 3)
    before = branches.children(branches.root(), 0.0)[0][1]
    for token in [1, 2, 3] * 20:
        branches.accept(Verified((token,)))
    assert branches.children(branches.root(), 0.0)[0][1] > before


def test_runners_up_of_the_last_row_come_next_once_they_have_been_right():
    branches = RunnerUpBranches()
    begin(branches, [1])
    row = np.array([0.0, 5.0, 4.5, 1.0])
    for token in itertools.islice(itertools.cycle([1, 2]), 40):
        branches.accept(Verified((token,), [row]))
    (token, prob), *others = branches.children(branches.root(), 0.0)
    assert token == 1  # the last was 2, whatever its own logit
    assert prob > max(p for _, p in others)
    branches.accept(Verified((3,)))
    assert branches.children(branches.root(), 0.0) == []  # a target elsewhere shows no rows


def test_recycling_guesses_what_was_likely_behind_the_same_token():
    branches = RecyclingBranches(4)
    begin(branches, [1])
    row = np.array([0.0, 1.0, 5.0, 4.0])
    branches.accept(Verified((2, 1), [row, np.array([3.0, 9.0, 0.0, 0.0])]))
    assert [token for token, _ in branches.children(branches.root(), 0.0)] == [2, 3, 1, 0]
    assert branches.children(branches.step(branches.root(), 2), 0.0)[0][0] == 1
    begin(branches, [0, 1])
    assert branches.children(branches.root(), 0.0)[0][0] == 2
    for _ in range(20):
        branches.accept(Verified((3, 1), [row, np.array([3.0, 9.0, 0.0, 0.0])]))
    first, second, *_ = branches.children(branches.root(), 0.0)
    assert first[1] < second[1]  # the second guess was right each time
    branches.accept(Verified((3,)))  # a target elsewhere shows no rows


def test_runners_up_are_continued_by_lookup():
    made = TreeDrafter({"suffix": SuffixBranches(1), "runner_ups": RunnerUpBranches()}, 31)
    prompt = begin(made, [7, 8, 9, 7, 8, 9, 7, 8, 6, 1])
    made.accept(Verified((5,), [np.array([0, 0, 0, 0, 0, 9.0, 0, 8.0, 0, 0])]))
    draft = made.propose([*prompt, 5], 31)
    assert draft.tokens[:1] == (7,)
    assert (8, draft.tokens.index(7)) in zip(draft.tokens, draft.parents, strict=True)


class Wrong:
    """Drafts the same tokens always, and keeps what it is told."""

    name = "wrong"

    def __init__(self, tokens, parents=()):
        self._draft, self.told = Draft(tokens, "wrong", parents=parents), []

    def begin(self, request):
        pass

    def estimate(self, context, limit):
        return DraftEstimate("wrong", (0.5,) * limit, limit)

    def propose(self, context, limit, thresholds=None):
        return self._draft

    def accept(self, verified):
        rows = [list(row) for row in verified.drafted_rows]
        self.told.append((verified.tokens, verified.drafted, rows))

    def close(self):
        pass


@pytest.mark.parametrize("parents", [(), (-1, 0, -1)])
def test_drafters_are_told_what_was_rejected_and_the_rows_behind_it(parents):
    table = np.full((5, 5), 0.1)
    table[np.arange(5), (np.arange(5) + 1) % 5] = 0.6
    made = Wrong((1, 4, 3), parents)
    session = Session(LocalVerifier(ToyModel(table)), [made], FixedDepth(3))
    request = Request([4, 0], SamplingParams(max_tokens=4), SeededRandomness(0))
    output = Output(ToyTokenizer(list("abcde")), request.params)
    list(session.generate(request, output, Stats()))
    tokens, drafted, rows = made.told[0]
    assert tokens == (1, 2)
    assert drafted == (1, 4, 3)
    assert rows == [list(np.log(table[token])) for token in drafted]


def test_recycling_is_fed_by_rejected_drafts():
    made = TreeDrafter({"recycling": RecyclingBranches(4)}, 31)
    begin(made, [1])
    rows = [np.array([0.0, 9.0, 3.0, 1.0]), np.array([7.0, 1.0, 2.0, 3.0])]
    made.accept(Verified((2,), [np.array([0.0, 1.0, 5.0, 4.0])], (3, 2), rows))
    assert made.propose([1, 2, 3], 1).tokens == (1,)
    assert made.propose([1, 2], 1).tokens == (0,)


def test_recycling_looks_at_few_rejected_rows():
    branches = RecyclingBranches(64)
    begin(branches, [1])
    row = np.arange(64.0)
    branches.accept(Verified((2,), [row], tuple(range(3, 40)), [row] * 37))
    assert [token for token in range(64) if branches.children(token)] == [1, *range(3, 11)]


def test_recycling_that_is_not_shared_ends_with_the_conversation():
    branches = RecyclingBranches(4, shares=False)
    for prompt, remembered in (([1], 0), ([1, 2, 1], 4), ([1], 0), ([0, 1], 0)):
        begin(branches, prompt)
        assert len(branches.children(branches.root())) == remembered
        branches.accept(Verified((2,), [np.array([0.0, 1.0, 5.0, 4.0])]))


def test_recycling_guesses_nothing_from_an_answer_to_somebody_else():
    branches = RecyclingBranches(4)
    for owner, remembered in (("", 0), ("", 4), ("one", 0), ("one", 4), ("two", 0), ("", 0)):
        branches.begin(Request([1], SamplingParams(), None, owner=owner))
        assert len(branches.children(branches.root())) == remembered
        branches.accept(Verified((2,), [np.array([0.0, 1.0, 5.0, 4.0])]))
        assert bool(branches.learned_tokens()) == (not owner), "only what is nobody's is kept"


def test_tokens_beyond_the_vocabulary_have_no_successors():
    branches = RecyclingBranches(2)
    begin(branches, [7])
    branches.accept(Verified((1,), [np.array([1.0, 2.0])]))
    assert branches.children(7) == []
