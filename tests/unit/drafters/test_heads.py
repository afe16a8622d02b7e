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
from edgespec.backends.features import Features
from edgespec.cache.prefixes import PrefixStore
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.base import DrafterContext, Role
from edgespec.drafters.heads import HeadDrafter
from edgespec.loading.assembly import assemble
from edgespec.policies.adaptive import Adaptive
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.sampling.trees import depths_of
from edgespec.types import Draft, Requires, Stats, Verified, Work
from edgespec.verifiers.local import LocalVerifier
from tests.helpers.growing import Table, begin, costs, drafted, grow, line, said, state_after
from tests.helpers.toy_head import ToyHead, complete, states_of
from tests.unit.drafters.test_model_tree import GREEDY, PROMPT, N, three_ways

LAYERS = (1, 3)
DEPTH = FixedDepth(5, max_leaves=31)


def made(top_k=3, params=GREEDY, context=PROMPT, role=Role.MATCHED, most=512, **options):
    """Return a drafter whose target has evaluated all of the context but its last token.

    states: where the target's states are.
    """
    head = ToyHead(three_ways, vocab_size=N, layers=LAYERS, **options)
    states = Features(most)
    states.layers = LAYERS
    states.append(0, states_of(context[:-1], LAYERS))
    drafter = HeadDrafter(head, N, states, top_k=top_k)
    drafter.head, drafter.states = head, states
    begin(drafter, context, params, role=role, randomness=SeededRandomness(params.seed))
    return drafter


def session(policy=DEPTH, **options):
    """Return the loop of a toy target and a head for it."""
    head = ToyHead(three_ways, vocab_size=N, layers=LAYERS, n_ctx=512)
    target, states = ToyModel(three_ways, vocab_size=N, n_ctx=512), Features()
    drafter = HeadDrafter(head, N, states, top_k=3, **options)
    engine = Session(LocalVerifier(target, states=states), [drafter], policy)
    engine.head, engine.target, engine.states, engine.stats = head, target, states, Stats()
    return engine


def run(engine, prompt, n=20, **options):
    params = SamplingParams(max_tokens=n, ignore_eos=True, **options)
    output = Output(ToyTokenizer([chr(97 + i) for i in range(N)]), params)
    for _ in engine.generate(Request(prompt, params, SeededRandomness(None)), output, engine.stats):
        pass
    return output.token_ids


def test_a_head_begins_after_a_prefix_that_was_loaded():
    tokens = [chr(97 + i) for i in range(N)]
    prompt = [i * i % N for i in range(120)]
    found = {}
    for name, store in (("without", None), ("with", PrefixStore(1 << 20))):
        head = ToyHead(three_ways, vocab_size=N, layers=LAYERS, n_ctx=512)
        config = {"num_speculative_tokens": 4, "draft_p_min": 0.0}
        target = ToyModel(three_ways, vocab_size=N, n_ctx=512)
        with assemble(target, ToyTokenizer(tokens), head, config, prefixes=store) as engine:
            found[name] = [
                engine.generate([*prompt, i], max_tokens=30, owner=owner)
                for i, owner in enumerate(["a", "b", "a"])
            ]
            assert head.start == (121 if store else 1)
    texts = {name: [answer.text for answer in answers] for name, answers in found.items()}
    assert texts["with"] == texts["without"]
    last = found["with"][-1].stats
    assert last.num_cached_tokens == 120
    assert last.num_accepted_draft_tokens > 0


def test_a_toy_head_is_one():
    assert isinstance(ToyHead(three_ways, vocab_size=N), Head)
    assert not isinstance(ToyModel(three_ways, vocab_size=N), Head)


def test_it_requires_the_states_of_its_layers():
    drafter = made(n_states=9)
    assert begin(drafter, PROMPT, randomness=SeededRandomness(1)) == Requires(LAYERS, 9)


def test_tokens_are_read_with_the_states_before_them():
    drafter = made()
    draft = drafted(drafter, 6)
    assert draft.source == "eagle3"
    assert len(draft.tokens) == 6
    assert draft.parents
    assert complete(drafter.head)


def test_states_of_other_layers_are_none():
    drafter = made()
    assert drafter.work([drafter.root()])
    drafter.states.layers = (1,)
    assert drafter.work([drafter.root()]) is None


@pytest.mark.parametrize("n_right", [0, 1, 2, 3])
def test_guesses_do_not_stay_and_emitted_tokens_are_read_with_true_states(n_right):
    drafter = made(top_k=1)
    drafted(drafter, 3)
    tokens = (*[3, 4, 5][:n_right], 9)
    drafter.accept(Verified(tokens))
    assert drafter.head.n_past == len(PROMPT) - 1  # without the first: no state is before it
    context = [*PROMPT, *tokens]
    drafter.states.append(2, states_of(context[2:-1], LAYERS, 2))
    drafted(drafter, 2)
    drafter.accept(Verified((0,)))
    assert complete(drafter.head)
    assert drafter.head.n_past == len(context) - 1


def test_no_draft_after_tokens_that_the_target_has_not_evaluated():
    drafter = made()
    assert drafter.work([state_after(drafter, (5, 6))]) is None
    assert drafter.work([drafter.root()]) == Work(len(PROMPT) - 1, 0)


def test_a_head_begins_where_the_states_do():
    drafter = made(context=[i % N for i in range(40)], most=8)
    assert drafted(drafter, 4).tokens
    head = drafter.head
    assert head.start == head.features.start + 1 == 32
    assert complete(head)
    assert len(head.read) == 40 - 32


def test_a_short_context_slides_over_a_long_text():
    drafter = made(context=[i % N for i in range(60)], n_ctx=24)
    assert drafted(drafter, 4).tokens
    assert drafter.head.start == 60 - 12
    assert complete(drafter.head)


def test_another_text_is_read_from_its_beginning():
    context = [i % N for i in range(40)]
    drafter = made(context=context, most=8)
    drafted(drafter, 4)
    head = drafter.head
    other = [3, *context[1:]]  # ends like the first
    drafter.states.truncate(0)
    drafter.states.append(0, states_of(other[:6], LAYERS))
    begin(drafter, other[:7])
    assert drafted(drafter, 4).tokens
    assert (head.start, len(head.read)) == (1, 6)
    assert complete(head)


def test_a_text_that_goes_on_is_not_read_again():
    drafter = made(context=[*PROMPT, 7, 8])
    drafted(drafter, 4)
    head, longer = drafter.head, [*PROMPT, 7, 8, 2, 3]
    begin(drafter, longer)
    drafter.states.append(4, states_of(longer[4:-1], LAYERS, 4))
    n_read, decode = [], head.decode
    head.decode = lambda tokens, *args: n_read.append(len(tokens)) or decode(tokens, *args)
    assert drafted(drafter, 4).tokens
    assert n_read == [2]
    begin(drafter, [9, *longer[1:]])  # begins otherwise
    assert (head.n_past, head.start) == (0, 0)


@pytest.mark.parametrize("max_depth", [1, 2, 3])
def test_a_head_guesses_as_deep_as_it_can(max_depth):
    draft = drafted(made(top_k=2, max_depth=max_depth), 31)
    assert max(depths_of(draft.parents)) == max_depth
    assert len(draft.tokens) > max_depth
    n_continued = len({parent for parent in draft.parents if parent >= 0})
    assert sum(work.n_tokens for work in draft.evaluated[1:]) >= n_continued


@pytest.mark.parametrize(("kind", "n_evaluated"), [("medusa", 1), ("dflash", 1), ("eagle3", 3)])
def test_what_is_guessed_all_at_once_is_one_evaluation(kind, n_evaluated):
    drafter = made(top_k=1, max_depth=3, kind=kind)
    draft, forecast = drafted(drafter, 31), drafter.forecast()
    assert (draft.source, len(draft.tokens)) == (kind, 3)
    assert len(draft.evaluated) == n_evaluated
    assert forecast.one_pass == (n_evaluated == 1)
    assert forecast.max_depth == 3


def test_the_probability_of_a_token_is_that_of_its_depth():
    """The head is as sure of each token, and the third one is always wrong."""
    drafter = made(top_k=1)
    for _ in range(40):
        begin(drafter, PROMPT, GREEDY, randomness=SeededRandomness(None))
        first, second, third = line(drafter, 3)
        drafter.accept(Verified((first, second, (third + 1) % N)))
    begin(drafter, PROMPT, GREEDY, randomness=SeededRandomness(None))
    guessed = line(drafter, 3)
    probs = [said(drafter, *guessed[:depth])[0][1] for depth in range(3)]
    assert min(probs[:2]) > 0.8 > 0.3 > probs[2]


def test_one_choice_is_drafted_where_no_other_can_pay():
    drafter = made(role=Role.DRAWN, params=SamplingParams(temperature=1.0))
    draft = drafted(drafter, 4)
    assert (len(draft.tokens), draft.parents, draft.probs) == (4, (), None)  # heads never draw


def test_text_is_that_of_plain_decoding_over_many_requests():
    engine, plain = session(), session(FixedDepth(0))
    for i in range(6):
        prompt = [(7 * i + j * j) % N for j in range(4 + 3 * i)]
        assert run(engine, prompt) == run(plain, prompt)
        assert complete(engine.head)
    assert engine.stats.num_accepted_draft_tokens > 20


@pytest.mark.parametrize("fails_at", range(1, 10))
def test_a_target_that_fails_leaves_true_states(fails_at):
    engine = session()
    target = engine.target
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


def test_lookups_are_drafted_with_a_head_and_are_not_continued_by_it():
    drafter = made(top_k=1)
    lookup = Table({2: {9: 0.9}, 9: {8: 0.9}, 3: {1: 0.05}}, last=2)
    draft = grow([lookup], [drafter], nodes=8).draft
    assert set(draft.source.split("+")) == {"eagle3", "table"}
    assert draft.evaluated[0] == Work(2, 0)
    assert complete(drafter.head)
    assert line(drafter, 1) == [3]


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
        done = engine.generate("abc", **options)
    assert done.text == expected
    assert done.stats.drafts_by_source["eagle3"]["accepted"] > 10


def test_states_are_forgotten_where_those_of_other_layers_are_required():
    states, request = Features(), Request([1, 5, 2], SamplingParams(), SeededRandomness(1))
    verifier = LocalVerifier(ToyModel(three_ways, vocab_size=N), states=states)
    verifier.require(Requires((1,)))
    list(verifier.begin(request))
    verifier.verify(Draft())
    for layers, n in (((1,), 3), ((), 3), ((1,), 3), ((3,), 0)):
        verifier.require(Requires(layers))
        assert states.end == n


class Deciding(FixedDepth):
    """A policy that lets a head rest now and then: by answers, and within one."""

    def __init__(self, *, off_in=(), off_after=None):
        super().__init__(4, max_leaves=31)
        self._off_in, self._off_after, self._n = set(off_in), off_after, -1

    def begin(self, request, drafters):
        self._n, self._steps = self._n + 1, 0
        self.roles = (Role.OFF if self._n in self._off_in else Role.MATCHED,)

    def observe(self, step, verified, growth):
        self._steps += 1
        if self._steps == self._off_after:
            self.roles = (Role.OFF,)


def taps_of(engine):
    """Return a list to which the layers are added that its target is asked for from now on."""
    taps, tap = [], engine.target.tap
    engine.target.tap = lambda layers: taps.append(tuple(layers)) or tap(layers)
    return taps


def test_a_head_that_rests_gets_no_states():
    engine = session(Deciding(off_in=[1, 2]))
    taps = taps_of(engine)
    for _ in range(5):
        run(engine, [1, 5, 2])
        assert complete(engine.head)
    assert [layers for layers, _ in itertools.groupby(taps)] == [LAYERS, (), LAYERS]


def test_a_head_may_rest_within_an_answer():
    engine = session(Deciding(off_after=3))
    taps = taps_of(engine)
    assert run(engine, [1, 5, 2]) == run(session(FixedDepth(0)), [1, 5, 2])
    assert taps[-1] == ()
    assert 0 < engine.stats.num_draft_steps <= 3


def test_a_head_that_is_not_worth_its_states_rests():
    """The head takes as long as the target: after a while the policy takes its states away."""
    found = costs([0.03, 0.04], 0.03)
    engine = session(Adaptive(found))
    taps = taps_of(engine)
    for _ in range(12):
        run(engine, [1, 5, 2], 40)
    assert [layers for layers, _ in itertools.groupby(taps)][:2] == [LAYERS, ()]


def test_plain_requests_are_evaluated_without_states():
    engine = session(FixedDepth(3))
    taps = taps_of(engine)
    run(engine, [1, 5, 2])
    run(engine, [1, 5, 2], num_draft_tokens=0)
    run(engine, [1, 5, 2], num_draft_tokens=0)
    run(engine, [1, 5, 2])
    assert [layers for layers in taps if layers] == [LAYERS, LAYERS]
    assert [layers for layers, _ in itertools.groupby(taps)] == [LAYERS, (), LAYERS]
    assert complete(engine.head)


def test_a_plain_request_comes_first():
    engine = session(FixedDepth(3))
    run(engine, [1, 5, 2], num_draft_tokens=0)
    assert engine.states.end == 0
    run(engine, [1, 5, 2])
    assert engine.states.end > 0
