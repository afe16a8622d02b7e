"""Tables at every width of a terminal: no cell is cut, columns go first."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

import edgespec
from edgespec import hub
from edgespec.costs.curves import Curve
from edgespec.costs.profiles import Profile
from edgespec.measure.formats import Format
from edgespec_cli import render
from edgespec_cli.render import table
from edgespec_cli.tuning import _show, _show_finding, _show_widths

WIDTHS = (60, 80, 100, 120)
LONG = "deepseek-r1-distill-qwen-1.5b"


@pytest.fixture(params=WIDTHS)
def width(request, monkeypatch) -> int:
    """Return how many columns the terminal has to which tables are written."""

    def console() -> Console:
        return Console(file=sys.stdout, force_terminal=True, no_color=True, width=request.param)

    monkeypatch.setattr(render, "console", console)
    return request.param


def plain(printed: str) -> list[str]:
    """Return lines without colours and blanks at their ends."""
    return [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", printed).splitlines()]


def fits(lines: list[str], width: int) -> None:
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= width


def test_models_keeps_every_name_whole(edgespec_cli, width):
    lines = plain(edgespec_cli("models").stdout)
    fits([line for line in lines if not line.startswith("to take")], width)
    rows = [line.split() for line in lines if line.startswith("  ") and not line.startswith("    ")]
    assert set(hub.entries()) <= {row[0] for row in rows}
    (titles,) = (line for line in lines if line.split()[:1] == ["name"])
    assert titles.split()[:1] == ["name"]
    assert "tokens/s" in titles
    assert ("licence" in titles, "memory" in titles) == (width >= 120, width >= 80)


def test_list_keeps_every_name_whole(edgespec_cli, width):
    folder = edgespec_cli.folder / "models"
    folder.mkdir()
    for name in ("deepseek-r1-distill-qwen-7b", "qwen2.5-coder-1.5b"):
        (folder / hub.entry(name).files[0].filename).write_bytes(bytes(1000))
    lines = plain(edgespec_cli("list").stdout)
    fits(lines, width)
    assert {"deepseek-r1-distill-qwen-7b", "qwen2.5-coder-1.5b"} <= {
        line.split()[0] for line in lines if line.strip()
    }


def test_the_times_that_tune_shows_are_whole(width, capsys):
    target = {
        "widths": [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32], "lengths": [64, 4096],
        "ms": [[55.7] * 11, [155.7] * 11], "ratio": [[1.0] * 11, [12.34] * 11],
        "guessed": [[False] * 11] * 2,
    }  # fmt: skip
    _show_widths(target)
    lines = plain(capsys.readouterr().out)
    fits(lines, width)
    assert all(figure in "".join(lines) for figure in ("4096", "155.7", "12.34", "t(4)/t(1)"))
    assert ("t(24)/t(1)" in "".join(lines)) == (width > 140)


def test_what_tune_shows_is_whole(width, capsys):
    counts = [edgespec.Candidate(n, f"{n} threads", 60.0 / n, 0.5, 5) for n in (1, 2, 4, 8)]
    choice = edgespec.Choice("n_threads_batch", "sixteen tokens", tuple(counts), 8, "83% faster")
    formats = tuple(
        Format(Path(f"{LONG}-{kind}"), kind, 2 * 10**9, 55.5, 66.6, 7.77, 0.98)
        for kind in ("ONNX-INT4", "Q4_K_M", "F16")
    )
    profile = Profile(Curve((64,), (1, 2, 4, 8), ((0.03, 0.05, 0.08, 0.12),)))
    _show(edgespec.Tuning(LONG, None, (choice,), {}, profile, 1.0, None, formats))
    lines = plain(capsys.readouterr().out)
    tables = [line for line in lines if not re.match(r"\w", line)]
    fits(tables, width)
    words = " ".join(tables).split()
    for word in ("n_threads_batch", "ONNX-INT4", "Q4_K_M", "F16", "55.5", "98%", "83%"):
        assert word in words


def test_texts_are_broken_at_blanks_and_names_are_not(width, capsys):
    why = "the fastest of the settings that were tried while nothing else was running here"
    table(
        ("setting", "tried: chosen", "why"),
        [("requantize_draft", "2 threads 33 ms, 1 thread 61 ms: 2 threads", why), (LONG, "–", why)],
        wrap=("tried: chosen", "why"),
    )
    lines = plain(capsys.readouterr().out)
    fits(lines, width)
    firsts = [line.split()[0] for line in lines if line.strip()]
    assert {"requantize_draft", LONG} <= set(firsts)
    words = " ".join(lines).split()
    assert all(words.count(word) >= 2 for word in why.split())


def test_a_name_longer_than_the_screen_is_folded_and_loses_nothing(width, capsys):
    path = "/models/" + "a-long-name-" * 20
    table(("name", "format", "size"), [(path, "GGUF", "2.0 GB")], drop=("format",))
    lines = plain(capsys.readouterr().out)
    fits(lines, width)
    assert [line.split()[0] for line in lines if line.startswith(("name", "size"))] == [
        "name", "size"
    ]  # fmt: skip
    assert path in "".join(line.removeprefix("name").strip() for line in lines)
    assert "2.0 GB" in "".join(lines)


@pytest.mark.parametrize("columns", range(33, 90, 3))
def test_no_word_is_broken_at_any_width(monkeypatch, capsys, columns):
    console = Console(file=sys.stdout, force_terminal=True, no_color=True, width=columns)
    monkeypatch.setattr(render, "console", lambda: console)
    cells = ("requantize_draft", "sixteen tokens at once", "2 threads 33 ms: 2 threads", "faster")
    table(("setting", "measured with", "tried: chosen", "why"), [cells],
          drop=("measured with",), wrap=("tried: chosen", "why"))  # fmt: skip
    lines = plain(capsys.readouterr().out)
    fits(lines, columns)
    words = " ".join(lines).split()
    for cell in (cells[0], *cells[2:]):
        assert set(cell.split()) <= set(words)


def test_columns_go_in_the_order_in_which_they_are_named(monkeypatch, capsys):
    titles, drop = ("name", "one", "two", "three"), ("two", "one", "three")
    left = []
    for width in (80, 65, 50, 35):
        monkeypatch.setattr(
            render,
            "console",
            lambda width=width: Console(file=sys.stdout, force_terminal=True, width=width),
        )
        table(titles, [("n" * 15, "1" * 12, "2" * 12, "3" * 12)], drop=drop)
        shown = plain(capsys.readouterr().out)[1].split()
        left.append([title for title in titles if title in shown])
    assert left == [["name", "one", "two", "three"], ["name", "one", "two", "three"],
                    ["name", "one", "three"], ["name", "three"]]  # fmt: skip


def test_what_is_no_terminal_gets_every_column(edgespec_cli):
    lines = edgespec_cli("models").stdout.splitlines()
    titles = next(line for line in lines if line.split()[:1] == ["name"])
    assert titles.split() == [
        "name", "for", "size", "memory", "tokens/s", "on", "disk", "licence", "drafts"
    ]  # fmt: skip


def test_what_the_doctor_says_is_whole(width, capsys):
    path = "/home/someone/" + "folder/" * 20
    _show_finding(edgespec.Finding("ok", "profiles", f"what is measured is kept in {path}"))
    lines = plain(capsys.readouterr().out)
    fits(lines, width)
    assert path in "".join(
        line.removeprefix("ok").replace("profiles", "").strip() for line in lines
    )


def test_times_that_were_filled_in_are_shown_as_guesses(capsys):
    rows = ((0.03, 0.06, 0.06, 0.09), (0.04, 0.06, 0.08, 0.12))
    profile = Profile(Curve((64, 1024), (1, 2, 3, 4), rows))
    _show(edgespec.Tuning("m.gguf", None, (), {}, profile, 1.0, None))
    lines = capsys.readouterr().out.splitlines()
    assert ["64", "30.0", "~2.00", "2.00", "3.00"] in [line.split() for line in lines]
    assert ["1024", "40.0", "~1.50", "2.00", "3.00"] in [line.split() for line in lines]
    assert any(line.startswith("~: a guess") for line in lines)
