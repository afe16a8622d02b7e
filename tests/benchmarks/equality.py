"""Greedy text with speculation against plain decoding, token for token, on Spec-Bench questions.

    python -m tests.benchmarks.equality question.dev.jsonl NAME TARGET [DRAFT] [--batch-invariant]

Wherever two texts part, the plain run's log-probability gap between the two tokens stands
beside the noise: how much the same gap (of the plain run's two best tokens) differs between
the two runs at all positions where they still agree.
"""

from __future__ import annotations

import statistics
import sys

import numpy as np

from tests.helpers.benchmarks import DEPTH, N_TOKENS, chat_prompt, load_fixed, save, spread


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


def main() -> None:
    file, name, target, *draft = [word for word in sys.argv[1:] if word != "--batch-invariant"]
    invariant = True if "--batch-invariant" in sys.argv else None
    differences, noise, n_questions, n_accepted = [], [], 0, 0
    with load_fixed(target, *draft, batch_invariant=invariant) as engine:
        for question, category, text in spread(file):
            prompt = chat_prompt(engine, text)
            options = {"max_tokens": N_TOKENS, "logprobs": 5}
            engine.generate(prompt, max_tokens=1, disable_spec_decode=True)
            plain = engine.generate(prompt, **options, disable_spec_decode=True)
            engine.generate(prompt, max_tokens=1, disable_spec_decode=True)
            drafted = engine.generate(prompt, **options)
            n_questions += 1
            n_accepted += drafted.stats.num_accepted_draft_tokens
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
    save(f"equality_{name}", {
        "target": target, "draft": draft[0] if draft else "prompt lookup", "depth": DEPTH,
        "batch_invariant": invariant,
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
