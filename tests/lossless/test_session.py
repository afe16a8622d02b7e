"""The whole loop on the toy backend, enumerated: drafters, source choice, stopping."""

import itertools

import numpy as np
import pytest

from edgespec import SamplingParams, ToyModel, ToyTokenizer
from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.cascade import Cascade
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.heads import HeadDrafter
from edgespec.drafters.merged import combined
from edgespec.drafters.model_tree import ModelTreeDrafter, TreeOptions
from edgespec.drafters.runner_ups import RunnerUpBranches
from edgespec.drafters.suffix import SuffixBranches, SuffixDrafter
from edgespec.drafters.trees import TreeDrafter
from edgespec.policies.adaptive import Adaptive
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.types import Stats, Thresholds
from edgespec.verifiers.local import LocalVerifier
from tests.helpers.enumeration import law, total_variation
from tests.helpers.toy_head import BlockToyHead, ToyHead

TOKENIZER = ToyTokenizer(["a", "b", "."], eog=[2])
PROMPT = [0, 1, 0, 1]


def probs_of(seed, zeros=False):
    """Next-token probabilities that depend on the last three tokens; EOG is token 2."""

    def probs(tokens):
        code = sum((t + 1) * 4**i for i, t in enumerate(tokens[-3:]))
        rng = np.random.default_rng([seed, code, len(tokens) % 2])
        p = rng.dirichlet([0.8, 0.8, 0.4])
        if zeros and rng.random() < 0.5:
            p[rng.integers(3)] = 0
        return p / p.sum()

    return probs


def session(kind, acceptance="block", zeros=False, truncate=True, depth=2, p_min=0.0, window=None):
    def toy(seed, n_ctx=16 if window else 256):  # a short one keeps fewer first tokens in view
        return ToyModel(probs_of(seed, zeros), vocab_size=3, n_ctx=n_ctx, truncate=truncate)

    lookup = SuffixDrafter(1)
    tree = TreeDrafter(
        {"suffix": SuffixBranches(1), "runner_ups": RunnerUpBranches()}, 8 if truncate else 1
    )
    costs = Costs(CHEAP, depth) if "auto" in kind else None
    options = {"acceptance": acceptance, "p_min": p_min, "costs": costs, "window": window}
    model = ModelDrafter(toy(2), 3, **options)
    if "model tree" in kind or "merged" in kind:
        model = ModelTreeDrafter(toy(2), 3, TreeOptions(2, 8 if truncate else 1), **options)
    target, head = toy(1), None
    if "head" in kind:
        make, most = (BlockToyHead, 3) if "blocks" in kind else (ToyHead, 2 * ("layers" in kind))
        head = make(probs_of(2, zeros), vocab_size=3, max_depth=most)
        shape = TreeOptions(2, 8) if truncate else TreeOptions(1, 1)
        model = HeadDrafter(head, 3, shape, **options)
    sources = {
        "none": [],
        "suffix": [lookup],
        "model": [model],
        "both": [lookup, model],
        "model, then suffix": [Cascade(model, lookup)],
        "suffix, then model": [Cascade(lookup, model)],
        "thresholds": [Cascade(model, lookup)],
        "tree": [tree],
        "auto": combined([lookup], model),
        "trees, auto": combined([tree, lookup], model),
        "model tree": [model],
        "model tree, auto": combined([lookup], model),
        "merged": combined([tree], model)[1:2],
        "merged, auto": combined([tree], model),
        "head": [model],
        "head, merged": combined([tree], model)[1:2],
        "head, auto": combined([tree], model),
        "head of layers": [model],
        "head of blocks": [model],
        "head of blocks, auto": combined([tree], model),
    }[kind]
    drafters = {"none": [], "suffix": [lookup], "model": [model], "tree": [tree]}.get(
        kind, [model] if kind in ALONE else [tree, lookup, model]
    )
    other = WithThresholds(depth) if kind == "thresholds" else FixedDepth(depth)
    policy = Adaptive(costs) if costs else other
    ticks = itertools.count()  # time is a function of what was done: each look at it a tick
    clock = lambda: 1e-3 * next(ticks)  # noqa: E731
    verifier = LocalVerifier(target, acceptance, clock, head=head)
    return Session(verifier, drafters, policy, sources=sources, clock=clock)


ALONE = ("model tree", "head", "head of layers", "head of blocks")
CHEAP = Profile(Curve((1,), (1, 8), ((1e-3, 1.1e-3),)), Curve((1,), (1, 8), ((1e-4, 1.1e-4),)))


class WithThresholds(FixedDepth):
    """Ends drafts where rows and learned acceptance probabilities are low."""

    def choose(self, sources, budget):
        plan = super().choose(sources, budget)
        return plan._replace(thresholds=Thresholds((0.5, 0.4, 0.3), (0.0, 0.45, 0.35)))


def outcome(chance, made, params):
    output = Output(TOKENIZER, params)
    stats = Stats()
    list(made.generate(Request(PROMPT, params, chance), output, stats))
    output.flush()
    return tuple(output.token_ids), output.text, output.finish_reason, output.stop_reason


def loop_law(kind, params, **options):
    """Return the law of a fresh session a run: drafters must learn from the choices alone."""
    return law(lambda chance: outcome(chance, session(kind, **options), params))


KINDS = [
    "suffix", "model", "both", "model, then suffix", "suffix, then model", "thresholds", "auto",
    "tree", "trees, auto", "model tree", "model tree, auto", "merged", "merged, auto",
    "head", "head, merged", "head, auto", "head of layers", "head of blocks",
    "head of blocks, auto",
]  # fmt: skip


PARAMS = [
    SamplingParams(temperature=1.0, max_tokens=3),
    SamplingParams(temperature=1.0, max_tokens=4, stop=("ba", "aab")),
    SamplingParams(temperature=0.7, max_tokens=3, ignore_eos=True, top_k=2),
    SamplingParams(temperature=1.3, max_tokens=3, top_p=0.8, repetition_penalty=1.5,
                   presence_penalty=0.5, frequency_penalty=0.3),
]  # fmt: skip


@pytest.mark.parametrize("params", PARAMS, ids=range(len(PARAMS)))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("acceptance", ["block", "rejection", "deterministic"])
def test_law_equals_plain(kind, acceptance, params):
    plain = loop_law("none", params)
    assert abs(sum(plain.values()) - 1) <= 1e-12
    found = loop_law(kind, params, acceptance=acceptance)
    assert total_variation(found, plain) <= 1e-12


@pytest.mark.parametrize("acceptance", ["block", "rejection"])
@pytest.mark.parametrize("options", [
    {"zeros": True}, {"truncate": False}, {"depth": 3}, {"p_min": 0.6},
    {"p_min": 0.6, "zeros": True}, {"window": 1}, {"window": 2, "truncate": False},
])  # fmt: skip
def test_law_in_harder_settings(acceptance, options):
    params = PARAMS[0]
    plain = loop_law("none", params, zeros=options.get("zeros", False))
    for kind in KINDS[1:]:
        found = loop_law(kind, params, acceptance=acceptance, **options)
        assert total_variation(found, plain) <= 1e-12


def test_a_window_moves_within_these_answers():
    made = session("model", window=1)
    outcome(None, made, SamplingParams(max_tokens=3, ignore_eos=True))
    assert made._drafters[0]._start > 1


class GridNoise:
    """Fixed noise per position and token; `gumbel` as in production."""

    def __init__(self, noise):
        self.noise = noise

    def gumbel(self, position, distribution):
        return int(distribution.ids[int(self.races(position, distribution).argmin())])

    def smallest(self, position, distribution, k):
        races = self.races(position, distribution)
        found = [(int(distribution.ids[i]), races[i]) for i in races.argsort(kind="stable")[:k]]
        return [(token, race) for token, race in found if race < np.inf]

    def races(self, position, distribution):
        noise = np.array([self.noise[position - len(PROMPT)][t] for t in distribution.ids])
        with np.errstate(divide="ignore"):
            return noise / distribution.probs

    def bernoulli(self, probability):
        raise AssertionError("coupled sampling uses no other randomness")

    draw = bernoulli


def test_coupled_text_is_a_function_of_noise_alone():
    """For every noise of a grid: the same text with any drafter, any depth, and with none."""
    params = SamplingParams(temperature=1.0, max_tokens=3)
    grid = [*itertools.permutations([0.2, 0.9, 1.7]), (0.5, 0.6, 0.7), (0.1, 2.0, 2.1)]
    plain = session("none")
    others = [session(k, "coupled", depth=d) for k in KINDS for d in (1, 3)]
    others += [session(k, "coupled", window=1) for k in ("model", "model tree", "head")]
    texts = set()
    for noise in itertools.product(grid, repeat=3):
        chance = GridNoise([*noise, *noise])
        expected = outcome(chance, plain, params)
        texts.add(expected)
        for made in others:
            assert outcome(chance, made, params) == expected
    assert len(texts) > 5


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_equals_plain(kind):
    for seed_text in itertools.product(range(2), repeat=4):
        prompt = list(seed_text)
        for params in (
            SamplingParams(max_tokens=12, ignore_eos=True),
            SamplingParams(max_tokens=12),
        ):
            texts = []
            for made in (session("none"), session(kind, depth=3)):
                output = Output(TOKENIZER, params)
                list(made.generate(Request(prompt, params, None), output, Stats()))
                texts.append((output.token_ids, output.finish_reason))
            assert texts[0] == texts[1]


def test_a_policy_that_looks_at_drawn_tokens_is_caught():
    class Peeking(ModelDrafter):
        def propose(self, context, limit, thresholds):
            draft = super().propose(context, limit, thresholds)
            return type(draft)() if draft.tokens and draft.tokens[0] == 0 else draft

    params = PARAMS[0]
    target = ToyModel(probs_of(1), vocab_size=3)
    peeking = Peeking(ToyModel(probs_of(2), vocab_size=3), 3)
    made = Session(LocalVerifier(target), [peeking], FixedDepth(2))
    found = law(lambda chance: outcome(chance, made, params))
    assert total_variation(found, loop_law("none", params)) > 1e-3
