"""Short answers right after a start: what speculation gains or loses in them, by category.

60 questions of Spec-Bench, ten of each category, 32 tokens an answer, temperature 0. A process
answers five and ends; the next goes on with what it left. Each answer is decoded plainly and by
"auto", in turns, on the same engine. Costs are measured before. Every round does all of it again;
the ratio of an answer is the median of its rounds.

    python -m tests.benchmarks.short_answers question.dev.jsonl TARGET.gguf [--draft DRAFT.gguf]
        [--rounds 3] [--questions 60] [--before PYTHON] [--name NAME]

--before: an interpreter that imports another version of edgespec, whose processes take turns with
ours: "before" in the results.
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

from edgespec.bench.workloads import Question, spec_bench
from tests.helpers.benchmarks import save

GROUP, N_TOKENS, SAMPLES = 5, 32, 4000
WORKER = """
import json, sys
import edgespec
from edgespec.bench.runner import RunOptions, run
from edgespec.bench.workloads import Question
target, draft, n_tokens, questions = json.loads(sys.argv[1])
with edgespec.load(target, draft, n_ctx=4096) as engine:
    engine.measure()
    questions = [Question(q["id"], q["category"], tuple(q["turns"])) for q in questions]
    found = run(engine, questions, RunOptions(max_tokens=n_tokens)) if questions else []
    rows = [[a.id, a.category, a.mode, a.n_tokens, a.stats.decode_s] for a in found]
print(json.dumps(rows))
"""

Ratios = dict[str, dict[str, list[float]]]
"""Of each category and answer, plain seconds over those of "auto", one for each round."""


def chosen(path: str, n: int) -> list[Question]:
    """Return n questions, as many of each category, the categories in turns."""
    waiting: dict[str, list[Question]] = defaultdict(list)
    for question in spec_bench(path):
        waiting[question.category].append(question)
    found: list[Question] = []
    while len(found) < n and any(waiting.values()):
        found += [questions.pop(0) for questions in waiting.values() if questions]
    return found[:n]


def answer(python: str, profiles: Path, given: argparse.Namespace, five: Sequence[Question]):
    """Return (id, category, mode, tokens, seconds) of the answers of one process."""
    questions = [{"id": q.id, "category": q.category, "turns": q.turns} for q in five]
    arguments = json.dumps([given.target, given.draft, N_TOKENS, questions])
    env = os.environ | {"EDGESPEC_PROFILES": str(profiles), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [python, "-c", WORKER, arguments], env=env, check=True, stdout=subprocess.PIPE, cwd="/"
    )
    return json.loads(done.stdout)


def ratios(rows) -> dict[tuple[str, str], float]:
    """Return the ratio of each answer of more than one token, by category and id."""
    seconds = {(category, id, mode): (n, s) for id, category, mode, n, s in rows}
    found = {}
    for category, id in {key[:2] for key in seconds}:
        (n, plain), (n_auto, auto) = (seconds[category, id, m] for m in ("plain", "auto"))
        if n == n_auto > 1:
            found[category, id] = plain / auto
    return found


def mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


def interval(values: Sequence[float]) -> list[float]:
    """Return the 95% bootstrap interval of the geometric mean."""
    rng = random.Random(0)
    means = sorted(mean(rng.choices(values, k=len(values))) for _ in range(SAMPLES))
    return [round(means[int(share * SAMPLES)], 4) for share in (0.025, 0.975)]


def summary(found: Ratios) -> dict[str, object]:
    medians = {c: [statistics.median(x) for x in answers.values()] for c, answers in found.items()}
    medians["all"] = [ratio for values in medians.values() for ratio in values]
    return {
        category: {
            "answers": len(values), "ratio": round(mean(values), 4), "interval": interval(values),
            "lowest": round(min(values), 3),
        }
        for category, values in medians.items()
    }  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("target")
    parser.add_argument("--draft")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--before", metavar="PYTHON")
    parser.add_argument("--name", default="short_answers")
    given = parser.parse_args()
    given.target = str(Path(given.target).absolute())
    given.draft = given.draft and str(Path(given.draft).absolute())
    return given


def main() -> None:
    given = arguments()
    versions = {"after": sys.executable} | ({"before": given.before} if given.before else {})
    questions = chosen(given.file, given.questions)
    found: dict[str, Ratios] = {name: defaultdict(lambda: defaultdict(list)) for name in versions}
    with tempfile.TemporaryDirectory() as folder:
        for name, python in versions.items():
            answer(python, Path(folder, name), given, [])  # measures
        for i in range(given.rounds * len(questions) // GROUP):
            at = i * GROUP % len(questions)
            five = questions[at : at + GROUP]
            for name, python in sorted(versions.items(), reverse=bool(i % 2)):
                for (category, id), ratio in ratios(
                    answer(python, Path(folder, name), given, five)
                ).items():
                    found[name][category][id].append(ratio)
            print(f"{at + len(five)} of {len(questions)} questions", file=sys.stderr)
    result = {name: summary(by_category) for name, by_category in found.items()}
    save(given.name, {"tokens": N_TOKENS, "questions": len(questions), **result})


if __name__ == "__main__":
    main()
