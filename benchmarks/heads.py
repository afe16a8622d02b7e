"""What trained heads of published quality would gain, in replay: every device, eight workloads.

    python -m benchmarks.heads --save replay_heads
    python -m benchmarks.heads --profile cpu-q4 --head weak-head --answers 6

A head stands where the draft model stands (edgespec.bench.trace_head). Beside lookup alone and the
draft model that was recorded, each alone and with lookups ("auto"), all over plain decoding. Lost
cells are those where the head is there and decoding is slower than plain, or than lookup alone.
"""

import argparse
import functools
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from statistics import geometric_mean

from benchmarks.common import save
from edgespec.bench.replay import rates, shipped_profiles, shipped_traces
from edgespec.bench.trace_head import HEADS
from edgespec.bench.traces import Trace

BOUND = 0.99
LOOKUP = "lookup"

Cells = dict[str, float]  # by category
Source = tuple[str, str | None, str]  # name, head and method
Table = dict[str, dict[str, Cells]]  # by device and source

traces = functools.cache(shipped_traces)  # once in each process
profiles = functools.cache(shipped_profiles)


def sources(heads: list[str]) -> Iterator[Source]:
    yield "plain", None, "plain"
    yield LOOKUP, None, "auto"
    for model in (None, *heads):
        yield model or "draft model", model, "draft_model"
        yield f"{model or 'draft model'} + {LOOKUP}", model, "auto"


def rate(job: tuple[str, Source], n_answers: int) -> Cells:
    device, (name, head, method) = job
    profile = profiles()[f"{device}-lookup" if name == LOOKUP else device]
    by_category: dict[str, list[Trace]] = defaultdict(list)
    for trace in traces():
        by_category[trace.category].append(trace)
    some = [trace for found in by_category.values() for trace in found[:n_answers]]
    return rates(some, [profile], method, HEADS[head] if head else None)[0]


def measure(devices: list[str], heads: list[str], n_answers: int) -> Table:
    jobs = [(device, source) for device in devices for source in sources(heads)]
    with ProcessPoolExecutor() as pool:
        measured = pool.map(functools.partial(rate, n_answers=n_answers), jobs)
        found = {}
        for job, cells in zip(jobs, measured, strict=True):
            found[job] = cells
            print(*job, cells, file=sys.stderr, flush=True)
    gains: Table = {device: {} for device in devices}
    plain = {device: found[device, next(sources(heads))] for device in devices}
    for (device, (name, *_)), cells in found.items():
        if name != "plain":
            gains[device][name] = {c: round(s / plain[device][c], 4) for c, s in cells.items()}
    return gains


def means(gains: Table) -> dict[str, Cells]:
    return {
        device: {name: round(geometric_mean(cells.values()), 3) for name, cells in rows.items()}
        for device, rows in gains.items()
    }


def best(gains: Table) -> dict[str, dict[str, str]]:
    """Return by device and category what is fastest."""
    return {
        device: {
            category: max(rows, key=lambda name: rows[name][category]) for category in rows[LOOKUP]
        }
        for device, rows in gains.items()
    }


def lost(gains: Table, heads: list[str]) -> list[str]:
    found = []
    for device, rows in gains.items():
        for name in (name for head in heads for name in (head, f"{head} + {LOOKUP}")):
            for category, cell in rows[name].items():
                of_lookup = cell / rows[LOOKUP][category]
                if cell < BOUND or ("+" in name and of_lookup < BOUND):
                    found.append(f"{device} {name} {category}: {cell}, {of_lookup:.3f} of lookup")
    return found


def hindered(gains: Table, heads: list[str]) -> list[str]:
    """Return where a head alone is faster than with lookups beside it."""
    ratios = {
        f"{device} {head} {category}": rows[f"{head} + {LOOKUP}"][category] / cell
        for device, rows in gains.items()
        for head in heads
        for category, cell in rows[head].items()
    }
    return [f"{cell}: {ratio:.3f}" for cell, ratio in ratios.items() if ratio < BOUND]


def main() -> None:
    parser = argparse.ArgumentParser()
    devices = [name for name in profiles() if not name.endswith(f"-{LOOKUP}")]
    parser.add_argument("--profile", action="append", choices=devices)
    parser.add_argument("--head", action="append", choices=list(HEADS))
    parser.add_argument("--answers", type=int, default=1000, help="of each category, at most")
    parser.add_argument("--save")
    args = parser.parse_args()
    heads = args.head or list(HEADS)
    gains = measure(args.profile or devices, heads, args.answers)
    result = {
        "heads": {name: repr(HEADS[name]) for name in heads},
        "speedup": gains,
        "mean": means(gains),
        "best": best(gains),
        "lost": lost(gains, heads),
        "hindered": hindered(gains, heads),
    }
    if args.save:
        save(args.save, result)
    for device, row in means(gains).items():
        print(f"\n{device}")
        for name, mean in row.items():
            cells = "".join(f"{cell:8.3f}" for cell in gains[device][name].values())
            print(f"  {name:<22}{cells}  mean {mean:.3f}")
    print("\nlost:", *lost(gains, heads) or ["nothing"], sep="\n  ")
    print("\nslower than the head alone:", *hindered(gains, heads) or ["nothing"], sep="\n  ")


if __name__ == "__main__":
    main()
