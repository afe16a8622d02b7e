"""Loops on the toy backend with every kind of drafter, their laws, and noise that is fixed."""

from __future__ import annotations

import functools
import itertools

import numpy as np

from edgespec import SamplingParams, ToyModel, ToyTokenizer
from edgespec.backends.features import Features
from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.forced import ForcedDrafter
from edgespec.drafters.heads import HeadDrafter
from edgespec.drafters.runner_ups import RunnerUpDrafter
from edgespec.drafters.suffix import SuffixDrafter
from edgespec.drafters.window import Window
from edgespec.policies.adaptive import Adaptive
from edgespec.policies.base import Limits, Policy
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.types import Stats
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


def session(
    kind,
    acceptance="block",
    zeros=False,
    truncate=True,
    depth=2,
    p_min=0.0,
    window=None,
    at_least=1,
    leaves=None,
    costs=None,
    target=None,
    **place,
):
    """Return a fresh loop. costs, target: those of several loops' slots; place: where a slot is."""

    def toy(seed, n_ctx=16 if window else 256):  # a short one keeps fewer first tokens in view
        return ToyModel(probs_of(seed, zeros), vocab_size=3, n_ctx=n_ctx, truncate=truncate)

    words = {word.strip() for word in kind.split(",")}
    if costs is None and words & {"auto", "priced"}:
        costs = Costs(CHEAP, depth)
    if "fours" in words:
        costs = Costs(FOURS, 3)
        costs.fills = True
    target = target or toy(1)
    states = Features()
    made = [ForcedDrafter()] if "forced" in words else []
    if words & {"suffix", "tree"}:
        made.append(SuffixDrafter(1))
    if "tree" in words:
        made.append(RunnerUpDrafter())
    options = {"acceptance": acceptance, "p_min": p_min}
    if words & {"model", "model tree"}:
        view = Window(window, 16 if window else 256)
        top_k = 2 if "model tree" in words else 1
        made.append(ModelDrafter(toy(2), 3, top_k=top_k, window=view, **options))
    if heads := words & {"head", "head of layers", "head of blocks"}:
        make, most = (
            (BlockToyHead, 3)
            if "head of blocks" in heads
            else (ToyHead, 2 * ("head of layers" in heads))
        )
        head = make(probs_of(2, zeros), vocab_size=3, max_depth=most)
        view = Window(window, head.n_ctx, n_sinks=0)
        made.append(HeadDrafter(head, 3, states, top_k=2, window=view, **options))
    of_chains = {"suffix", "model", "both", "first", "auto", "priced", "fours", "end"}
    trees = truncate and bool(words - of_chains)
    leaves = leaves or (8 if trees else 1)
    policy = FixedDepth(depth, at_least, max_leaves=leaves)
    if "auto" in words:
        policy = Adaptive(costs)
    if "end" in words:
        policy = AtTheEnd(depth, max_leaves=leaves)
    if "priced" in words:
        policy = Priced(costs, depth)
    ticks = itertools.count()  # time is a function of what was done: each look at it a tick
    clock = lambda: 1e-3 * next(ticks)  # noqa: E731
    verifier = LocalVerifier(target, acceptance, clock, states=states, **place)
    return Session(verifier, made, policy, clock=clock)


CHEAP = Profile(Curve((1,), (1, 8), ((1e-3, 1.1e-3),)), Curve((1,), (1, 8), ((1e-4, 1.1e-4),)))
FOURS = Profile(
    Curve((1,), (1, 2, 3, 4, 5), ((1e-3, 1.3e-3, 1.28e-3, 1.06e-3, 1.4e-3),)), CHEAP.draft
)


class AtTheEnd(FixedDepth):
    """Opens no model but after what lookups guess."""

    def limits(self, budget):
        return super().limits(budget)._replace(paused=True)


class Priced(Policy):
    """Ends drafts where rows and learned acceptance probabilities are low."""

    def __init__(self, costs, depth):
        self._costs, self._depth = costs, depth

    def limits(self, budget):
        return Limits(min(budget.limit, self._depth), 2500.0, self._costs)


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
    "suffix", "model", "suffix, model", "suffix, model, end", "suffix, model, priced",
    "suffix, model, auto", "tree", "tree, auto", "tree, model", "tree, model, end",
    "tree, model, priced", "tree, model, auto", "model tree", "suffix, model tree, auto",
    "tree, model tree", "tree, model tree, end", "tree, model tree, priced",
    "tree, model tree, auto", "head", "tree, head", "tree, head, auto", "head of layers",
    "head of blocks", "tree, head of blocks, auto", "suffix, model, priced, fours",
    "tree, model tree, priced, fours",
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
        noise = np.array(
            [self.noise[(position - len(PROMPT)) % len(self.noise)][t] for t in distribution.ids]
        )
        with np.errstate(divide="ignore"):
            return noise / distribution.probs

    def bernoulli(self, probability):
        raise AssertionError("coupled sampling uses no other randomness")

    draw = bernoulli
