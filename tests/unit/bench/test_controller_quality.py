"""The controller on recorded answers of real models, in virtual time: exact, so that a change
that makes it worse fails here. The best fixed settings in hindsight are those of
tests/data/replay.jsonl, made by `edgespec bench replay --json`.
"""

import json
from pathlib import Path
from statistics import geometric_mean

import pytest

from edgespec.bench import replay
from tests.helpers.selection import sample

BEST = [
    row
    for row in map(
        json.loads,
        Path(__file__).parents[3].joinpath("tests/data/replay.jsonl").read_text().splitlines(),
    )
    if row["policy"] == "best-fixed"
]


PROFILES = sample(sorted({row["profile"] for row in BEST}), 5)
"""The quick command takes the first."""


@pytest.fixture(scope="module")
def found():
    profiles = {name: replay.shipped_profiles()[name] for name in PROFILES}
    rows = replay.table(replay.shipped_traces(), profiles, fixed=False)
    return {(r["profile"], r["category"]): r["speedup"] for r in rows if r["policy"] == "auto"}


def test_never_slower_than_plain(found):
    assert {key: speed for key, speed in found.items() if speed < 0.99} == {}


def test_hardly_below_the_best_fixed_setting(found):
    best = [row for row in BEST if row["profile"] in PROFILES]
    ratios = {(r["profile"], r["category"]): r["speedup"] for r in best}
    ratios = {key: found[key] / best for key, best in ratios.items()}
    assert {k: r for k, r in ratios.items() if r < 0.97} == {}


@pytest.mark.parametrize("profile", PROFILES)
def test_on_the_whole_as_good_as_hindsight(found, profile):
    best = geometric_mean(row["speedup"] for row in BEST if row["profile"] == profile)
    mean = geometric_mean(speed for (p, _), speed in found.items() if p == profile)
    assert mean > best
