"""How much faster a model is if its memory is in huge pages.

    python -m benchmarks.huge_pages MODEL [MODEL…] [--rounds 5] [--out NAME]

MODEL: a name in $EDGESPEC_TEST_MODELS. Processes with and without
GLIBC_TUNABLES=glibc.malloc.hugetlb=1 take turns. Each loads the model, evaluates 1 and 4 tokens
after 128 others, and ends. Linux with glibc 2.35 or later, and with "madvise" in
/sys/kernel/mm/transparent_hugepage/enabled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.common import median, model, save
from edgespec.device import HUGE_PAGES

ONE = """
import json, statistics, sys, time
from edgespec.train.opening import opened

began = time.perf_counter()
with opened(sys.argv[1]) as model:
    loading = time.perf_counter() - began
    model.decode(list(range(1000, 1128)), 1)
    seconds = {1: [], 4: []}
    for n in [1, 4] * 30:
        began = time.perf_counter()
        model.decode(list(range(2000, 2000 + n)), n)
        seconds[n].append(time.perf_counter() - began)
        model.truncate(128)
times = {f"t({n}), ms": 1e3 * statistics.median(each) for n, each in seconds.items()}
print(json.dumps({"loading, s": loading} | times))
"""


def measured(path: Path, huge: bool) -> dict[str, float]:
    """Return the times of a new process."""
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    if huge:
        name, _, value = HUGE_PAGES.partition("=")
        environment[name] = value
    call = [sys.executable, "-c", ONE, path]
    done = subprocess.run(call, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    args = parser.parse_args()
    result = {}
    for name in args.models:
        times = defaultdict(list)
        for _ in range(args.rounds):
            for huge in (False, True):
                for what, value in measured(model(name), huge).items():
                    times[what, huge].append(value)
        result[name] = {
            what: {
                "4 KB": round(median(times[what, False]), 3),
                "huge": round(median(times[what, True]), 3),
                "ratios": [
                    round(b / a, 3)
                    for a, b in zip(times[what, False], times[what, True], strict=True)
                ],
            }
            for what in dict.fromkeys(what for what, _ in times)
        }
    save(args.out, result)


if __name__ == "__main__":
    main()
