"""Greedy text with a tree forced at every step against plain decoding, on Spec-Bench questions;
and rows of nodes against those of their paths, decoded as chains in a context of their own.

    python -m benchmarks.forced_trees question.dev.jsonl NAME TARGET [--batch-invariant]
        [--questions 30] [--tokens 128] [--n-ctx 2048] [--rows-every 8]

Trees have 2 to 31 nodes (fewer where batch_invariant allows fewer rows): what token recycling
guesses, the next tokens of the plain text on some path, random tokens; siblings in random order.
Differences of texts are explained as in equality.py.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
from collections.abc import Sequence

import numpy as np

from benchmarks.common import GREEDY, chat_prompt, model, save, spread
from benchmarks.equality import gap, noise_of
from edgespec import Engine, backends, load
from edgespec.cache.token_cache import TokenCache
from edgespec.sampling.trees import path_to
from tests.helpers.forced_trees import ForcedTrees, registered

NARROW = 4  # tokens an evaluation of emitted tokens: as many as give the same rows everywhere


class RowCheck:
    """Compares rows of nodes with those of their paths in a second context of the same file.

    every: trees from one that is compared to the next. largest: difference of two logits.
    """

    def __init__(self, engine: Engine, every: int) -> None:
        self._cache = engine.sessions[0]._verifier._cache
        target = engine.target
        self._decode_tree, target.decode_tree = target.decode_tree, self._watched
        self._other = TokenCache(backends.of(target.path).open_model(target.path, target.config))
        self._every, self._rng, self._prompt = every, random.Random(1), []
        self._count = itertools.count(1)
        self.n_rows = self.n_equal = 0
        self.largest = 0.0

    def begin(self, prompt: Sequence[int]) -> None:
        """Read a prompt, all but the last token, in the pieces in which the verifier does it."""
        self._prompt, other = list(prompt), self._other
        other.truncate(0)
        can = other.model.capabilities
        step = max(can.max_batch - can.max_rows, can.max_batch // 2, 1)
        while len(prompt) - len(other.tokens) > step:
            other.decode(prompt[len(other.tokens) :][:step], 0)
        if rest := prompt[len(other.tokens) : -1]:
            other.decode(rest, 0)

    def _watched(self, tokens, parents, abort=None):
        outputs = self._decode_tree(tokens, parents, abort)
        if self._prompt and next(self._count) % self._every == 0:
            path = path_to(parents, self._rng.randrange(len(parents)))
            nodes = tokens[len(tokens) - len(parents) :]
            rows = outputs.logits[[0, *[node + 1 for node in path]]]
            self._compare([nodes[node] for node in path], rows)
        return outputs

    def _compare(self, path: Sequence[int], rows: np.ndarray) -> None:
        text, other = self._cache.tokens, self._other
        n = len(other.tokens)
        assert other.tokens == text[:n], "the text was changed after it was emitted"
        for start in range(n, len(text) - 1, NARROW):
            other.decode(text[start : min(start + NARROW, len(text) - 1)], 0)
        found = other.decode([text[-1], *path], len(path) + 1).logits
        other.truncate(len(text) - 1)
        self.n_rows += len(rows)
        self.n_equal += sum(map(np.array_equal, rows, found))
        self.largest = max(self.largest, float(np.abs(rows - found).max()))

    def result(self) -> dict:
        return {
            "compared": self.n_rows, "equal_to_the_last_bit": self.n_equal,
            "largest_difference": round(self.largest, 4),
        }  # fmt: skip


def forced(target: str, n_ctx: int, invariant: bool) -> tuple[Engine, ForcedTrees]:
    """Return an engine that drafts a tree at every step, and its drafter."""
    config = {
        "method": "forced_trees", "num_speculative_tokens": 31, "draft_p_min": 0.0,
    }  # fmt: skip
    options = {"n_ctx": n_ctx, "batch_invariant": invariant}
    with registered():
        engine = load(model(target), None, speculative_config=config, **options, sampling=GREEDY)
    drafter = engine.sessions[0]._drafting.drafters[0]
    assert isinstance(drafter, ForcedTrees)
    return engine, drafter


class Comparison:
    """Plain texts against those with trees."""

    def __init__(self) -> None:
        self.differences: list[dict] = []
        self.noise: list[float] = []
        self.n_equal = self.n_steps = self.n_accepted = 0

    def add(self, question: int, category: str, plain, drafted) -> None:
        """Compare two answers to a question."""
        self.n_steps += drafted.stats.num_spec_steps
        self.n_accepted += drafted.stats.num_accepted_draft_tokens
        pairs = list(zip(plain.token_ids, drafted.token_ids, strict=False))
        part = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        self.noise += noise_of(plain, drafted, part)
        if part == len(pairs):
            assert plain.token_ids == drafted.token_ids
            self.n_equal += 1
            return
        distance = gap(plain.logprobs[part].top, *pairs[part])
        self.differences.append({
            "question_id": question, "category": category, "position": part,
            "gap": None if distance is None else round(distance, 4),
        })  # fmt: skip

    def result(self) -> dict:
        largest = max(self.noise)
        return {
            "steps": self.n_steps, "accepted_nodes": self.n_accepted,
            "equal": self.n_equal, "differences": self.differences,
            "unexplained": sum(d["gap"] is None or d["gap"] > largest for d in self.differences),
            "noise_of_the_gap": {
                "positions": len(self.noise), "median": round(statistics.median(self.noise), 4),
                "p99": round(float(np.quantile(self.noise, 0.99)), 4), "max": round(largest, 4),
            },
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("name")
    parser.add_argument("target")
    parser.add_argument("--batch-invariant", action="store_true")
    parser.add_argument("--questions", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--n-ctx", type=int, default=2048)
    parser.add_argument("--rows-every", type=int, default=8)
    given = parser.parse_args()
    texts, n_questions = Comparison(), 0
    options = {"max_tokens": given.tokens, "logprobs": 5}
    engine, drafter = forced(given.target, given.n_ctx, given.batch_invariant)
    with engine:
        rows = RowCheck(engine, given.rows_every)
        for question, category, text in itertools.islice(spread(given.file), given.questions):
            prompt = chat_prompt(engine, text)
            engine.target.truncate(0)
            engine.generate(prompt, max_tokens=1, disable_spec_decode=True)
            plain = engine.generate(prompt, **options, disable_spec_decode=True)
            drafter.known = [*prompt, *plain.token_ids]
            rows.begin(prompt)
            drafted = engine.generate(prompt, **options)
            texts.add(question, category, plain, drafted)
            n_questions += 1
            print(question, category, texts.n_equal, n_questions, rows.result(), file=sys.stderr)
        most_rows = engine.target.capabilities.max_rows
    save(f"forced_trees_{given.name}", {
        "target": given.target, "batch_invariant": given.batch_invariant, "most_rows": most_rows,
        "questions": n_questions, "tokens": given.tokens,
        "trees": drafter.n_trees, "nodes": drafter.n_nodes,
        "accepted_by_place_among_siblings": dict(drafter.places),
        **texts.result(), "rows_of_nodes": rows.result(),
    })  # fmt: skip


if __name__ == "__main__":
    main()
