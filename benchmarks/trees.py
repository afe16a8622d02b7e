"""A tree of n tokens against a chain of n tokens, interleaved, and Python's share of a step.

    python -m benchmarks.trees NAME [--rounds N] [--past N] [--label LABEL]

NAME.gguf, or a folder NAME-onnx-PRECISION. A tree is branches of two nodes and, after
them, a line of half the nodes, whose first quarter is accepted: `keep` has something to move. Its
time is in a tree's, the truncation in a chain's.

Python's share is what a whole greedy step takes outside the engine's evaluations, with sixteen
drafted tokens as a tree and as a chain, in answers that take turns.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path

import edgespec
from benchmarks.common import median, model, save
from edgespec import EngineConfig, drafters
from edgespec.drafters.base import NOWHERE, Drafter
from edgespec.loading.models import open_model
from edgespec.sampling.trees import children_of

WIDTHS, N_DRAFTED, N_RIGHT, N_TOKENS, N_ANSWERS = (8, 16, 32), 16, 4, 120, 8
TEXT = "The quick brown fox jumps over the lazy dog, and then it thinks about what to do next. "


def parents_of(n: int) -> list[int]:
    """Return branches of two nodes, and after them a line of half the n nodes."""
    n_line = (n + 1) // 2
    beside = [i - 1 if i % 2 else -1 for i in range(n - n_line)]
    return [*beside, -1, *range(n - n_line, n - 1)]


def seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def ratios(target, tokens: list[int], rounds: int) -> dict:
    """Milliseconds of chains, and what trees take relative to them."""
    found: dict = {}
    n_past = target.n_past

    def chain(n):
        target.decode(tokens[:n], n)
        target.truncate(n_past + 1 + n // 4)

    def tree(n):
        parents = parents_of(n - 1)
        target.decode_tree(tokens[:n], parents)
        first = len(parents) - len(parents) // 2 - 1
        target.keep(range(first, first + n // 4))

    for n in WIDTHS:
        times: dict = {chain: [], tree: []}
        for i in range(rounds + 5):
            for kind in (chain, tree) if i % 2 else (tree, chain):
                took = seconds(lambda kind=kind, n=n: kind(n))
                target.truncate(n_past)
                times[kind] += [took] if i >= 5 else []
        found[n] = {
            "chain_ms": round(1e3 * median(times[chain]), 3),
            "tree_over_chain": round(median(times[tree]) / median(times[chain]), 4),
        }
    return found


class Known(Drafter):
    """A drafter that knows the first N_RIGHT tokens and is wrong about all others, as a tree or as
    a chain. Its states are nodes.
    """

    name = "known"
    parents: tuple[int, ...] = ()
    text: tuple[int, ...] = ()

    def begin(self, request, role):
        self._n_emitted = 0

    def root(self):
        right = Known.text[self._n_emitted :][:N_RIGHT]
        if len(right) < N_RIGHT:
            return NOWHERE
        wrong = range(1000, 1000 + N_DRAFTED - N_RIGHT)
        first = N_DRAFTED // 2 if len(set(Known.parents)) < N_DRAFTED else 0
        self._tokens = (*wrong[:first], *right, *wrong[first:])
        self._children = children_of(Known.parents)
        return -1

    def step(self, state, token):
        return next(node for node in self._children[state] if self._tokens[node] == token)

    def children(self, state, least=0.0):
        nodes = self._children[state]
        return [(self._tokens[node], 0.5 ** (i + 1)) for i, node in enumerate(nodes)]

    def accept(self, verified):
        self._n_emitted += len(verified.tokens)


def shares(path: Path, n_threads: int) -> dict[str, float]:
    """Milliseconds of a step outside the engine's evaluations, with a tree and with a chain."""
    drafters.register(Known.name, "known tokens", trees=True)(lambda context: Known())
    target = open_model(path, EngineConfig(n_ctx=1024, n_threads=n_threads))
    kinds: dict = {
        "chain": tuple(range(-1, N_DRAFTED - 1)), "tree": tuple(parents_of(N_DRAFTED)),
    }  # fmt: skip
    inside, steps = [0.0], []

    def watched(call):
        def timed(*args, **options):
            start = time.perf_counter()
            found = call(*args, **options)
            inside[0] += time.perf_counter() - start
            return found

        return timed

    target.decode, target.decode_tree = watched(target.decode), watched(target.decode_tree)
    config = {
        "method": Known.name, "num_speculative_tokens": N_DRAFTED, "draft_p_min": 0.0,
    }  # fmt: skip
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    with edgespec.assemble(target, target.tokenizer, None, config) as engine:
        options = {"max_tokens": N_TOKENS, "ignore_eos": True}
        prompt = engine.encode(TEXT)
        Known.text = engine.generate(prompt, **options, disable_spec_decode=True).token_ids
        engine.sessions[0]._policy.observe = lambda step, *_: steps.append(
            (time.perf_counter(), inside[0], step.n_drafted, step.n_accepted)
        )
        for _ in range(N_ANSWERS):
            for kind, Known.parents in kinds.items():
                steps.clear()
                engine.generate(prompt, **options)
                for (then, before, *_), (now, after, *counts) in pairwise(steps):
                    if counts == [N_DRAFTED, N_RIGHT]:
                        times[kind].append(now - then - (after - before))
    return {kind: round(1e3 * median(values), 3) for kind, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--past", type=int, default=300)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--label", default="")
    given = parser.parse_args()
    path = model(given.name)
    target = open_model(path, EngineConfig(n_ctx=given.past + 64, n_threads=given.threads))
    if target.capabilities.max_leaves < max(WIDTHS) // 4 + 1:
        parser.error(f"{path} evaluates chains only: {target.placement}")
    tokens = target.tokenizer.encode(TEXT * (given.past // 8))
    target.decode(tokens[: given.past], 0)
    evaluations = ratios(target, tokens[given.past :], given.rounds)
    target.close()
    share = shares(path, given.threads)
    save(f"trees_{given.label or given.name}", {
        "past": given.past, "rounds": given.rounds, "tokens": evaluations,
        "python_ms_a_step": share | {"difference": round(share["tree"] - share["chain"], 3)},
    })  # fmt: skip


if __name__ == "__main__":
    main()
