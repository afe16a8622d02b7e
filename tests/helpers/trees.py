"""Trees of tokens, drawn at random."""

from __future__ import annotations

import random

import numpy as np

from edgespec.sampling.trees import path_to


def random_tree(rng: random.Random, n: int, leaves: int) -> list[int]:
    """Return the parents of n nodes in depth-first order, with at most so many leaves."""
    while True:
        line, parents = [-1], []
        for node in range(n):
            while len(line) > 1 and rng.random() < 0.4:
                line.pop()
            parents.append(line[-1])
            line.append(node)
        if n - len({parent for parent in parents if parent >= 0}) <= leaves:
            return parents


def differences(model, rng: random.Random, n_words: int, rounds: int = 10):
    """Yield how far the rows of every node of random trees, and a row after the path that was
    kept, are from those of chains.
    """
    for _ in range(rounds):
        n_past, n = model.n_past, rng.randrange(2, model.capabilities.max_rows)
        parents = random_tree(rng, n, model.capabilities.max_leaves)
        last, *nodes = tokens = [rng.randrange(2, n_words) for _ in range(n + 1)]
        rows = model.decode_tree(tokens, parents).logits.copy()
        path = path_to(parents, rng.randrange(n))
        model.keep(path)
        behind = model.decode([last]).logits.copy()
        for node in range(n):
            model.truncate(n_past)
            chain = [last, *(nodes[i] for i in path_to(parents, node))]
            found = model.decode(chain, len(chain)).logits[-1]
            yield float(np.abs(found - rows[node + 1]).max())
        model.truncate(n_past)
        model.decode([last, *(nodes[i] for i in path)], 0)
        yield float(np.abs(model.decode([last]).logits - behind).max())
        model.truncate(n_past + 1 + len(path))
