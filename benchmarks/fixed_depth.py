"""Speed at a fixed depth on Spec-Bench questions, plain decoding in the same run.

    python -m benchmarks.fixed_depth question.dev.jsonl NAME TARGET [DRAFT | auto]

30 questions of all categories, 128 tokens, plain and drafted in turn on the same engine, the
prompt in the cache for both.
"""

from __future__ import annotations

import statistics
import sys

from benchmarks.common import DEPTH, N_TOKENS, chat_prompt, load_fixed, save, spread


def main() -> None:
    file, name, target, *draft = sys.argv[1:]
    rows = []
    with load_fixed(target, *draft) as engine:
        for number, (question, category, text) in enumerate(spread(file)):
            prompt = chat_prompt(engine, text)
            runs = {}
            for kind in ("plain", "drafted") if number % 2 else ("drafted", "plain"):
                engine.generate(prompt, max_tokens=1, disable_spec_decode=True)
                runs[kind] = engine.generate(
                    prompt, max_tokens=N_TOKENS, disable_spec_decode=kind == "plain"
                )
            plain, drafted = runs["plain"], runs["drafted"]
            rows.append((category, plain.stats, drafted.stats))
            print(question, category, speedup([rows[-1]]), file=sys.stderr)
    save(f"fixed_depth_{name}", {
        "target": target, "draft": draft[0] if draft else "prompt lookup", "depth": DEPTH,
        "questions": len(rows), "tokens": N_TOKENS,
        "categories": {
            c: summary([r for r in rows if r[0] == c]) for c in sorted({r[0] for r in rows})
        } | {"all": summary(rows)},
    })  # fmt: skip


def speedup(rows):
    """Spec-Bench's: mean tokens/s over questions, divided by the same of plain decoding."""
    mean = [
        statistics.mean(s.tokens_per_second for s in x) for x in list(zip(*rows, strict=True))[1:]
    ]
    return round(mean[1] / mean[0], 3)


def summary(rows):
    drafted = [d for _, _, d in rows]
    n_drafted = sum(d.num_draft_tokens for d in drafted)
    n_accepted = sum(d.num_accepted_draft_tokens for d in drafted)
    return {
        "questions": len(rows),
        "plain_tokens_per_second": round(
            statistics.mean(p.tokens_per_second for _, p, _ in rows), 2
        ),
        "speedup": speedup(rows),
        "mean_acceptance_length":
            round(1 + n_accepted / sum(d.num_spec_steps for d in drafted), 3),
        "draft_acceptance_rate": round(n_accepted / max(1, n_drafted), 3),
        "drafted_steps_share": round(
            sum(d.num_draft_steps for d in drafted) / sum(d.num_spec_steps for d in drafted), 3
        ),
    }  # fmt: skip


if __name__ == "__main__":
    main()
