"""Results as people and programs read them."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError

FORMATS = ("md", "json", "jsonl", "csv")
COLUMNS = (
    "category", "temperature", "mode", "answers", "tokens_per_second", "speedup",
    "speedup_low", "speedup_high", "mean_acceptance_length", "draft_acceptance_rate",
    "ttft_ms", "itl_p50_ms", "itl_p95_ms", "itl_p99_ms", "joules_per_token",
)  # fmt: skip


def report(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], form: str) -> str:
    """Return the rows under a header (model, versions, device) in one of FORMATS."""
    if form == "json":
        return json.dumps({**header, "rows": list(rows)}, indent=1)
    if form == "jsonl":
        return "\n".join(json.dumps({**header, **row}) for row in rows)
    if form == "csv":
        return _csv(header, rows)
    return _markdown(header, rows)


def _csv(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    flat = [{k: v for k, v in {**header, **row}.items() if _is_plain(v)} for row in rows]
    writer = csv.DictWriter(out, list(flat[0]) if flat else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue().rstrip("\n")


def _markdown(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    columns = [c for c in COLUMNS if any(row.get(c) is not None for row in rows)]
    lines = [f"{key}: {_cell(value)}  " for key, value in header.items() if _is_plain(value)]
    lines += ["", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        lines.append("| " + " | ".join(_cell(row.get(column)) for column in columns) + " |")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return "–" if value is None else " ".join(str(value).split())


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float))


def check_picture(path: Path) -> None:
    """Raise ConfigError if `plot` could not draw to this file, before anything is measured."""
    kinds = _pyplot().gcf().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise ConfigError(f"{path} is no kind of picture; known: {', '.join(sorted(kinds))}")


def plot(path: Path, header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw speedups per category, accepted lengths, and where the time went. Needs matplotlib."""
    plt = _pyplot()
    drafted = [r for r in rows if r["mode"] != "plain" and r["speedup"]]
    names = [f"{r['category']} {r['temperature']:g} {r['mode']}" for r in drafted]
    figure, (speed, lengths, times) = plt.subplots(1, 3, figsize=(16, 2.5 + 0.35 * len(names)))
    speed.barh(names, [r["speedup"] for r in drafted], xerr=_errors(drafted), color="tab:blue")
    speed.axvline(1, color="black", linewidth=0.8)
    speed.set_title("speedup over plain decoding")
    for row in (r for r in drafted if r["category"] != "all"):
        n = sum(row["acceptance_histogram"]) or 1
        shares = [100 * x / n for x in row["acceptance_histogram"]]
        lengths.plot(shares, marker=".", label=f"{row['category']} {row['temperature']:g}")
    lengths.set_title("accepted drafted tokens a step, % of steps")
    lengths.legend(fontsize="x-small")
    left = [0.0] * len(names)
    for key, label in (("verify_share", "target"), ("draft_share", "drafts")):
        shares = [row.get(key) or 0.0 for row in drafted]
        times.barh(names, shares, left=left, label=label)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    times.barh(names, [max(0.0, 1 - x) for x in left], left=left, label="rest", color="lightgrey")
    times.set_title("share of the time")
    times.set_yticks([])
    times.legend(fontsize="x-small", ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    for axis in (speed, times):
        axis.invert_yaxis()
    about = ", ".join(str(v) for v in header.values() if isinstance(v, str))
    figure.suptitle(textwrap.fill(about, 180), fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _errors(rows: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Return how far the interval of each speedup reaches below it, and above it."""
    own = [row["speedup"] for row in rows]
    lows = [row.get("speedup_low") or row["speedup"] for row in rows]
    highs = [row.get("speedup_high") or row["speedup"] for row in rows]
    below = [max(0.0, x - low) for x, low in zip(own, lows, strict=True)]
    above = [max(0.0, high - x) for x, high in zip(own, highs, strict=True)]
    return [below, above]


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise ConfigError(
            "a picture needs matplotlib; install it with: pip install 'edgespec[bench]'"
        ) from None
    return plt
