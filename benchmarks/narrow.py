"""What drafts that were trained for one narrow task gain, next to everything else that drafts.

    python -m benchmarks.narrow TARGET QUESTIONS.jsonl TRAINING [NAME=DRAFT…] [--tokens 96]
        [--rounds 1] [--out NAME]

TARGET, DRAFT: a file, a folder, or a name in $EDGESPEC_TEST_MODELS. QUESTIONS: prompts as for
`edgespec train`, which nothing was trained with. TRAINING: the folder of the training, whose
recorded answers are a corpus of documents for every mode but plain. The modes are plain decoding;
"others", which is everything that drafts by default without a draft model; and with each draft
NAME, where the policy decides, and NAME always, drafts of three tokens in every step. Each question
is asked of all of them in random order, after its prompt was read, and greedily.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import edgespec
from benchmarks.common import GREEDY, known, median, model, save
from edgespec.train.recordings import Recordings
from edgespec.train.serving import FIXED, interval, resampled

PLAIN, OTHERS = "plain", "others"


def path_of(name: str) -> Path:
    return Path(name) if Path(name).exists() else model(name)


def opened(target: Path, draft: Path | None, corpus: Path | None, config: dict) -> edgespec.Engine:
    drafting = {
        "draft_corpus": [corpus] if corpus else (), "draft_memory": "off", "remember": "nothing",
    }  # fmt: skip
    return known(
        lambda: edgespec.load(
            target, draft, n_ctx=1024, speculative_config=drafting | config, sampling=GREEDY
        )
    )


def answers_of(engine: edgespec.Engine, training: Path, file: Path) -> int:
    """Write the recorded answers as one document; return how many there are."""
    done = Recordings(training).done
    piece = engine.tokenizer.piece
    texts = [b"".join(map(piece, each.ids[each.n_prompt :])) for each in done]
    file.write_text(b"\n\n".join(texts).decode("utf-8", "replace"), "utf-8")
    return len(texts)


def ask(engine: edgespec.Engine, messages: list[dict], n_tokens: int) -> edgespec.Completion:
    """Return the answer to the last message; the one before it may be a system prompt."""
    *system, user = (each["content"] for each in messages)
    return engine.chat(*system).send(user, max_tokens=n_tokens)


def in_turns(
    engines: dict[str, edgespec.Engine], asked: list[list[dict]], n_tokens: int
) -> tuple[dict[str, list[float]], dict[str, list[float]], int]:
    """Ask each question of all engines, in random order. Return by engine the tokens a second and
    the tokens a step of each answer, and how many questions got the same answer of all.
    """
    rates, lengths = defaultdict(list), defaultdict(list)
    rng, n_equal = random.Random(0), 0
    for messages in asked:
        texts = set()
        for name in rng.sample(list(engines), len(engines)):
            ask(engines[name], messages, 1)
            done = ask(engines[name], messages, n_tokens)
            n, stats = len(done.token_ids), done.stats
            rates[name].append(n / stats.total_s)
            lengths[name].append(n / max(1, stats.num_spec_steps))
            texts.add(done.token_ids)
        n_equal += len(texts) == 1
    return rates, lengths, n_equal


def ratio(mine: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return how many times as fast, and the 95% interval from a bootstrap over questions."""
    logs = np.log(np.array(mine) / np.array(other))
    means = np.exp(logs[resampled(len(logs))].mean(1))
    return [round(float(each), 3) for each in (means[0], *interval(means))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("questions", type=Path)
    parser.add_argument("training", type=Path)
    parser.add_argument("drafts", nargs="*", metavar="NAME=DRAFT")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out")
    args = parser.parse_args()
    target = path_of(args.target)
    asked = [json.loads(line)["messages"] for line in args.questions.read_text().splitlines()]
    with contextlib.ExitStack() as stack:
        corpus = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "answers.txt"
        engines = {PLAIN: stack.enter_context(opened(target, None, None, {"method": "none"}))}
        n_answers = answers_of(engines[PLAIN], args.training, corpus)
        engines[OTHERS] = stack.enter_context(opened(target, None, corpus, {}))
        for name, draft in (each.split("=", 1) for each in args.drafts):
            path = path_of(draft)
            engines[name] = stack.enter_context(opened(target, path, corpus, {}))
            engines[f"{name} always"] = stack.enter_context(opened(target, path, None, FIXED))
        rates, lengths, n_equal = in_turns(engines, asked * args.rounds, args.tokens)
    rows = {
        name: {
            "tokens_per_second": round(median(rates[name]), 1),
            "tokens_per_step": round(float(np.mean(lengths[name])), 2),
            "of_plain": ratio(rates[name], rates[PLAIN]),
            "of_others": ratio(rates[name], rates[OTHERS]),
        }
        for name in rates
    }
    result = {
        "questions": len(asked), "answers_in_the_corpus": n_answers,
        "equal_texts": n_equal, "rows": rows,
    }  # fmt: skip
    save(args.out, result)


if __name__ == "__main__":
    main()
