"""Whether a copy of a draft model is faster: measured in turns, and kept in a quiet moment only."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import edgespec
from edgespec.cache import requantization
from edgespec.costs.curves import Curve, least
from edgespec.device import Load

SECONDS = {"copy.gguf": (1.0, 30.0), "file.gguf": (2.0, 60.0)}


@pytest.fixture
def decide(monkeypatch):
    """Decide on made-up times, the first of which are ten times as long."""

    def run(others: float, seconds=SECONDS):
        kept, calls = [], []

        def measure(model, **_):
            calls.append(model.path.name)
            factor = 10 if len(calls) == 1 else 1
            return Curve((64,), (1, 64), (seconds[model.path.name],)).scaled(factor)

        def open_model(path, config):
            return SimpleNamespace(path=path, close=lambda: None)

        meter = SimpleNamespace(look=lambda: Load(others, 1.0, 0.0))
        engine = SimpleNamespace(open_model=open_model)
        monkeypatch.setattr(requantization, "backends", SimpleNamespace(of=lambda _: engine))
        monkeypatch.setattr(requantization, "measure", measure)
        monkeypatch.setattr(requantization, "LoadMeter", lambda: meter)
        monkeypatch.setattr(requantization, "keep_curve", lambda model, curve: kept.append(curve))
        config = edgespec.EngineConfig()
        faster = requantization._is_faster(Path("copy.gguf"), Path("file.gguf"), config)
        assert calls == ["copy.gguf", "file.gguf"] * 3
        return faster, kept

    return run


def test_a_pause_while_the_copy_is_measured_does_not_decide(decide):
    assert decide(0.0) == (True, [Curve((64,), (1, 64), ((1.0, 30.0),))])
    assert decide(0.0, {"copy.gguf": (1.9, 30.0), "file.gguf": (2.0, 60.0)}) == (False, [])


def test_times_beside_other_programs_are_not_kept(decide):
    assert decide(1.5) == (True, [])


def test_the_least_times_of_curves():
    one = Curve((64, 512), (1, 8), ((1.0, 9.0), (2.0, 8.0)))
    two = Curve((64, 512), (1, 8), ((2.0, 7.0), (1.0, 9.0)))
    assert least([one, two]).seconds == ((1.0, 7.0), (1.0, 8.0))
    assert least([one]) == one
