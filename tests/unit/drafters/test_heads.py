"""Heads as drafters, on the toy backend: what they read, guess and drop."""

import itertools

import pytest

from edgespec import (
    ConfigError,
    SamplingParams,
    SpeculativeConfig,
    ToyModel,
    ToyTokenizer,
    drafters,
)
from edgespec.backends.base import Head
from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.decoding.session import Session
from edgespec.drafters.base import DrafterContext
from edgespec.drafters.cascade import Cascade
from edgespec.drafters.heads import HeadDrafter
from edgespec.drafters.merged import Merged, combined
from edgespec.drafters.model_tree import TreeOptions
from edgespec.drafters.suffix import SuffixBranches
from edgespec.drafters.trees import TreeDrafter
from edgespec.loading.assembly import assemble
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.sampling.trees import depths_of
from edgespec.verifiers.local import LocalVerifier
from tests.helpers.toy_head import ToyHead, complete, states_of
from tests.unit.drafters.test_model_tree import GREEDY, PROMPT, N, three_ways

LAYERS = (1, 3)


def made(top_k=3, params=GREEDY, context=PROMPT, **options):
    """Return a drafter whose target has evaluated all of the context but its last token."""
    head = ToyHead(three_ways, vocab_size=N, layers=LAYERS, **options)
    head.features.append(0, states_of(context[:-1], LAYERS))
    drafter = HeadDrafter(head, N, TreeOptions(top_k, 31))
    drafter.begin(Request(context, params, SeededRandomness(params.seed)))
    drafter.head = head
    return drafter


def session(policy, head=None, **options):
    """Return the loop of a toy target and a head for it."""
    head = head or ToyHead(three_ways, vocab_size=N, layers=LAYERS, n_ctx=512)
    target = ToyModel(three_ways, vocab_size=N, n_ctx=512)
    verifier = LocalVerifier(target, head=head)
    drafter = HeadDrafter(head, N, TreeOptions(3, 31), **options)
    made = Session(verifier, [drafter], policy)
    made.head = head
    return made


def test_a_toy_head_is_one():
    assert isinstance(ToyHead(three_ways, vocab_size=N), Head)
    assert not isinstance(ToyModel(three_ways, vocab_size=N), Head)


def test_tokens_are_read_with_the_states_before_them():
    drafter = made()
    draft = drafter.propose(PROMPT, 6)
    assert draft.source == "eagle3"
    assert len(draft.tokens) == 6
    assert draft.parents
    assert complete(drafter.head)


@pytest.mark.parametrize("n_right", [0, 1, 2, 3])
def test_guesses_do_not_stay_and_emitted_tokens_are_read_with_true_states(n_right):
    from edgespec.types import Verified

    drafter = made(top_k=1)
    drafter.propose(PROMPT, 3)
    line = [3, 4, 5][:n_right]
    tokens = (*line, 9)
    drafter.accept(Verified(tokens))
    assert drafter.head.n_past == len(PROMPT) - 1  # without the first: no state is before it
    context = [*PROMPT, *tokens]
    drafter.head.features.append(2, states_of(context[2:-1], LAYERS, 2))
    drafter.propose(context, 2)
    drafter.accept(Verified((0,)))
    assert complete(drafter.head)
    assert drafter.head.n_past == len(context) - 1


def test_no_draft_behind_tokens_that_the_target_has_not_evaluated():
    drafter = made()
    assert not drafter.propose([*PROMPT, 5, 6], 4).tokens
    assert not drafter.estimate([*PROMPT, 5, 6], 4).acceptance_probs
    assert drafter.propose(PROMPT, 4).tokens


def test_a_head_begins_where_the_states_do():
    context = [i % N for i in range(40)]
    drafter = made(context=context, most=8)
    assert drafter.propose(context, 4).tokens
    head = drafter.head
    assert head.start == head.features.start + 1 == 32
    assert complete(head)
    assert len(head.read) == 40 - 32


def test_a_short_context_slides_over_a_long_text():
    context = [i % N for i in range(60)]
    drafter = made(context=context, n_ctx=24)
    assert drafter.propose(context, 4).tokens
    assert drafter.head.start == 60 - 12
    assert complete(drafter.head)


def test_another_text_is_read_from_its_beginning():
    context = [i % N for i in range(40)]
    drafter = made(context=context, most=8)
    drafter.propose(context, 4)
    head = drafter.head
    other = [3, *context[1:]]  # ends like the first
    head.features.truncate(0)
    head.features.append(0, states_of(other[:6], LAYERS))
    drafter.begin(Request(other[:7], GREEDY, None))
    assert drafter.propose(other[:7], 4).tokens
    assert (head.start, len(head.read)) == (1, 6)
    assert complete(head)


def test_a_text_that_goes_on_is_not_read_again():
    drafter = made(context=[*PROMPT, 7, 8])
    drafter.propose([*PROMPT, 7, 8], 4)
    head, longer = drafter.head, [*PROMPT, 7, 8, 2, 3]
    drafter.begin(Request(longer, GREEDY, None))
    head.features.append(4, states_of(longer[4:-1], LAYERS, 4))
    n_read, decode = [], head.decode
    head.decode = lambda tokens, *args: n_read.append(len(tokens)) or decode(tokens, *args)
    assert drafter.propose(longer, 4).tokens
    assert n_read == [2]
    drafter.begin(Request([9, *longer[1:]], GREEDY, None))  # begins otherwise
    assert (head.n_past, head.start) == (0, 0)


@pytest.mark.parametrize("max_depth", [1, 2, 3])
def test_a_head_guesses_as_deep_as_it_can(max_depth):
    drafter = made(top_k=2, max_depth=max_depth)
    draft = drafter.propose(PROMPT, 31)
    assert max(depths_of(draft.parents)) == max_depth
    assert len(draft.tokens) > max_depth
    assert len(draft.evaluated) == 1 + len(drafter._tree.evaluated)


@pytest.mark.parametrize(("kind", "n_evaluated"), [("medusa", 1), ("dflash", 1), ("eagle3", 3)])
def test_what_is_guessed_all_at_once_is_one_evaluation(kind, n_evaluated):
    drafter = made(top_k=1, max_depth=3, kind=kind)
    assert (drafter.name, len(drafter.propose(PROMPT, 31).tokens)) == (kind, 3)
    assert len(drafter.propose(PROMPT, 31).evaluated) == n_evaluated
    extension = drafter.estimate(PROMPT, 8).extension
    assert extension.further_s == (None if n_evaluated > 1 else 0.0)
    assert extension.most == 3


def test_one_choice_is_drafted_where_no_other_can_pay():
    from tests.unit.drafters.test_model_tree import Costs

    head = ToyHead(three_ways, vocab_size=N)
    head.features.append(0, states_of(PROMPT[:-1], LAYERS))
    drafter = HeadDrafter(head, N, TreeOptions(3, 31), costs=Costs(0.1, least=0.5))
    drafter.begin(Request(PROMPT, GREEDY, None))
    assert not drafter.propose(PROMPT, 4).parents


def test_text_is_that_of_plain_decoding_over_many_requests():
    engine = session(FixedDepth(5))
    plain = session(FixedDepth(0))
    for i in range(6):
        prompt = [(7 * i + j * j) % N for j in range(4 + 3 * i)]
        assert run(engine, prompt) == run(plain, prompt)
        assert complete(engine.head)
    assert engine.stats.num_accepted_draft_tokens > 20


def run(engine, prompt, n=20, **options):
    from edgespec.decoding.output import Output
    from edgespec.types import Stats

    params = SamplingParams(max_tokens=n, ignore_eos=True, **options)
    output = Output(ToyTokenizer([chr(97 + i) for i in range(N)]), params)
    engine.stats = getattr(engine, "stats", None) or Stats()
    for _ in engine.generate(Request(prompt, params, SeededRandomness(None)), output, engine.stats):
        pass
    return output.token_ids


@pytest.mark.parametrize("fails_at", range(1, 10))
def test_a_target_that_fails_leaves_true_states(fails_at):
    engine = session(FixedDepth(5))
    target = engine._verifier._model
    calls, decode, tree = itertools.count(1), target.decode, target.decode_tree

    def failing(call):
        def wrapped(*args, **kwargs):
            if next(calls) == fails_at:
                raise MemoryError
            return call(*args, **kwargs)

        return wrapped

    prompt = [1, 5, 2, 8]
    expected = run(session(FixedDepth(0)), prompt)
    target.decode, target.decode_tree = failing(decode), failing(tree)
    with pytest.raises(MemoryError):
        run(engine, prompt, 40)
    target.decode, target.decode_tree = decode, tree
    assert run(engine, prompt) == expected
    assert complete(engine.head)


def test_lookups_stand_beside_a_head_and_are_not_continued_by_it():
    drafter = made()
    lookups = TreeDrafter({"suffix": SuffixBranches()}, 31)
    sources = combined([lookups], drafter)
    assert [type(source) for source in sources] == [TreeDrafter, Merged]
    chain = combined([drafters.make([drafters.entry("suffix")], context())[0]], drafter)
    assert [type(source) for source in chain][1:] == [Cascade]


def context(model=None, **options):
    return DrafterContext(SpeculativeConfig("auto"), N, draft_model=model, **options)


def test_no_head_for_a_target_on_another_machine():
    head = ToyHead(three_ways, vocab_size=N)
    with pytest.raises(ConfigError, match="hidden states, which do not travel"):
        drafters.make([drafters.entry("draft_model")], context(head))


def test_an_engine_with_a_head_answers_as_one_without():
    tokenizer = ToyTokenizer([chr(97 + i) for i in range(N)])
    options = {"max_tokens": 30, "ignore_eos": True}
    with assemble(ToyModel(three_ways, vocab_size=N), tokenizer, None) as plain:
        expected = plain.generate("abc", **options).text
    head = ToyHead(three_ways, vocab_size=N)
    config = {"method": "draft_model", "num_speculative_tokens": 4}
    with assemble(ToyModel(three_ways, vocab_size=N), tokenizer, head, config) as engine:
        found = engine.generate("abc", **options)
    assert found.text == expected
    assert found.stats.drafts_by_source["eagle3"]["accepted"] > 10


def test_a_head_that_is_of_no_use_rests_and_is_tried_again():
    engine = session(FixedDepth(0))
    wanted = []
    for _ in range(12):
        run(engine, [1, 5, 2], 40)
        wanted.append(engine.head.features.wanted)
    assert wanted == [False] * 8 + [True] + [False] * 3


def test_a_head_that_wins_less_than_its_states_cost_rests():
    costs = Costs(
        Profile(Curve((0,), (1, 32), ((0.03, 0.1),)), Curve((0,), (1, 32), ((1e-3, 0.1),)))
    )
    engine = session(FixedDepth(5), costs=costs)
    head = engine.head
    assert costs.features is head.features
    wanted, given = [], []
    for won in (0.5, -0.9, -1.5, *[0.0] * 10):
        costs.won_by_head = won
        run(engine, [1, 5, 2], 10)
        wanted.append(head.features.wanted)
        given.append(head.features.given)
    assert wanted == [True] * 2 + [False] * 8 + [True] * 3
    assert given == [True] * 3 + [False] * 8 + [True] * 2


def test_short_answers_say_nothing_against_a_head():
    engine = session(FixedDepth(0))
    for _ in range(12):
        run(engine, [1, 5, 2], 10)
        assert engine.head.features.wanted


def test_plain_requests_are_evaluated_without_states():
    engine = session(FixedDepth(3))
    target = engine._verifier._model
    taps, tap = [], target.tap
    target.tap = lambda layers: taps.append(tuple(layers)) or tap(layers)
    run(engine, [1, 5, 2])
    run(engine, [1, 5, 2], num_draft_tokens=0)
    run(engine, [1, 5, 2], num_draft_tokens=0)
    run(engine, [1, 5, 2])
    assert taps == [(), LAYERS]  # it was tapped when the loop was made
    assert complete(engine.head)


def test_a_plain_request_comes_first():
    engine = session(FixedDepth(3))
    run(engine, [1, 5, 2], num_draft_tokens=0)
    assert engine.head.features.end == 0
    run(engine, [1, 5, 2])
    assert engine.head.features.end > 0
