"""Does advice slow anybody down? Answers with nothing tuned, after `tune`, after `tune --busy`.

    python -m benchmarks.tuned NAME [NAME…] [--loops 0 1 2 4] [--rounds 15]

NAME: models in $EDGESPEC_TEST_MODELS. While so many endless loops run, `tune` and `tune --busy`
each keep what they choose in a folder of their own; then `edgespec run` answers the same
question with each of the three folders in turn, in a new process every time. Reported are
tokens/s, and the medians of the pairwise factors against nothing tuned with their 95% intervals
(bootstrap). The control begins with two threads fixed for the default, and looks at whether
`tune --busy` keeps fewer where fewer are many times faster.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.common import median, model, save
from benchmarks.deadlines import loops

KINDS = {"nothing tuned": None, "tune": [], "tune --busy": ["--busy"]}
PROMPT = "Tell me about the history of the bicycle."
N_TOKENS = 128


def edgespec(folder: Path, *args: str) -> str:
    """Run a command with what was kept in `folder`; return what it printed."""
    command = [sys.executable, "-m", "edgespec_cli", *args]
    variables = os.environ | {"EDGESPEC_PROFILES": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    if done.returncode and "tune" not in args:  # it ends with 1 where it keeps nothing
        sys.exit(f"{' '.join(args)}: {done.stderr}")
    return done.stdout


def speed(folder: Path, path: Path) -> float:
    """Return the tokens/s of an answer."""
    asked = (
        "-m",
        str(path),
        "-md",
        "none",
        "--temp",
        "0",
        "--ignore-eos",
        "--draft-memory",
        "off",
        "-n",
        str(N_TOKENS),
    )
    answer = json.loads(edgespec(folder, "run", *asked, "--json", PROMPT).splitlines()[-1])
    return float(answer["stats"]["tokens_per_second"])


def interval(factors: list[float]) -> list[float]:
    """Return the 95% interval of the median, by bootstrap."""
    rng = random.Random(1)
    medians = sorted(median(rng.choices(factors, k=len(factors))) for _ in range(2000))
    return [round(medians[50], 3), round(medians[1949], 3)]


def compared(path: Path, rounds: int) -> dict[str, dict]:
    """Return tokens/s and factors of one model, by what was tuned."""
    with tempfile.TemporaryDirectory() as place:
        folders, speeds = {kind: Path(place, kind) for kind in KINDS}, defaultdict(list)
        kept = {}
        for kind, options in KINDS.items():
            if options is not None:
                told = edgespec(folders[kind], "tune", "-m", str(path), *options, "--json")
                kept[kind] = json.loads(told)
        for _ in range(rounds):
            for kind, folder in folders.items():
                speeds[kind].append(speed(folder, path))
    rows = {}
    for kind, measured in speeds.items():
        factors = [b / a for a, b in zip(speeds["nothing tuned"], measured, strict=True)]
        rows[kind] = {
            "tokens_per_second": round(median(measured), 2),
            "factor": round(median(factors), 3),
            "interval": interval(factors),
            "options": kept.get(kind, {}).get("options"),
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="+")
    parser.add_argument("--loops", type=int, nargs="*", default=[0, 1, 2, 4])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--save", default="tuned")
    args = parser.parse_args()
    result: dict[str, dict] = {}
    for name in args.names:
        for n in args.loops:
            with loops(n):
                rows = compared(model(name), args.rounds)
            result.setdefault(name, {})[f"{n} loops"] = rows
            print(name, n, json.dumps(rows), flush=True)
    save(args.save, {"rounds": args.rounds, "models": result})


if __name__ == "__main__":
    main()
