"""Pauses of a training that gives way to other programs."""

import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from edgespec.device import Load
from edgespec.train import gently
from edgespec.train.gently import PAUSE, Pauses


@pytest.fixture
def machine(monkeypatch):
    """Return a machine without a battery. others: the cores that other programs use, look by look;
    the last number is that of all later looks.
    """
    known = SimpleNamespace(others=[0.0], on_battery=False, n_looks=0)

    def look():
        known.n_looks += 1
        others = known.others.pop(0) if len(known.others) > 1 else known.others[0]
        return None if others is None else Load(others, 1.0, 0.0)

    monkeypatch.setattr(gently, "LoadMeter", lambda **_: SimpleNamespace(look=look))
    monkeypatch.setattr(gently, "on_battery", lambda: known.on_battery)
    return known


@pytest.fixture
def said():
    return []


@pytest.fixture
def pauses(machine, said):
    return Pauses(said.append, every_s=0.0)


@pytest.mark.parametrize(("others", "n_looks"), [
    ([0.6, 0.4, 0.3, 0.2, 9.0], 4),  # a pause ends only when nearly nothing else runs
    ([0.4, 9.0], 1),  # less than half a core begins none
    ([None, 9.0], 1),  # the system does not show it
])  # fmt: skip
def test_it_waits_until_other_programs_are_gone(machine, pauses, said, others, n_looks):
    machine.others = others
    pauses.wait()
    assert machine.n_looks == n_looks
    waited = ["paused: other programs use 0.6 cores", "going on after a pause"]
    assert said == (waited if n_looks > 1 else [])


def test_it_waits_on_battery(machine, pauses, said):
    machine.on_battery = True
    thread = threading.Thread(target=pauses.wait)
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    machine.on_battery = False
    thread.join(30)
    assert said == ["paused: this machine runs on battery", "going on after a pause"]
    assert pauses.seconds >= 0.1


def test_work_that_is_given_up_does_not_wait(machine, pauses):
    machine.on_battery = True
    thread = threading.Thread(target=pauses.wait)
    thread.start()
    pauses.end()
    thread.join(30)
    assert not thread.is_alive()
    pauses.wait()


def test_without_gently_nobody_looks(machine, said, tmp_path):
    machine.on_battery, pauses = True, Pauses(said.append, gently=False, every_s=0.0)
    (tmp_path / PAUSE).touch()  # of a run that was killed
    pauses.wait()
    with pauses.of_worker(tmp_path, 1):
        assert not (tmp_path / PAUSE).exists()
    assert machine.n_looks == 0
    assert not said


def test_programs_that_a_training_has_run_are_its_own():
    before = gently.own_seconds()
    program = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert gently.own_seconds() - before > 0.25


def test_a_worker_finds_a_file_while_it_has_to_wait(machine, said, tmp_path):
    pauses = Pauses(said.append, every_s=0.01)
    with pauses.of_worker(tmp_path, 1):
        for on_battery in (True, False, True):
            machine.on_battery = on_battery
            end = time.monotonic() + 30
            while (tmp_path / PAUSE).exists() != on_battery:
                assert time.monotonic() < end
                time.sleep(0.001)
    assert not (tmp_path / PAUSE).exists()
    assert said[:2] == ["paused: this machine runs on battery", "going on after a pause"]
