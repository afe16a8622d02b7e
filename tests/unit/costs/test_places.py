"""Where models can run, and how fast weights are read there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgespec import device
from edgespec.costs import places as module
from edgespec.costs import profiles
from edgespec.costs.curves import Curve


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this a laptop with four cores, where nothing was measured."""
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path))
    monkeypatch.setattr(device, "processor", lambda: "CPU x4")
    monkeypatch.setattr(device, "physical_cores", lambda: 4)
    monkeypatch.setattr(device, "available_memory", lambda: 5_000_000_000)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(module, "_gpus", lambda: [])


def measured(size: Any, seconds: float, **other: Any) -> None:
    """Keep the time of a token, as loading a GGUF does."""
    fingerprint = {"processor": "CPU x4", "file": ["a.gguf", size, "0"], "layers": ""} | other
    profiles.store(fingerprint, Curve((64,), (1, 2), ((seconds, 2 * seconds),)))


def test_what_is_typical_is_taken_where_nothing_was_measured() -> None:
    (cpu,) = module.places()
    assert cpu == module.Place("processor", 5_000_000_000, 24e9)


def test_the_largest_model_that_was_measured_here_says_how_fast_weights_are_read() -> None:
    measured(100_000_000, 0.002)
    measured(2_000_000_000, 0.1)
    measured(9_000_000_000, 0.1, processor="another x8")
    (cpu,) = module.places()
    assert cpu.is_measured
    assert cpu.read_speed == pytest.approx(20e9)


def test_cards_come_first_and_have_measurements_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rtx = SimpleNamespace(description="RTX", free=8_000_000_000)
    monkeypatch.setattr(module, "_gpus", lambda: [rtx])
    measured(2_000_000_000, 0.01, layers="offloaded 29/29 layers to GPU")
    measured(1_000_000_000, 0.1, layers="offloaded 0/29 layers to GPU")
    card, cpu = module.places()
    assert (card.name, card.memory, card.is_gpu) == ("RTX", 8_000_000_000, True)
    assert card.read_speed == pytest.approx(200e9)
    assert cpu.read_speed == pytest.approx(10e9)


def test_files_that_are_no_curves_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{", encoding="utf-8")
    profiles.keep({"processor": "CPU x4"}, {"gain": 1.0})
    measured("large", 0.1)
    measured(1_000_000_000, 0.1, layers=None)
    assert not module.places()[0].is_measured
