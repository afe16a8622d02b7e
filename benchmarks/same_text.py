"""Greedy text of two files of one model, each decoding plainly, on 30 Spec-Bench questions.

    python -m benchmarks.same_text question.dev.jsonl NAME FIRST SECOND [TOKENS]

The first file's tokenizer makes the prompts. Where texts part, the gap between the two tokens in
either file's log-probabilities says whether it was a near tie.
"""

from __future__ import annotations

import sys

import edgespec
from benchmarks.common import GREEDY, chat_prompt, model, save, spread


def texts(name, prompts, n):
    kv = "f32" if name.endswith("-f32") else "f16"
    with edgespec.load(
        model(name), None, speculative_config={"method": "none"}, n_ctx=4096,
        type_k=kv, type_v=kv, flash_attn="off", sampling=GREEDY,
    ) as engine:  # fmt: skip
        for i, prompt in enumerate(prompts):
            yield engine.generate(prompt, max_tokens=n, logprobs=5)
            print(name, i, file=sys.stderr)


def gap(entry, token, other):
    found = dict(entry.top)
    return round(found[token] - found[other], 5) if token in found and other in found else None


def main() -> None:
    file, name, first, second, *rest = sys.argv[1:]
    n = int(rest[0]) if rest else 48
    questions = list(spread(file))
    with edgespec.load(
        model(first), None, speculative_config={"method": "none"}, n_ctx=4096, sampling=GREEDY
    ) as engine:
        prompts = [chat_prompt(engine, text) for _, _, text in questions]
    differences = []
    answers = zip(questions, texts(first, prompts, n), list(texts(second, prompts, n)), strict=True)
    total = 0
    for (question, category, _), ours, theirs in answers:
        total += len(ours.token_ids)
        pairs = list(zip(ours.token_ids, theirs.token_ids, strict=False))
        part = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if part is not None:
            a, b = pairs[part]
            gaps = [gap(ours.logprobs[part], a, b), gap(theirs.logprobs[part], b, a)]
            differences.append({
                "question_id": question, "category": category, "position": part, "gaps": gaps,
            })  # fmt: skip
    save(f"same_text_{name}", {
        "first": first, "second": second, "questions": len(questions), "tokens": n,
        "emitted": total, "equal": len(questions) - len(differences), "differences": differences,
    })  # fmt: skip


if __name__ == "__main__":
    main()
