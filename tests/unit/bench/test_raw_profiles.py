"""Devices whose times are as they were measured: more tokens may take less time."""

import json
from pathlib import Path

import pytest

from edgespec.bench.replay import shipped_profiles, shipped_traces, table

RAW = shipped_profiles(raw=True)


@pytest.mark.parametrize("name", RAW)
def test_every_width_to_sixteen_is_there(name):
    assert name.removesuffix("-lookup").endswith("-raw")
    assert RAW[name].target.widths[:16] == tuple(range(1, 17))
    assert (RAW[name].draft is None) == name.endswith("-lookup")


def test_kernels_that_work_on_two_and_four_tokens_are_not_smoothed():
    (row, _) = RAW["cpu-q4-raw"].target.seconds
    assert all(row[n - 1] > row[n] for n in (3, 5, 7, 9, 11, 13, 15))


def test_the_others_rise_and_are_separate():
    smooth = shipped_profiles()
    assert not set(RAW) & set(smooth)
    for profile in smooth.values():
        assert all(list(row) == sorted(row) for row in profile.target.seconds)


@pytest.mark.long("replays every recorded answer on two more devices")
def test_the_controller_on_raw_times():
    """The best fixed settings in hindsight were made as those of tests/data/replay.jsonl."""
    text = Path(__file__).parents[3].joinpath("tests/data/raw_replay.jsonl").read_text()
    rows = [row for row in map(json.loads, text.splitlines()) if row["policy"] == "best-fixed"]
    best = {(row["profile"], row["category"]): row["speedup"] for row in rows}
    names = ["cpu-q4-raw", "cpu-f16-raw"]
    rows = table(shipped_traces(), {name: RAW[name] for name in names}, fixed=False)
    auto = {(r["profile"], r["category"]): r["speedup"] for r in rows if r["policy"] == "auto"}
    assert {key: speed for key, speed in auto.items() if speed < 0.99} == {}
    assert {key: speed for key, speed in auto.items() if speed < 0.95 * best[key]} == {}
