"""Greedy text with speculation against plain decoding, token for token, on Spec-Bench questions.

    python -m benchmarks.equality question.dev.jsonl NAME TARGET [DRAFT] [--batch-invariant]
        [--spec-type NAME] [--depth N] [--skip N] [--only N]

With --spec-type of a drafter of trees (recycling, runner_ups) and a depth of some nodes a tree is
verified at every step. --skip and --only take a part of the 30 questions.

Wherever two texts part, the plain run's log-probability gap between the two tokens stands
beside the noise: how much the same gap (of the plain run's two best tokens) differs between
the two runs at all positions where they still agree.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from itertools import islice

import numpy as np

from benchmarks.common import DEPTH, N_TOKENS, chat_prompt, load_fixed, save, spread


def gap(top, first, second):
    """Log-probability of `first` over `second`; None where one is not among the likeliest."""
    found = dict(top)
    return found[first] - found[second] if first in found and second in found else None


def noise_of(plain, drafted, n):
    for a, b in zip(plain.logprobs[:n], drafted.logprobs[:n], strict=True):
        (first, p), (second, q) = a.top[:2]
        other = gap(b.top, first, second)
        if other is not None:
            yield abs((p - q) - other)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("file", "name", "target"):
        parser.add_argument(name)
    parser.add_argument("draft", nargs="?")
    parser.add_argument("--batch-invariant", action="store_true")
    parser.add_argument("--spec-type", default="")
    parser.add_argument("--depth", type=int, default=DEPTH)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--only", type=int)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    invariant = given.batch_invariant
    only = None if given.only is None else given.skip + given.only
    options = {"spec_type": given.spec_type, "depth": given.depth, "batch_invariant": invariant}
    n_siblings = 0
    differences, noise, n_questions, n_accepted = [], [], 0, 0
    with load_fixed(given.target, given.draft, **options) as engine:
        for question, category, text in islice(spread(given.file), given.skip, only):
            prompt = chat_prompt(engine, text)
            engine.generate(prompt, max_tokens=1, disable_spec_decode=True)
            plain = engine.generate(
                prompt, max_tokens=N_TOKENS, logprobs=5, disable_spec_decode=True
            )
            engine.generate(prompt, max_tokens=1, disable_spec_decode=True)
            drafted = engine.generate(prompt, max_tokens=N_TOKENS, logprobs=5)
            n_questions += 1
            n_accepted += drafted.stats.num_accepted_draft_tokens
            per_position = drafted.stats.drafted_per_position
            n_siblings += sum(per_position[:1]) - drafted.stats.num_draft_steps
            pairs = list(zip(plain.token_ids, drafted.token_ids, strict=False))
            part = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
            noise += noise_of(plain, drafted, part)
            if part < len(pairs):
                distance = gap(plain.logprobs[part].top, *pairs[part])
                differences.append({
                    "question_id": question, "category": category, "position": part,
                    "gap": None if distance is None else round(distance, 4),
                })  # fmt: skip
            assert part < len(pairs) or plain.token_ids == drafted.token_ids
            print(question, category, part, file=sys.stderr)
    largest = max(noise)
    save(f"equality_{given.name}", {
        "target": given.target, "draft": given.draft or given.spec_type or "prompt lookup",
        "depth": given.depth, "batch_invariant": invariant, "siblings_at_depth_1": n_siblings,
        "questions": n_questions, "tokens": N_TOKENS, "accepted_draft_tokens": n_accepted,
        "equal": n_questions - len(differences),
        "differences": differences,
        "unexplained": sum(d["gap"] is None or d["gap"] > largest for d in differences),
        "noise_of_the_gap": {
            "positions": len(noise), "median": round(statistics.median(noise), 4),
            "p99": round(float(np.quantile(noise, 0.99)), 4), "max": round(largest, 4),
        },
    })  # fmt: skip


if __name__ == "__main__":
    main()
