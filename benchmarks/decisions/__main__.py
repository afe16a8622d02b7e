"""What the controller decides in replay, and what that is worth: 100 and more settings.

    python -m benchmarks.decisions record
    python -m benchmarks.decisions compare
    python -m benchmarks.decisions compare --quick --like "cpu-q4, auto"

`record` wrote before.json.gz once, with the code before drafts grew from priced guesses
(docs/concepts/decisions.md): the speed of every setting by category, and 4,578 decisions. Settings
with a target elsewhere were recorded by that code a second time, with the trip in a step's seconds.
`compare` replays the same with today's code and shows the ratios; without --quick, also how many
of the recorded decisions are the same today, and how the others differ.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

from benchmarks.decisions.lab import Lab, Setting
from edgespec.bench.replay import shipped_profiles, shipped_traces

BEFORE = Path(__file__).with_name("before.json.gz")
N_DECISIONS = 5000
N_ANSWERS, N_QUICK = 12, 4  # of each category

traces = functools.cache(shipped_traces)  # once in each process
profiles = functools.cache(shipped_profiles)


def settings() -> Iterator[Setting]:
    for device in [name for name in profiles() if not name.endswith("-lookup")]:
        lookup = f"{device}-lookup"
        yield Setting(device, "plain")
        for chains in (False, True):
            for method in ("auto", "suffix", "recycling", "runner_ups", "suffix,recycling"):
                if not (chains and method != "auto"):
                    yield Setting(lookup, method, chains)
            yield Setting(lookup, "auto", chains, 0.8)
            yield Setting(lookup, "auto", chains, forced=0.5)
            yield Setting(lookup, "auto", chains, trip_s=0.02)
            for method in ("auto", "draft_model"):
                yield Setting(device, method, chains)
                for acceptance in ("block", "coupled", "rejection", "deterministic"):
                    yield Setting(device, method, chains, 0.8, acceptance)
                for trip_s in (0.005, 0.05):
                    yield Setting(device, method, chains, trip_s=trip_s)
                yield Setting(device, method, chains, 0.8, trip_s=0.02)
                for head in ("head", "weak-head", "dflash"):
                    yield Setting(device, method, chains, head=head)
                    yield Setting(device, method, chains, 0.8, head=head)
            yield Setting(device, "auto", chains, forced=0.5)
            yield Setting(device, "auto", chains, 0.8, forced=0.5)
        yield Setting(lookup, "suffix,memory")


def run(setting: Setting, n_answers: int, n_kept: int) -> tuple[dict[str, float], list[Any]]:
    lab, rates, kept = Lab(setting, profiles()), defaultdict(list), []
    per_category: dict[str, int] = defaultdict(int)
    for trace in traces():
        if len(trace.output) < 2 or per_category[trace.category] >= n_answers:
            continue
        per_category[trace.category] += 1
        lab.decisions.clear()
        rates[trace.category].append(len(trace.output) / lab.answer(trace))
        kept += [
            {"trace": trace.id, **decision}
            for decision in lab.decisions
            if decision["tokens"] or decision["evaluated"]
        ]
    kept.sort(key=lambda d: zlib.crc32(f"{setting} {place(d)}".encode()))
    return {c: round(mean(values), 4) for c, values in rates.items()}, kept[:n_kept]


def place(decision: dict[str, Any]) -> str:
    return f"{decision['trace']} {decision['n_emitted']}"


def run_all(chosen: list[Setting], n_answers: int, n_kept: int) -> dict[str, Any]:
    with ProcessPoolExecutor() as pool:
        jobs = pool.map(functools.partial(run, n_answers=n_answers, n_kept=n_kept), chosen)
        results = {}
        for setting, (speed, kept) in zip(chosen, jobs, strict=True):
            results[str(setting)] = {"tokens_per_second": speed, "decisions": kept}
            print(setting, speed, file=sys.stderr, flush=True)
    return results


def compare(before: dict[str, Any], after: dict[str, Any]) -> None:
    worst: list[tuple[float, str, str]] = []
    plain = {name.split(",")[0]: s for name, s in before.items() if name.endswith(", plain")}
    slower: list[tuple[float, str, str]] = []
    means = []
    for name, cell in after.items():
        old, new = before[name]["tokens_per_second"], cell["tokens_per_second"]
        ratios = {category: new[category] / old[category] for category in new}
        means.append((geometric_mean(ratios.values()), name))
        worst += [(ratio, name, category) for category, ratio in ratios.items()]
        base = plain[name.split(",")[0].removesuffix("-lookup")]["tokens_per_second"]
        slower += [(new[c] / base[c], name, c) for c in new if new[c] < 0.99 * base[c]]
    print(
        f"{len(means)} settings, all together {geometric_mean(m for m, _ in means):.4f} of before"
    )
    for title, rows in (("least", sorted(means)[:12]), ("most", sorted(means)[-4:])):
        print(f"{title}:", *[f"  {m:.4f} {name}" for m, name in rows], sep="\n")
    print("least cells:", *[f"  {r:.4f} {n}: {c}" for r, n, c in sorted(worst)[:12]], sep="\n")
    print(f"below 0.99 of plain: {len(slower)}")
    print(*[f"  {r:.4f} {n}: {c}" for r, n, c in sorted(slower)[:12]], sep="\n")


def difference(old: dict[str, Any], new: dict[str, Any] | None) -> str:
    """Say how a decision differs from the one that was recorded at the same place."""
    if new is None:
        return "no step begins there, or a plain one"
    paths, before = paths_of(new), paths_of(old)
    if paths == before:
        n_read = [work.n_tokens for work in new["evaluated"]]
        return "same" if old["evaluated"] == n_read else "same tokens, other evaluations"
    return "more tokens" if paths > before else "fewer" if paths < before else "others"


def paths_of(decision: dict[str, Any]) -> set[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    tokens = decision["tokens"]
    parents = decision["parents"] or range(-1, len(tokens) - 1)
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return set(paths)


def show_differences(before: dict[str, Any], after: dict[str, Any]) -> None:
    found = defaultdict(list)
    for name, cell in after.items():
        today = {place(decision): decision for decision in cell["decisions"]}
        for old in before[name]["decisions"]:
            new = today.get(place(old))
            found[difference(old, new)].append((name, old, new))
    for kind, cases in sorted(found.items(), key=lambda entry: -len(entry[1])):
        both = [(old, new) for _, old, new in cases if new]
        print(f"{len(cases):5} {kind}", end="")
        for what in ("expected", "accepted", "ms") if both else ():
            old_mean, new_mean = (mean(pair[i][what] for pair in both) for i in (0, 1))
            print(f"; {what} {old_mean:.2f}, {new_mean:.2f}", end="")
        print()
        for name, old, new in cases[:: max(1, len(cases) // 6)] if kind != "same" else ():
            print(f"      {name}: {shown(old)} -> {shown(new) if new else '-'}")


def shown(decision: dict[str, Any]) -> str:
    return "{source} {tokens} {parents} {evaluated} {expected} {accepted}".format(**decision)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("--like", default="", help="only settings whose name has this")
    parser.add_argument("--quick", action="store_true", help=f"{N_QUICK} answers a category")
    parser.add_argument("--save", default="", help="file for the speeds that were compared")
    given = parser.parse_args()
    chosen = [s for s in settings() if given.like in str(s)]
    if given.what == "record":
        if BEFORE.exists():
            sys.exit(f"{BEFORE} is there: it is what later code is compared with")
        results = {
            "quick": run_all(chosen, N_QUICK, 0),
            "all": run_all(chosen, N_ANSWERS, -(-N_DECISIONS // len(chosen))),
        }
        BEFORE.write_bytes(gzip.compress(json.dumps(results).encode(), mtime=0))
        return
    before = json.loads(gzip.decompress(BEFORE.read_bytes()))["quick" if given.quick else "all"]
    every = 1 << 30
    after = run_all(chosen, *((N_QUICK, 0) if given.quick else (N_ANSWERS, every)))
    if given.save:
        speeds = {name: cell["tokens_per_second"] for name, cell in after.items()}
        Path(given.save).write_text(json.dumps(speeds, indent=0) + "\n")
    compare(before, after)
    if not given.quick:
        show_differences(before, after)


main()
