"""Folders, processors and memory of the machine that the tests run on."""

from pathlib import Path

import psutil
import pytest

from edgespec import device

linux = pytest.mark.skipif(not psutil.LINUX, reason="folders of Linux")


@pytest.mark.parametrize("kind", ["models", "profiles", "drafts"])
def test_a_folder_can_be_given(monkeypatch, kind):
    monkeypatch.setenv(f"EDGESPEC_{kind.upper()}", "~/mine")
    assert device.cache_folder(kind) == Path.home() / "mine"


@linux
@pytest.mark.parametrize(("variable", "default"), [
    ("XDG_CACHE_HOME", ".cache"), ("XDG_STATE_HOME", ".local/state"),
])  # fmt: skip
def test_folders_follow_the_environment(monkeypatch, variable, default):
    def folder() -> Path:
        cache = variable == "XDG_CACHE_HOME"
        return device.cache_folder("profiles").parent if cache else device.state_folder()

    monkeypatch.delenv("EDGESPEC_PROFILES", raising=False)
    monkeypatch.delenv(variable, raising=False)
    assert folder() == Path.home() / default / "edgespec"
    monkeypatch.setenv(variable, "/x")
    assert folder() == Path("/x/edgespec")


def test_cores_are_counted_once_and_threads_each():
    assert 1 <= device.physical_cores() <= device.usable_cpus() <= psutil.cpu_count()
    counts = device.thread_counts()
    assert counts == sorted(set(counts))
    assert {1, device.physical_cores(), device.usable_cpus()} == set(counts)


@pytest.mark.skipif(not hasattr(psutil.Process, "cpu_affinity"), reason="no affinity to set")
def test_only_the_cpus_of_this_process_count():
    process = psutil.Process()
    before = process.cpu_affinity()
    try:
        process.cpu_affinity(before[:1])
        assert (device.usable_cpus(), device.physical_cores()) == (1, 1)
        assert device.processor().endswith(" x1")
    finally:
        process.cpu_affinity(before)


def test_memory_is_available():
    assert 0 < device.available_memory() < psutil.virtual_memory().total
