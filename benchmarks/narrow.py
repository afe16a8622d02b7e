"""What drafts that were trained for one narrow task gain, next to everything else that drafts.

    python -m benchmarks.narrow TARGET QUESTIONS.jsonl TRAINING [NAME=DRAFT…] [--tokens 96]
        [--rounds 1] [--paused] [--out NAME]

TARGET, DRAFT: a file, a folder, or a name in $EDGESPEC_TEST_MODELS. QUESTIONS: prompts as for
`edgespec train`, which nothing was trained with. TRAINING: the folder of the training, whose
recorded answers are documents to draft from. The modes are "others", which is everything that
drafts by default without a draft model; and with each draft NAME, where the policy decides, and
NAME always, which drafts three tokens in every step and has no documents. Each question is asked of
all of them in random order, after its prompt was read, and greedily.

Each draft begins with what the check at the end of its training has learned of its acceptance, as
in a first chat after the training. What these answers teach is not kept.

Each mode loads the target once more, and one copy can be 8% slower than the next, depending on the
memory that it got. So each mode is compared with plain decoding on its own copy, and what a draft
gains over everything else ("of_paused") is compared with answers of the same copy for which the
draft was paused; with --paused only that is measured. Copies of an ONNX model differ less with
GLIBC_TUNABLES=glibc.malloc.hugetlb=1 in the environment.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

import edgespec
from benchmarks.common import GREEDY, known, median, model, save
from edgespec.costs import profiles
from edgespec.costs.kept_curves import kept_curve
from edgespec.decoding.kept import keep_acceptance
from edgespec.loading.models import model_path
from edgespec.policies.rest import Rest
from edgespec.train import opening
from edgespec.train.recordings import Recordings
from edgespec.train.serving import FIXED, interval, resampled

OTHERS = "others"


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


def copy_profiles(folder: Path, target: Path, drafts: Iterable[Path]) -> None:
    """Use a copy of the measured costs and of the acceptance of these drafts, so that runs change
    neither.
    """
    if profiles.folder().exists():
        shutil.copytree(profiles.folder(), folder)
    os.environ["EDGESPEC_PROFILES"] = str(folder)
    for draft in map(model_path, drafts):
        keep_acceptance(target, draft, draft)


def times_of(target: Path) -> list[float]:
    """Return t(1) and t(4) of the target in ms, as the policy knows them."""
    with opening.opened(target) as model:
        curve = kept_curve(model)
    assert curve
    return [round(1e3 * curve(n, 64), 1) for n in (1, 4)]


def answers_of(engine: edgespec.Engine, training: Path, file: Path) -> int:
    """Write the recorded answers as one document; return how many there are."""
    done = Recordings(training).done
    piece = engine.tokenizer.piece
    texts = [b"".join(map(piece, each.ids[each.n_prompt :])) for each in done]
    file.write_text(b"\n\n".join(texts).decode("utf-8", "replace"), "utf-8")
    return len(texts)


def ask(
    engine: edgespec.Engine, messages: list[dict], n_tokens: int, **settings: bool
) -> edgespec.Completion:
    """Return the answer to the last message; the one before it may be a system prompt."""
    *system, user = (each["content"] for each in messages)
    return engine.chat(*system).send(user, max_tokens=n_tokens, **settings)


class Timed(NamedTuple):
    """An answer: tokens a second, times the speed of plain decoding and that of an answer for which
    the draft was paused (0 if there was no such answer), and tokens a step.
    """

    rate: float
    speedup: float
    gain: float
    length: float


def timed(
    engine: edgespec.Engine, messages: list[dict], n_tokens: int, ways: Sequence[str]
) -> tuple[Timed, set[tuple[int, ...]]]:
    """Ask a question in each of these ways; return what drafting reached, and the answers."""
    with patch.object(Rest, "begin", return_value=False):  # it would count as an answer
        ask(engine, messages, 1)
    rates, texts = {}, set()
    for way in ways:
        paused = patch.object(Rest, "begin", return_value=True)
        with paused if way == "paused" else contextlib.nullcontext():
            done = ask(engine, messages, n_tokens, disable_spec_decode=way == "plain")
        rates[way] = len(done.token_ids) / done.stats.total_s
        texts.add(done.token_ids)
        if way == "drafting":
            length = len(done.token_ids) / max(1, done.stats.num_spec_steps)
    rate = rates["drafting"]
    speedup, gain = (rate / rates[way] if way in rates else 0.0 for way in ("plain", "paused"))
    return Timed(rate, speedup, gain, length), texts


def in_turns(
    engines: dict[str, edgespec.Engine], ways: dict[str, list[str]], asked: list[list[dict]],
    n_tokens: int,
) -> tuple[dict[str, list[Timed]], int]:  # fmt: skip
    """Ask each question of all engines, in random order, each in its ways. Return the answers by
    engine, and how many questions got the same answer of all.
    """
    answers, rng, n_equal = defaultdict(list), random.Random(0), 0
    for messages in asked:
        texts = set()
        for name in rng.sample(list(engines), len(engines)):
            order = rng.sample(ways[name], len(ways[name]))
            answer, said = timed(engines[name], messages, n_tokens, order)
            answers[name].append(answer)
            texts |= said
        n_equal += len(texts) == 1
    return answers, n_equal


def interval_of(logs: np.ndarray) -> list[float]:
    """Return a mean ratio with its 95% interval, from a bootstrap over answers. logs: of the
    ratios.
    """
    means = np.exp(logs[resampled(len(logs))].mean(1))
    return [round(float(each), 3) for each in (means[0], *interval(means))]


def ratio(mine: Sequence[Timed], other: Sequence[Timed] = ()) -> list[float]:
    """Return how many times as fast as plain decoding, or as another mode."""
    logs = np.log([each.speedup for each in mine])
    return interval_of(logs - np.log([each.speedup for each in other]) if other else logs)


def row(answers: dict[str, list[Timed]], name: str) -> dict[str, Any]:
    """Return what a mode has reached."""
    mine, always = answers[name], answers.get(f"{name} always")
    reached = {
        "tokens_per_second": round(median([each.rate for each in mine]), 1),
        "tokens_per_step": round(float(np.mean([each.length for each in mine])), 2),
    }
    if OTHERS in answers:
        reached |= {"of_plain": ratio(mine), "of_others": ratio(mine, answers[OTHERS])}
    if mine[0].gain:
        reached["of_paused"] = interval_of(np.log([each.gain for each in mine]))
    if always:
        reached["of_always"] = ratio(mine, always)
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("questions", type=Path)
    parser.add_argument("training", type=Path)
    parser.add_argument("drafts", nargs="*", metavar="NAME=DRAFT")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--paused", action="store_true", help="only compare drafts with pauses")
    parser.add_argument("--out")
    args = parser.parse_args()
    target = path_of(args.target)
    asked = [json.loads(line)["messages"] for line in args.questions.read_text().splitlines()]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        drafts = {name: path_of(each) for name, each in (d.split("=", 1) for d in args.drafts)}
        copy_profiles(folder / "profiles", target, drafts.values())
        corpus = folder / "answers.txt"
        with opened(target, None, None, {"method": "none"}) as engine:
            n_answers = answers_of(engine, args.training, corpus)
        modes: dict[str, tuple[Path | None, Path | None, dict]] = {
            name: (draft, corpus, {"remember": "rates"}) for name, draft in drafts.items()
        }
        ways = {name: ["drafting", "paused"] for name in drafts}
        if not args.paused:
            always = {f"{name} always": (draft, None, FIXED) for name, draft in drafts.items()}
            modes = {OTHERS: (None, corpus, {})} | modes | always
            ways = {name: ["plain", *ways.get(name, ["drafting"])] for name in modes}
        engines = {name: stack.enter_context(opened(target, *mode)) for name, mode in modes.items()}
        times = times_of(target)
        answers, n_equal = in_turns(engines, ways, asked * args.rounds, args.tokens)
        result = {
            "questions": len(asked), "t(1), t(4), ms": times,
            "answers_in_the_corpus": n_answers, "equal_texts": n_equal,
            "rows": {name: row(answers, name) for name in engines},
        }  # fmt: skip
    save(args.out, result)


if __name__ == "__main__":
    main()
