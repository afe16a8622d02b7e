"""Draw a kept result as `edgespec bench --plot` does: `python docs/pictures/bench.py`."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

from edgespec.bench.reports import plot

RESULT = Path(__file__).parents[1] / "results" / "bench_qwen1.5b_f16_all.json"


def main() -> None:
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "edgespec"}
    matplotlib.rcParams |= {"font.family": "sans-serif", "font.size": 14}
    header = json.loads(RESULT.read_text())
    rows = header.pop("rows")
    header.pop("command")
    path = Path(__file__).with_suffix(".svg")
    path.write_bytes(plot("svg", header, rows))
    lines = [line.rstrip() for line in path.read_text().splitlines() if "<dc:date>" not in line]
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
