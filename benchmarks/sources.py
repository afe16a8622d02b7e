"""What sources of drafts gain over plain decoding, in replay: every device, with a draft model and
without (NAME-lookup), every category. The worst cells, and what changed between two results.

    python -m benchmarks.sources auto draft_model --save replay_sources
    python -m benchmarks.sources auto --against replay_sources
    python -m benchmarks.sources suffix,recycling,draft_model --each-off --profile gpu-flat

--each-off: also the method without each of its names in turn. --against: a result to compare with,
methods with those of the same name, and any other method with its "auto".
"""

import argparse
import functools
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from statistics import geometric_mean

from benchmarks.common import RESULTS, save
from edgespec import drafters
from edgespec.bench.replay import rates, shipped_profiles, shipped_traces

Gains = dict[str, dict[str, dict[str, float]]]
"""Speed over plain decoding by method, device and category."""

BOUND = 0.99

traces = functools.cache(shipped_traces)  # once in each process
profiles = functools.cache(shipped_profiles)


def rate(job: tuple[str, str]) -> dict[str, float]:
    method, profile = job
    return rates(traces(), [profiles()[profile]], method)[0]


def jobs(methods: Iterable[str], names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (method, device): one that uses no draft model is tried without, one of nothing but
    draft models with, and others with and without.
    """
    for name in names:
        drafting = profiles()[name].draft is not None
        yield "plain", name
        for method in methods:
            uses = [entry.uses_model for entry in drafters.chosen(method)]
            if any(uses) if drafting else not all(uses):
                yield method, name


def measure(methods: list[str], names: list[str]) -> Gains:
    made = list(jobs(methods, names))
    with ProcessPoolExecutor() as pool:
        found = dict(zip(made, pool.map(rate, made), strict=True))
    gains: Gains = {method: {} for method in methods}
    for (method, name), speeds in found.items():
        if method != "plain":
            plain = found["plain", name]
            gains[method][name] = {c: round(speed / plain[c], 4) for c, speed in speeds.items()}
    return gains


def each_off(method: str) -> Iterator[str]:
    names = method.split(",")
    for name in names if len(names) > 1 else ():
        yield ",".join(other for other in names if other != name)


def show(gains: Gains) -> None:
    width = max(map(len, gains)) + 2
    categories = next(iter(next(iter(gains.values())).values()))
    by_device: dict[str, dict[str, dict[str, float]]] = {}
    for method, devices in gains.items():
        for name, cells in devices.items():
            by_device.setdefault(name, {})[method] = cells
    for name, rows in by_device.items():
        heads = "".join(f"{category[:9]:>10}" for category in categories)
        print(f"\n{name:<{width}}{heads}      mean  of first")
        first = geometric_mean(next(iter(rows.values())).values())
        for method, cells in rows.items():
            mean = geometric_mean(cells.values())
            figures = "".join(f"{cell:10.3f}" for cell in cells.values())
            print(f"{method:<{width}}{figures}{mean:10.3f}{mean / first:10.3f}")


def compare(gains: Gains, before: Gains) -> dict[str, dict[str, dict[str, object]]]:
    """Return by method and device the ratio of geometric means, and the worst cells."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for method, devices in gains.items():
        for name, cells in devices.items():
            old = before.get(method, before.get("auto", {})).get(name)
            if not old:
                continue
            ratios = {category: cells[category] / old[category] for category in cells}
            worst = min(ratios, key=ratios.__getitem__)
            found.setdefault(method, {})[name] = {
                "mean": round(geometric_mean(cells.values()), 4),
                "mean_before": round(geometric_mean(old.values()), 4),
                "ratio": round(geometric_mean(ratios.values()), 4),
                "worst": [worst, round(ratios[worst], 4)],
                "below_before": [c for c, ratio in ratios.items() if ratio < BOUND],
            }
    return found


def below_plain(gains: Gains) -> list[str]:
    return [
        f"{method} {name} {category} {cell}"
        for method, devices in gains.items()
        for name, cells in devices.items()
        for category, cell in cells.items()
        if cell < BOUND
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--profile", action="append", choices=list(profiles()))
    parser.add_argument("--each-off", action="store_true")
    parser.add_argument("--against")
    parser.add_argument("--save")
    args = parser.parse_args()
    methods = list(args.methods)
    if args.each_off:
        methods += [shorter for method in args.methods for shorter in each_off(method)]
    gains = measure(list(dict.fromkeys(methods)), args.profile or list(profiles()))
    result: dict[str, object] = {"speedup": gains, "below_plain": below_plain(gains)}
    if args.against:
        before = json.loads((RESULTS / f"{args.against}.json").read_text())["speedup"]
        result["against"] = {"result": args.against} | compare(gains, before)
    if args.save:
        save(args.save, result)
    show(gains)
    print("\nbelow plain decoding:", *below_plain(gains) or ["nothing"], sep="\n  ")
    for method, devices in compare(gains, before).items() if args.against else ():
        for name, row in devices.items():
            print(f"{method} {name}:", json.dumps(row))


if __name__ == "__main__":
    main()
