"""The controller on recorded answers of real models, in virtual time: exact, so that a change
that makes it worse fails here. The best fixed settings in hindsight are those of
docs/results/replay.jsonl, made by `edgespec bench replay --json`.
"""

import json
from pathlib import Path
from statistics import geometric_mean

import pytest

from edgespec.bench import replay

BEST = [
    row
    for row in map(
        json.loads,
        Path(__file__).parents[2].joinpath("docs/results/replay.jsonl").read_text().splitlines(),
    )
    if row["policy"] == "best-fixed"
]
# where hindsight wins by more than 3%: the purse, plain steps that are taken to measure them, and
# a draft model that is read in only once an answer has proved long
SHORT_OF_HINDSIGHT = {
    ("cpu-q4", "file_editing"): 0.89,
    ("cpu-q4-lookup", "file_editing"): 0.89,
    ("cpu-f16", "math_reasoning"): 0.91,
    ("cpu-f16", "qa"): 0.93,
}


@pytest.fixture(scope="module")
def found():
    rows = replay.table(replay.shipped_traces(), replay.shipped_profiles(), fixed=False)
    return {(r["profile"], r["category"]): r["speedup"] for r in rows if r["policy"] == "auto"}


def test_never_slower_than_plain(found):
    assert {key: speed for key, speed in found.items() if speed < 0.985} == {}


def test_hardly_below_the_best_fixed_setting(found):
    short = {}
    for row in BEST:
        key = row["profile"], row["category"]
        ratio = found[key] / row["speedup"]
        if ratio < SHORT_OF_HINDSIGHT.get(key, 0.97):
            short[key] = ratio
    assert short == {}


@pytest.mark.parametrize("profile", sorted({row["profile"] for row in BEST}))
def test_on_the_whole_as_good_as_hindsight(found, profile):
    best = geometric_mean(row["speedup"] for row in BEST if row["profile"] == profile)
    mean = geometric_mean(speed for (p, _), speed in found.items() if p == profile)
    assert mean > 0.985 * best
