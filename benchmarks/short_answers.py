"""Answers right after a start: what speculation gains or loses in them, by category.

60 questions of Spec-Bench, as many of each category, 32 tokens an answer, temperature 0. A process
answers five and ends; the next goes on with what it left. Each answer is decoded plainly and by
"auto", in turns, on the same engine. Costs are measured before. Every round does all of it again;
the ratio of an answer is the median of its rounds, and "total" that of the sums over all answers.
"nothing drafted" are the answers for which "auto" never drafted: their distance from 1 is noise.

    python -m benchmarks.short_answers question.dev.jsonl TARGET [--draft DRAFT]
        [--rounds 3] [--questions 60] [--skip 0] [--tokens 32] [--group 5] [--before PYTHON]
        [--library NAME,LIBLLAMA]... [--name NAME]

--skip: questions that are left out at the beginning, because an earlier run had them.
--group: how many questions a process answers.

--before: an interpreter that imports another version of edgespec, whose processes take turns with
ours: "before" in the results.

--library: a libllama whose processes take turns with those of the installed one, as often as you
like. "against after" are its answers with "auto" against plain ones of the installed one.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import save
from edgespec.bench.workloads import Question, spec_bench

SAMPLES = 4000
WORKER = """
import json, sys
import edgespec
from edgespec.bench.runner import RunOptions, run
from edgespec.bench.workloads import Question
target, draft, n_tokens, questions = json.loads(sys.argv[1])
off = {"draft_memory": "off", "draft_corpus": ()}  # a question is asked in both modes
known = {x: off[x] for x in off if x in edgespec.SpeculativeConfig.__dataclass_fields__}
with edgespec.load(target, draft, n_ctx=4096, speculative_config=known) as engine:
    engine.measure()
    questions = [Question(q["id"], q["category"], tuple(q["turns"])) for q in questions]
    found = run(engine, questions, RunOptions(max_tokens=n_tokens)) if questions else []
    rows = [
        [a.id, a.category, a.mode, a.n_tokens, a.stats.decode_s, a.stats.num_draft_tokens]
        for a in found
    ]
print(json.dumps(rows))
"""

Variant = tuple[str, str]  # an interpreter, and a libllama or ""
Times = dict[str, dict[str, list[tuple[float, float, int]]]]
"""Of each category and answer, per round: seconds a token plainly, with "auto", tokens drafted."""


def chosen(path: str, n: int) -> list[Question]:
    """Return n questions, as many of each category, the categories in turns."""
    waiting: dict[str, list[Question]] = defaultdict(list)
    for question in spec_bench(path):
        waiting[question.category].append(question)
    found: list[Question] = []
    while len(found) < n and any(waiting.values()):
        found += [questions.pop(0) for questions in waiting.values() if questions]
    return found[:n]


def answer(variant: Variant, profiles: Path, given: argparse.Namespace, group: Sequence[Question]):
    """Return (id, category, mode, tokens, seconds) of the answers of one process."""
    questions = [{"id": q.id, "category": q.category, "turns": q.turns} for q in group]
    arguments = json.dumps([given.target, given.draft, given.tokens, questions])
    python, library = variant
    env = os.environ | {"EDGESPEC_PROFILES": str(profiles), "PYTHONSAFEPATH": "1"}
    env |= {"EDGESPEC_LIBLLAMA": library} if library else {}
    done = subprocess.run(
        [python, "-c", WORKER, arguments], env=env, check=True, stdout=subprocess.PIPE, cwd="/"
    )
    return json.loads(done.stdout)


def times(rows) -> dict[tuple[str, str], tuple[float, float, int]]:
    """Return the seconds a token and the drafts of each answer of several tokens, by category and
    id.
    """
    by_mode = {(category, id, mode): values for id, category, mode, *values in rows}
    found = {}
    for category, id in {key[:2] for key in by_mode}:
        n, plain, _ = by_mode[category, id, "plain"]
        n_auto, auto, n_drafted = by_mode[category, id, "auto"]
        if n == n_auto > 1:
            found[category, id] = plain / n, auto / n, n_drafted
    return found


def mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def interval(values: Sequence[float]) -> list[float]:
    """Return the 95% bootstrap interval of the geometric mean."""
    rng = random.Random(0)
    means = sorted(mean(rng.choices(values, k=len(values))) for _ in range(SAMPLES))
    return [round(means[int(share * SAMPLES)], 4) for share in (0.025, 0.975)]


def summary(found: Times) -> dict[str, object]:
    rounds = {category: list(answers.values()) for category, answers in found.items()}
    every = [answer for answers in rounds.values() for answer in answers]
    rounds["nothing drafted"] = [answer for answer in every if not any(n for *_, n in answer)]
    rounds["all"] = every
    return {category: gain(answers) for category, answers in rounds.items() if answers}


def gain(answers: Sequence[Sequence[tuple[float, float, int]]]) -> dict[str, object]:
    """Return the mean ratio of answers, and the ratio of the sums of their seconds ("total")."""
    ratios = [statistics.median(plain / auto for plain, auto, _ in answer) for answer in answers]
    plain, auto, _ = (sum(t) for t in zip(*(times for a in answers for times in a), strict=True))
    return {
        "answers": len(ratios), "ratio": round(mean(ratios), 4), "interval": interval(ratios),
        "lowest": round(min(ratios), 3), "total": round(plain / auto, 4),
    }  # fmt: skip


def against(found: Times, plain: Times) -> dict[str, object]:
    """Return the gain of answers with "auto" over another library's plain answers to the same."""
    mixed = {
        category: {
            id: [
                (slow, fast, n)
                for (slow, *_), (_, fast, n) in zip(plain[category][id], rounds, strict=True)
            ]
            for id, rounds in answers.items()
            if len(plain[category].get(id, ())) == len(rounds)
        }
        for category, answers in found.items()
    }
    return summary(mixed)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("target")
    parser.add_argument("--draft")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--group", type=int, default=5)
    parser.add_argument("--before", metavar="PYTHON")
    parser.add_argument("--library", action="append", default=[], metavar="NAME,LIBLLAMA")
    parser.add_argument("--name", default="short_answers")
    given = parser.parse_args()
    given.target = str(Path(given.target).absolute())
    given.draft = given.draft and str(Path(given.draft).absolute())
    return given


def main() -> None:
    given = arguments()
    versions: dict[str, Variant] = {"after": (sys.executable, "")}
    if given.before:
        versions["before"] = (given.before, "")
    for named in given.library:
        name, library = named.split(",")
        versions[name] = (sys.executable, library)
    questions = chosen(given.file, given.skip + given.questions)[given.skip :]
    found: dict[str, Times] = {name: defaultdict(lambda: defaultdict(list)) for name in versions}
    with tempfile.TemporaryDirectory() as folder:
        for name, variant in versions.items():
            answer(variant, Path(folder, name), given, [])  # measures
        groups = [questions[i : i + given.group] for i in range(0, len(questions), given.group)]
        for i, group in enumerate(groups * given.rounds):
            for name, variant in sorted(versions.items(), reverse=bool(i % 2)):
                for (category, id), seconds in times(
                    answer(variant, Path(folder, name), given, group)
                ).items():
                    found[name][category][id].append(seconds)
            print(f"{i + 1} of {len(groups) * given.rounds} processes", file=sys.stderr)
    result = {name: summary(by_category) for name, by_category in found.items()}
    for name, variant in versions.items():
        if variant[1]:
            result[f"{name} against after"] = against(found[name], found["after"])
    save(given.name, {"tokens": given.tokens, "questions": len(questions), **result})


if __name__ == "__main__":
    main()
