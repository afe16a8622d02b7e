"""The plan of a training."""

import contextlib
import itertools
from types import SimpleNamespace

import pytest

from edgespec.backends.heads import FINAL
from edgespec.costs.curves import Curve
from edgespec.device import Load
from edgespec.train import planning
from edgespec.train.planning import (
    TrainingPlan,
    expected_length,
    length_for,
    length_of,
    rate_of,
)
from edgespec.train.work import TrainOptions

FLAT = Curve((0,), (1, 8), ((1.0, 1.2),))
STEEP = Curve((0,), (1, 8), ((1.0, 8.0),))
CHEAP = Curve((0,), (1,), ((0.05,),))
PLAN = {
    "n_tokens": 1000, "answers_per_s": 50.0, "features_per_s": 200.0, "training_per_s": 500.0,
    "seconds": {"answers": 20.0, "hidden states": 8.0, "training": 6.0}, "disk": 10,
    "free_disk": 20, "memory": 5, "break_even": 1.3, "wanted": 1.6, "expected": 1.4,
    "expected_gain": 1.1, "good_gain": 1.8,
}  # fmt: skip


def test_more_tokens_let_expect_longer_acceptance():
    lengths = [expected_length(10**e) for e in (0, 3, 4, 5, 6, 7, 8, 9)]
    assert all(a <= b for a, b in itertools.pairwise(lengths))
    assert lengths[0] == 1.0
    assert expected_length(100_000) == pytest.approx(1.77)
    assert expected_length(300_000) == pytest.approx(1.94)


def test_the_length_to_break_even_by_all_rates_and_depths():
    for gain in (1.01, 1.15, 1.5):
        gains = {
            (rate, depth): length_of(rate / 100, depth) / (FLAT(depth + 1) + 0.05 * depth)
            for rate in range(1, 101)
            for depth in range(1, 32)
        }
        rate = min(rate for (rate, _), found in gains.items() if found >= gain)
        assert length_for(FLAT, CHEAP, gain) == pytest.approx(length_of(rate / 100, 3))
    assert length_for(STEEP, CHEAP, 1.0 + 1e-9) is None


def test_rates_and_lengths_belong_together():
    for rate, depth in ((0.0, 3), (0.3, 3), (0.7, 5), (1.0, 2)):
        assert rate_of(length_of(rate, depth), depth) == pytest.approx(rate, abs=1e-3)


@pytest.mark.parametrize(("changed", "said"), [
    ({}, "acceptance length of 1.40; this device needs 1.30 to be as fast as plain"),
    ({"good_gain": 0.9}, "does not pay here"),
    ({"disk": 30}, "does not fit"),
])  # fmt: skip
def test_a_sentence_says_whether_it_pays(changed, said):
    plan = TrainingPlan(**PLAN | changed)
    assert said in plan.sentence
    assert (plan.pays and plan.fits) == (not changed)
    assert plan.to_dict()["sentence"] == plan.sentence


class Target:
    """A target that is evaluated without a cost."""

    def tap(self, layers):
        self.layers = layers

    def truncate(self, n_past):
        pass

    def decode(self, tokens):
        assert self.layers == (1, 2, 3, FINAL)


def test_the_plan_counts_what_is_done_once_and_what_is_slower_for_answers(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "target_speed", lambda *_: (FLAT, 100.0, 20.0))
    monkeypatch.setattr(planning, "answers_per_s", lambda _: 50.0)
    monkeypatch.setattr(planning, "matrix_flops", lambda: 1e9)
    work = SimpleNamespace(
        path=tmp_path, folder=tmp_path, options=TrainOptions(n_tokens=1000, minutes=2),
        recordings=SimpleNamespace(n_tokens=0), progress=print, longer=lambda _: 2.5,
    )  # fmt: skip
    needs = planning.Needs(5, 7, "probabilities", 2e6, once=3e6, likeliest=True)
    engine = SimpleNamespace(tokenizer=None)
    plan = planning.make_plan(engine, work, needs, lambda _: CHEAP, lambda: 1.4)
    assert plan.features_per_s == 20
    assert plan.seconds == pytest.approx({
        "answers": 1000 / 50 + 1500 / 100, "probabilities": 1500 / 100 + 1000 / 20,
        "training": 1000 * 3e6 / 1e9 + 120,
    })  # fmt: skip


@pytest.mark.parametrize("likeliest", [False, True])
def test_what_the_target_gives_of_answers_is_measured_as_well(monkeypatch, tmp_path, likeliest):
    read = []
    target = SimpleNamespace(
        tap=read.append, truncate=lambda _: None, decode=lambda ids: read.append(len(ids))
    )
    monkeypatch.setattr(planning, "opened", lambda _: contextlib.nullcontext(target))
    monkeypatch.setattr(planning, "curve_of", lambda _: FLAT)
    monkeypatch.setattr(planning, "likeliest_after", lambda model, ids: read.append(model))
    clock = iter(range(10))
    monkeypatch.setattr(planning, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert planning.target_speed(tmp_path, None, likeliest) == (FLAT, 256, 64 if likeliest else 256)
    assert read == [(), (), (), 256, *[target] * likeliest]


@pytest.mark.parametrize(("load", "warns"), [
    (Load(1.4, 0.6, 0.0), True), (Load(0.1, 1.8, 0.1), False), (None, False),
])  # fmt: skip
def test_times_beside_other_programs_are_not_kept_and_warned_of(monkeypatch, tmp_path, load, warns):
    kept, asked = [], []
    monkeypatch.setattr(planning, "LoadMeter", lambda: SimpleNamespace(look=lambda: load))
    monkeypatch.setattr(planning, "opened", lambda _: contextlib.nullcontext(Target()))
    monkeypatch.setattr(planning, "kept_curve", lambda _, **given: asked.append(given))
    monkeypatch.setattr(planning, "measure", lambda *_, **__: FLAT)
    monkeypatch.setattr(planning, "keep_curve", lambda _, curve: kept.append(curve))
    monkeypatch.setattr(planning, "answers_per_s", lambda _: 50.0)
    monkeypatch.setattr(planning, "matrix_flops", lambda: 1e9)
    recordings, options = SimpleNamespace(n_tokens=0), TrainOptions(n_tokens=1000)
    work = SimpleNamespace(
        path=tmp_path,
        folder=tmp_path,
        options=options,
        recordings=recordings,
        progress=print,
        longer=lambda tokenizer: 2.5 if tokenizer == "its own" else 0.0,
    )
    needs = planning.Needs(5, 7, "hidden states", 2e6)
    plan = planning.make_plan(
        SimpleNamespace(tokenizer="its own"),
        work,
        needs,
        lambda _: CHEAP,
        lambda: 1.4,
        (1, 2, 3),
        lambda _: ("small", 2.0, 1.2),
    )
    assert (plan.draft_model, plan.draft_length, plan.draft_gain) == ("small", 2.0, 1.2)
    assert plan.as_draft == length_for(FLAT, CHEAP, 1.2) > plan.break_even
    assert plan.above_draft == length_for(FLAT, CHEAP, 1.15 * 1.2) > plan.wanted
    assert list(plan.seconds) == ["answers", "hidden states", "training"]
    assert (plan.disk, plan.memory, plan.training_per_s, plan.expected) == (5, 7, 500.0, 1.4)
    assert plan.seconds["training"] == 8 * 1000 / 500
    read_s = 1500 / plan.features_per_s  # of prompts
    assert plan.seconds["hidden states"] == pytest.approx(2500 / plan.features_per_s)
    assert plan.seconds["answers"] == pytest.approx(1000 / 50 + read_s)
    assert asked == [{"quiet": True}]  # times from beside other programs are not used either
    assert kept == ([] if warns else [FLAT])
    assert ("Other programs used 1.4 cores" in plan.warning) == warns
    assert plan.to_dict()["warning"] == plan.warning
