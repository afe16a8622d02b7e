"""A draft model that sees a window of a long text against one that sees all of it, and plain
decoding: acceptance, time and gain after texts of several lengths.

    python -m benchmarks.windows TARGET DRAFT --text FILE … [--window 2048] [--save NAME]
    python -m benchmarks.windows smollm2-135m smollm2-135m --lengths 256 --tokens 16

TARGET and DRAFT are as in the other measurements, or files. A text is a file, or the questions of
Spec-Bench (question.jsonl), whose documents follow each other; by default the sources of this
package. The longer prompts begin as the shorter ones, so that each token is read once. Three loops
with the same target take turns at each length, each of the two draft models with a cache of its
own. Drafts have a fixed depth; `first_draft_s` is what it took to read the text for the first one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import edgespec
from benchmarks.common import median, model, save
from edgespec import EngineConfig, SamplingParams
from edgespec.backends.base import FileModel
from edgespec.chat import templates
from edgespec.decoding.output import Output
from edgespec.decoding.session import Session
from edgespec.drafters.draft_model import ModelDrafter
from edgespec.drafters.window import Window
from edgespec.loading.drafts import load_draft
from edgespec.loading.models import open_model
from edgespec.policies.fixed import FixedDepth
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import Stats
from edgespec.verifiers.local import LocalVerifier

LENGTHS, WINDOW, DEPTH, N_TOKENS, ROUNDS = (2000, 8000, 16000), 2048, 4, 48, 3
DOCUMENTS = ("summarization", "rag", "qa")  # categories of Spec-Bench whose questions are long
QUESTION = "\n\nContinue the text above where it ends, in the same style."
_MARK = "\0"


def found(name: str) -> Path:
    """Return the file of a model that is named, or is a path."""
    return Path(name) if Path(name).exists() else model(name)


def text_of(paths: list[Path]) -> str:
    """Return the texts of files, one after the other."""
    parts = []
    for path in paths or sorted(Path(edgespec.__file__).parent.rglob("*.py")):
        read = path.read_text("utf-8")
        if path.suffix == ".jsonl":
            asked = map(json.loads, read.splitlines())
            parts += [q["turns"][0] for q in asked if q["category"] in DOCUMENTS]
        else:
            parts.append(read)
    return "\n\n".join(parts)


def prompts(target: FileModel, text: str, lengths: list[int]) -> Iterator[tuple[int, list[int]]]:
    """Yield prompts of so many tokens: the text's beginning, and QUESTION after it."""
    tokenizer, head, tail = target.tokenizer, "", QUESTION
    if tokenizer.chat_template:
        message = [{"role": "user", "content": _MARK + QUESTION}]
        rendered = templates.render(tokenizer.chat_template, message, tokenizer.special())
        head, _, tail = rendered.partition(_MARK)
    ids = tokenizer.encode(head + text, add_special=not head)
    ending = tokenizer.encode(tail, add_special=False)
    for length in sorted(lengths):
        if len(ids) < length:
            sys.exit(
                f"the text has {len(ids)} tokens, and {length} are asked for; give a longer one"
            )
        yield length, [*ids[: length - len(ending)], *ending]


class Loop:
    """The loop with one drafter, and what its answers took after each length."""

    def __init__(self, target: FileModel, verifier: LocalVerifier, drafter: Any, depth: int):
        self._target = target
        drafters = [drafter] if drafter else []
        self._session = Session(verifier, drafters, FixedDepth(depth if drafter else 0))

    def answer(self, prompt: list[int], n_tokens: int) -> tuple[list[int], Stats]:
        """Return the tokens of an answer and its figures."""
        params = SamplingParams(max_tokens=n_tokens, ignore_eos=True)
        output, stats = Output(self._target.tokenizer, params), Stats()
        for _ in self._session.generate(
            Request(prompt, params, SeededRandomness(0)), output, stats
        ):
            pass
        return output.token_ids, stats


def summary(first: Stats, answers: list[Stats], plain_ms: float) -> dict[str, Any]:
    """Return the figures of a loop's answers to one prompt."""
    ms = median([1e3 * s.decode_s / (s.num_emitted_tokens - 1) for s in answers])
    some = answers[0]
    if not some.num_draft_steps:
        return {"ms_a_token": round(ms, 2)}
    n_drafted = [max(1, s.num_draft_tokens) for s in answers]
    drafting = [1e3 * s.draft_s / n for s, n in zip(answers, n_drafted, strict=True)]
    return {
        "ms_a_token": round(ms, 2),
        "gain": round(plain_ms / ms, 3),
        "draft_acceptance_rate": round(some.draft_acceptance_rate, 3),
        "mean_acceptance_length": round(some.mean_acceptance_length, 3),
        "draft_ms_a_drafted_token": round(median(drafting), 2),
        "first_draft_s": round(first.draft_s, 2),
    }


def measure(
    target: FileModel,
    drafts: dict[str, ModelDrafter],
    text: str,
    *,
    lengths: list[int],
    depth: int = DEPTH,
    n_tokens: int = N_TOKENS,
    rounds: int = ROUNDS,
) -> dict[int, dict[str, Any]]:
    """Return by length what plain decoding takes, and each of the drafters."""
    verifier = LocalVerifier(target)
    given: dict[str, ModelDrafter | None] = {"plain": None, **drafts}
    loops = {name: Loop(target, verifier, drafter, depth) for name, drafter in given.items()}
    result = {}
    for length, prompt in prompts(target, text, lengths):
        firsts = {name: loop.answer(prompt, depth + 2) for name, loop in loops.items()}
        answers: dict[str, list[tuple[list[int], Stats]]] = {name: [] for name in loops}
        for i in range(rounds):
            for name in list(loops)[:: 1 if i % 2 else -1]:
                answers[name].append(loops[name].answer(prompt, n_tokens))
                print(length, i, name, file=sys.stderr, flush=True)
        stats = {name: [each for _, each in made] for name, made in answers.items()}
        plain_ms = summary(firsts["plain"][1], stats["plain"], 0.0)["ms_a_token"]
        result[length] = {
            name: summary(firsts[name][1], made, plain_ms) for name, made in stats.items()
        } | {"same_text": len({tuple(made[0][0]) for made in answers.values()}) == 1}
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--text", nargs="*", type=Path, default=[])
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--lengths", nargs="*", type=int, default=list(LENGTHS))
    parser.add_argument("--tokens", type=int, default=N_TOKENS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--depth", type=int, default=DEPTH)
    parser.add_argument("--save")
    args = parser.parse_args()
    config = EngineConfig(n_ctx=max(args.lengths) + 2 * args.tokens + 64)
    with contextlib.ExitStack() as stack:
        target = stack.enter_context(contextlib.closing(open_model(found(args.target), config)))
        drafters = {}
        for name, window in (("whole", 0), ("window", args.window)):
            draft = load_draft(found(args.draft), config, {}, target)
            assert draft is not None
            stack.enter_context(contextlib.closing(draft))
            drafters[name] = ModelDrafter(
                draft, target.vocab_size, window=Window(window, draft.n_ctx)
            )
        rows = measure(
            target, drafters, text_of(args.text), lengths=args.lengths, depth=args.depth,
            n_tokens=args.tokens, rounds=args.rounds,
        )  # fmt: skip
    result = {
        "target": Path(args.target).name, "draft": Path(args.draft).name, "window": args.window,
        "depth": args.depth, "tokens": args.tokens, "rounds": args.rounds, "lengths": rows,
    }  # fmt: skip
    save(args.save, result)


if __name__ == "__main__":
    main()
