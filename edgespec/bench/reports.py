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
_WIDTH = 80  # characters of a table that people read
_MODES = {"plain": "without", "auto": "speculation"}
_LEAST_TOLD = (  # columns that are left out first where a table is too wide
    "J a token", "99% of gaps", "usual gap", "answers", "a step", "first token", "accepted"
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
    lines = [f"{key}: {_cell(value)}  " for key, value in header.items() if _is_plain(value)]
    return "\n".join([*lines, "", *_table(rows), "", *conclusions(rows)])


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table: every name whole, and as many columns as fit 80 characters."""
    several = len({row["temperature"] for row in rows}) > 1
    groups = list(dict.fromkeys((row["category"], row["temperature"]) for row in rows))
    ordered = sorted(
        rows, key=lambda r: (groups.index((r["category"], r["temperature"])), r["mode"] != "plain")
    )
    cells = [_cells(row, several) for row in ordered]
    known = [title for title in cells[0] if any(own[title] != "–" for own in cells)]
    table = {title: [title, *(own[title] for own in cells)] for title in known}
    for title in _LEAST_TOLD:
        if sum(max(map(len, column)) + 3 for column in table.values()) + 1 > _WIDTH:
            table.pop(title, None)
    columns = [_justified(*column) for column in table.values()]
    first, *rest = zip(*columns, strict=True)
    rule = ["-" * len(column[0]) for column in columns]
    return [f"| {' | '.join(cells)} |" for cells in (first, rule, *rest)]


def _justified(*cells: str) -> list[str]:
    """Return the cells of a column, all as long as the longest; numbers to the right."""
    width = max(map(len, cells))
    are_numbers = all(cell[:1].isdigit() or cell == "–" for cell in cells[1:])
    return [cell.rjust(width) if are_numbers else cell.ljust(width) for cell in cells]


def _cells(row: Mapping[str, Any], with_temperature: bool) -> dict[str, str]:
    """Return what people read of a row, by the titles of the columns."""
    temperature = {"temp.": f"{row['temperature']:g}"} if with_temperature else {}
    accepted = row.get("draft_acceptance_rate")
    return {
        "category": _cell(row["category"]),
        **temperature,
        "mode": _cell(_MODES.get(row["mode"], row["mode"])),
        "answers": _cell(row.get("answers")),
        "tokens/s": _number(row.get("tokens_per_second"), ".1f"),
        "times as fast": _interval(row) if row["mode"] != "plain" else "–",
        "a step": _number(row.get("mean_acceptance_length"), ".2f"),
        "accepted": _number(accepted, ".0%"),
        "first token": _number(row.get("ttft_ms"), ".0f", " ms"),
        "usual gap": _number(row.get("itl_p50_ms"), ".1f", " ms"),
        "99% of gaps": _number(row.get("itl_p99_ms"), ".1f", " ms"),
        "J a token": _number(row.get("joules_per_token"), ".2f"),
    }


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "–" if value is None else f"{value:{form}}{unit}"


def _interval(row: Mapping[str, Any]) -> str:
    """Return a speedup and its 95% interval, where that is known: `1.23 (1.04–1.44)`."""
    low, high = row.get("speedup_low"), row.get("speedup_high")
    ends = "" if low is None or high is None else f" ({low:.2f}–{high:.2f})"
    return _number(row.get("speedup"), ".2f", ends)


def conclusions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what speculation gained over all categories, a sentence for each temperature."""
    found = [row for row in rows if (row["category"], row["mode"]) == ("all", "auto")]
    several = len(found) > 1
    lines = []
    for row in (row for row in found if row.get("speedup")):
        speedup, _, ends = _interval(row).partition(" ")
        where = f"At temperature {row['temperature']:g}: " if several else ""
        lines.append(f"{where}{' '.join([speedup, 'times as fast', ends]).strip()}")
    return lines


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
    names = [label_of(row) for row in drafted]
    figure, (speed, lengths, times) = plt.subplots(1, 3, figsize=(16, 2.5 + 0.35 * len(names)))
    speed.barh(names, [r["speedup"] for r in drafted], xerr=_errors(drafted), color="tab:blue")
    speed.axvline(1, color="black", linewidth=0.8)
    speed.set_title("times as fast as without")
    for row in (r for r in drafted if r["category"] != "all"):
        n = sum(row["acceptance_histogram"]) or 1
        shares = [100 * x / n for x in row["acceptance_histogram"]]
        lengths.plot(shares, marker=".", label=label_of(row))
    lengths.set_title("accepted tokens, % of steps")
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


def label_of(row: Mapping[str, Any]) -> str:
    """Return the name of a row in a picture."""
    mode = "" if row["mode"] == "auto" else f", {row['mode']}"
    return f"{row['category']}, temperature {row['temperature']:g}{mode}"


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
