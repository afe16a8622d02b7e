"""Loops on the toy backend with every kind of drafter, their laws, and noise that is fixed."""

from __future__ import annotations

import functools
import itertools

import numpy as np

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
from tests.helpers.enumeration import law
from tests.helpers.toy_head import BlockToyHead, ToyHead

TOKENIZER = ToyTokenizer(["a", "b", "."], eog=[2])
PROMPT = [0, 1, 0, 1]


@functools.cache
def probs_of(seed, zeros=False):
    """Next-token probabilities that depend on the last three tokens; EOG is token 2."""

    def probs(tokens):
        return row(len(tokens) % 2, *tokens[-3:])

    @functools.cache
    def row(odd, *last):
        code = sum((t + 1) * 4**i for i, t in enumerate(last))
        rng = np.random.default_rng([seed, code, odd])
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


def outcome(chance, made, params, stats=None):
    """Return what a loop emits, and why it ends. stats: what it counts, too."""
    output, stats = Output(TOKENIZER, params), stats or Stats()
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
