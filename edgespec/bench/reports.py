"""Reports of benchmark results: tables and pictures for people, data for programs."""

from __future__ import annotations

import csv
import io
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import device
from ..advice import install
from ..errors import ConfigError

FORMATS = ("md", "json", "jsonl", "csv")
_MODES = {"plain": "without", "auto": "speculation"}
_MOST_BARS = 9  # bars for numbers of accepted tokens in a picture; the last is "8 or more"
_LAST = ("other_programs_cores", "stopped")  # header fields that are shown below the table
_DISTURBED = "other programs used {:.1f} cores while this was measured"


def report(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], form: str) -> str:
    """Return a header (model, versions, device) and rows as text in one of FORMATS. Without rows,
    the text has the header, so it is never empty.
    """
    if form == "json":
        return json.dumps({**header, "rows": list(rows)}, indent=1)
    if form == "jsonl":
        return "\n".join(json.dumps({**header, **row}) for row in rows or [{}])
    if form == "csv":
        return _csv(header, rows)
    return _markdown(header, rows)


def _csv(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    flat = [{k: v for k, v in {**header, **row}.items() if _is_plain(v)} for row in rows or [{}]]
    writer = csv.DictWriter(out, list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue().rstrip("\n")


def _markdown(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a header and a table for people. The last lines say if the measurement was stopped, or
    disturbed by other programs.
    """
    told = {key: value for key, value in header.items() if key not in _LAST}
    lines = [f"{key}: {_cell(value)}  " for key, value in told.items() if _is_plain(value)]
    last = (header.get("stopped"), disturbed(header))
    parts = [*lines, "", *_table(rows), "", *conclusions(rows), *(line for line in last if line)]
    return "\n".join(parts).rstrip("\n")


def _table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table. No name is cut. Only the column of the temperature may
    be left out: if all rows have the same one.
    """
    several = len({row["temperature"] for row in rows}) > 1
    cells = [_cells(row, several) for row in rows]
    columns = [_justified(title, *(own[title] for own in cells)) for title in cells[0]]
    first, *rest = zip(*columns, strict=True)
    rule = ["-" * len(column[0]) for column in columns]
    return [f"| {' | '.join(cells)} |" for cells in (first, rule, *rest)]


def _justified(*cells: str) -> list[str]:
    """Return the cells of a column, padded to the longest; numbers are aligned to the right."""
    width = max(map(len, cells))
    are_numbers = all(cell[:1].isdigit() or cell == "–" for cell in cells[1:])
    return [cell.rjust(width) if are_numbers else cell.ljust(width) for cell in cells]


def _cells(row: Mapping[str, Any], with_temperature: bool) -> dict[str, str]:
    """Return the cells of a row, by the titles of their columns."""
    temperature = {"temp.": f"{row['temperature']:g}"} if with_temperature else {}
    accepted = row.get("draft_acceptance_rate")
    return {
        "category": _cell(row["category"]),
        **temperature,
        "mode": _cell(_MODES.get(row["mode"], row["mode"])),
        "tokens/s": _number(row.get("tokens_per_second"), ".1f"),
        "times as fast": _interval(row) if row["mode"] != "plain" else "–",
        "accepted": _number(accepted, ".0%"),
    }


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "–" if value is None else f"{value:{form}}{unit}"


def _interval(row: Mapping[str, Any]) -> str:
    """Return a speedup, with its 95% interval if that is known: `1.23 (1.04–1.44)`."""
    low, high = row.get("speedup_low"), row.get("speedup_high")
    ends = "" if low is None or high is None else f" ({low:.2f}–{high:.2f})"
    return _number(row.get("speedup"), ".2f", ends)


def conclusions(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each temperature with the speedup of speculation over all categories."""
    of_auto = [row for row in rows if (row["category"], row["mode"]) == ("all", "auto")]
    several = len(of_auto) > 1
    lines = []
    for row in (row for row in of_auto if row.get("speedup")):
        speedup, _, ends = _interval(row).partition(" ")
        where = f"At temperature {row['temperature']:g}: " if several else ""
        lines.append(f"{where}{' '.join([speedup, 'times as fast', ends]).strip()}{_doubt(row)}")
    return lines


def _doubt(row: Mapping[str, Any]) -> str:
    """Return a remark if the interval of a speedup contains 1, else an empty string."""
    low, high = row.get("speedup_low"), row.get("speedup_high")
    holds_one = low is not None and high is not None and low <= 1 <= high
    return ": no clear difference" if holds_one else ""


def disturbed(header: Mapping[str, Any]) -> str:
    """Return a sentence if other programs disturbed a measurement, else an empty string."""
    cores = header.get("other_programs_cores") or 0.0
    return _DISTURBED.format(cores) if cores > device.BUSY else ""


def _cell(value: Any) -> str:
    return "–" if value is None else " ".join(str(value).split())


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float))


def check_picture(path: Path) -> None:
    """Raise ConfigError if `plot` cannot draw this type of file. Called before the measurement."""
    kinds = _pyplot().gcf().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise ConfigError(f"{path} is no kind of picture; known: {', '.join(sorted(kinds))}")


def plot(kind: str, header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a picture of speedups, accepted lengths and shares of the time. Needs matplotlib.

    kind: "png" or a different file type that `check_picture` accepts. Rows without drafts are left
    out.
    """
    plt = _pyplot()
    drafted = _drawn(rows)
    names = [label_of(row) for row in drafted]
    figure, panels = plt.subplots(1, 3, figsize=(16, max(5.0, 2.5 + 0.4 * len(names))))
    speed, lengths, times = panels
    speed.barh(names, [r["speedup"] for r in drafted], xerr=_errors(drafted), color="tab:blue")
    speed.axvline(1, color="black", linewidth=0.8)
    intervals = ", with 95% intervals" if any(r.get("speedup_low") for r in drafted) else ""
    speed.set(title=f"speedup{intervals}", xlabel="times as fast as without drafts")
    _draw_lengths(lengths, [row for row in drafted if row["category"] != "all"])
    left = [0.0] * len(names)
    for key, label in (("verify_share", "target"), ("draft_share", "drafts")):
        shares = [100 * (row.get(key) or 0.0) for row in drafted]
        times.barh(names, shares, left=left, label=label)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    rest = [max(0.0, 100 - x) for x in left]
    times.barh(names, rest, left=left, label="sampling and text", color="lightgrey")
    times.set(title="where the time goes", xlabel="% of the time", yticks=[])
    times.legend(fontsize="x-small", ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    for axis in (speed, times):
        axis.invert_yaxis()
    figure.suptitle(textwrap.fill(title_of(header), 180), fontsize="small")
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110, format=kind)
    plt.close(figure)
    return drawn.getvalue()


def _drawn(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows that get a bar. The row for all categories gets one only if there are several
    categories.
    """
    drafted = [row for row in rows if row["mode"] != "plain" and row["speedup"]]
    several = len({row["category"] for row in drafted} - {"all"}) > 1
    return [row for row in drafted if several or row["category"] != "all"]


def _draw_lengths(axis: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw the share of steps that accepted 0, 1, 2, … drafted tokens: a group of bars for each."""
    width = 0.8 / max(1, len(rows))
    for i, row in enumerate(rows):
        counts = [*row["acceptance_histogram"], *[0] * _MOST_BARS]
        counts = [*counts[: _MOST_BARS - 1], sum(counts[_MOST_BARS - 1 :])]
        shares = [100 * count / (sum(counts) or 1) for count in counts]
        places = [n + (i + 0.5) * width - 0.4 for n in range(_MOST_BARS)]
        axis.bar(places, shares, width, label=label_of(row))
    labels = [*map(str, range(_MOST_BARS - 1)), f"{_MOST_BARS - 1}+"]
    axis.set_xticks(range(_MOST_BARS), labels)
    axis.set(title="accepted tokens", xlabel="drafted tokens that a step accepted (8+: 8 or more)")
    axis.set_ylabel("% of steps")
    if rows:
        axis.legend(fontsize="x-small")


def title_of(header: Mapping[str, Any]) -> str:
    """Return the title of a picture: models, speculation, processor, versions and date."""
    draft = header.get("draft") or "none"
    parts = [
        header.get("model"),
        "no draft model" if draft == "none" else f"draft model {draft}",
        *(header.get(key) for key in ("speculation", "processor", "versions", "date")),
        header.get("stopped"),
        disturbed(header),
    ]
    return " · ".join(str(part) for part in parts if part)


def label_of(row: Mapping[str, Any]) -> str:
    """Return the name of a row in a picture."""
    mode = "" if row["mode"] == "auto" else f", {row['mode']}"
    return f"{row['category']}, temperature {row['temperature']:g}{mode}"


def _errors(rows: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Return the distances from each speedup down to the lower end of its interval, and up to the
    upper end.
    """
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
            f"a picture needs matplotlib; install it with {install('bench')}"
        ) from None
    return plt
