"""Where the time of a test run goes: by folder, by file, by what is loaded and started.

    SUITE_TIMES=times.jsonl pytest --all -p benchmarks.suite_times
    python -m benchmarks.suite_times times.jsonl* --name tests_all

The first writes a line for each case (of several processes each its own file), the second adds
them up and writes docs/results/NAME.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import click
import pytest

PHASES = ("setup", "call", "teardown")
COUNTED = ("gguf_loads", "onnx_loads", "processes")

_counts: Counter[str] = Counter()


class Times:
    """A plugin that writes seconds, processor seconds, loads and started processes of each case."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._row: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Time the fixtures."""
        return (yield from self._timed("setup"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Time the test."""
        return (yield from self._timed("call"))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """Time the end of fixtures, and write the line."""
        try:
            return (yield from self._timed("teardown"))
        finally:
            self._file.write(json.dumps({"id": item.nodeid} | self._row) + "\n")
            self._row.clear()

    def _timed(self, phase: str) -> Iterator[None]:
        began, cpu, before = time.perf_counter(), _cpu_seconds(), Counter(_counts)
        try:
            return (yield)
        finally:
            self._row[phase] += round(time.perf_counter() - began, 4)
            self._row["cpu"] += round(_cpu_seconds() - cpu, 3)
            self._row += _counts - before


def pytest_configure(config: pytest.Config) -> None:
    """Begin to count in a process that runs tests."""
    if path := os.environ.get("SUITE_TIMES"):
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        _count_loads()
        file = open(path + worker, "w", buffering=1)  # noqa: SIM115
        config.pluginmanager.register(Times(file))


def _count_loads() -> None:
    from edgespec.backends.llama_cpp.library import lib
    from edgespec.backends.onnx.session import ort

    def counting(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            _counts[name] += 1
            return function(*args, **options)

        return call

    def audit(event: str, _: Any) -> None:
        _counts["processes"] += event == "subprocess.Popen"

    lib.llama_model_load_from_file = counting(lib.llama_model_load_from_file, "gguf_loads")
    ort.InferenceSession.__init__ = counting(ort.InferenceSession.__init__, "onnx_loads")
    sys.addaudithook(audit)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _folder(nodeid: str) -> str:
    parts = nodeid.partition("::")[0].split("/")[:-1]
    return "/".join(parts[:3] if parts[1] == "unit" else parts[:2])


def _table(rows: list[dict[str, Any]], key: Callable[[str], str], most: int) -> list[Any]:
    """Return sums by key, the longest first."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        sums[key(row["id"])] += Counter(
            {
                "cases": 1,
                "seconds": sum(row.get(phase, 0) for phase in PHASES),
                "setup_seconds": row.get("setup", 0),
                "cpu_seconds": row.get("cpu", 0),
            }
            | {name: row.get(name, 0) for name in COUNTED}
        )
    ordered = sorted(sums.items(), key=lambda item: -item[1]["seconds"])[:most]
    return [{"name": n} | {k: round(v, 1) for k, v in total.items()} for n, total in ordered]


@click.command()
@click.argument("files", nargs=-1, required=True, type=Path)
@click.option("--name", required=True, help="Of the result.")
def main(files: tuple[Path, ...], name: str) -> None:
    """Add up what a run has written."""
    from benchmarks.common import save

    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    tables = {
        "all": _table(rows, lambda _: "all", 1),
        "folders": _table(rows, _folder, 99),
        "files": _table(rows, lambda nodeid: nodeid.partition("::")[0], 20),
        "tests": _table(rows, lambda nodeid: nodeid.partition("[")[0], 20),
    }
    save(name, tables)


if __name__ == "__main__":
    main()
