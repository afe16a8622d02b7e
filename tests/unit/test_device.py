"""Folders, processors and memory of the machine that the tests run on."""

import contextlib
import fnmatch
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from edgespec import ConfigError, device

CPU_SECONDS = device.cpu_seconds  # tests see a quiet machine instead
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
    assert {1, device.fast_cores(), device.physical_cores(), device.usable_cpus()} == set(counts)


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


def test_the_processor_has_its_name_on_macos(monkeypatch):
    def run(command, **_):
        return SimpleNamespace(stdout={"machdep.cpu.brand_string": "Apple M2\n"}[command[-1]])

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("sys.platform", "darwin")
    assert device.processor() == f"Apple M2 x{device.usable_cpus()}"


def test_the_processor_has_its_name_on_windows(monkeypatch):
    key = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    values = {(key, "ProcessorNameString"): "Intel(R) Core(TM) i5 ", (key, "Identifier"): "Intel64"}
    registry = SimpleNamespace(
        HKEY_LOCAL_MACHINE=0,
        OpenKey=lambda _, name: contextlib.nullcontext(name),
        QueryValueEx=lambda name, value: (values[name, value], 1),
    )
    monkeypatch.setitem(sys.modules, "winreg", registry)
    monkeypatch.setattr("sys.platform", "win32")
    assert device.processor() == f"Intel(R) Core(TM) i5 x{device.usable_cpus()}"


def test_a_processor_without_a_name_is_called_by_its_kind(monkeypatch):
    def run(command, **_):
        raise FileNotFoundError(command[0])

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("sys.platform", "darwin")
    kind = platform.processor() or platform.machine()
    assert device.processor() == f"{kind} x{device.usable_cpus()}"


@linux
@pytest.mark.parametrize(("files", "name"), [
    ({"/proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD EPYC\n"}, "AMD EPYC"),
    ({"/proc/cpuinfo": "CPU implementer\t: 0x41\nCPU part\t: 0xd0b\n",
      "/proc/device-tree/model": "Raspberry Pi 5 Model B\0"}, "Raspberry Pi 5 Model B"),
    ({"/proc/cpuinfo": "CPU implementer\t: 0x41\nCPU part\t: 0xd0b\n"}, "ARM 0x41 0xd0b"),
])  # fmt: skip
def test_processors_of_boards_have_names(system, files, name):
    system(files)
    assert device.processor() == f"{name} x{device.usable_cpus()}"


CPUS = "/sys/devices/system/cpu/cpu{}/"


@pytest.fixture
def system(monkeypatch):
    """Return a function that makes this a Linux system with these files alone."""

    def make(files, n_cpus=0):
        class Fake(type(Path())):
            def read_text(self, *args, **kwargs):
                if str(self) not in files:
                    raise FileNotFoundError(str(self))
                return files[str(self)]

            def exists(self):
                return str(self) in files

            def glob(self, pattern):
                full = f"{self}/{pattern}"
                return [Fake(name) for name in files if fnmatch.fnmatch(name, full)]

        monkeypatch.setattr(device, "Path", Fake)
        monkeypatch.setattr("sys.platform", "linux")
        if n_cpus:
            monkeypatch.setattr(device, "_usable", lambda: list(range(n_cpus)))

    return make


def cores(siblings, capacities=()):
    """Return the files of CPUs that share cores, each with its capacity."""
    found = {
        CPUS.format(i) + "topology/thread_siblings_list": shared
        for i, shared in enumerate(siblings)
    }
    return found | {CPUS.format(i) + "cpu_capacity": f"{of}\n" for i, of in enumerate(capacities)}


@linux
@pytest.mark.parametrize(("files", "n_cpus", "fast"), [
    (cores("0123", [1024, 1024, 1024, 1024]), 4, 4),
    (cores("01234567", [350, 350, 350, 350, 900, 900, 900, 1024]), 8, 4),
    (cores(["0-1", "0-1", "2", "3"]) | {"/sys/devices/cpu_core/cpus": "0-1\n"}, 4, 1),
    (cores(["0-1", "0-1", "2-3", "2-3"]), 4, 2),
    (cores("0123") | {"/sys/devices/cpu_core/cpus": "what\n"}, 4, 4),
])  # fmt: skip
def test_threads_are_for_fast_cores(system, files, n_cpus, fast):
    system(files, n_cpus)
    assert device.fast_cores() == fast


@linux
@pytest.mark.parametrize(("files", "seen"), [
    ({}, []),
    ({"/sys/class/drm/card0/device/vendor": "0x10de\n",
      "/sys/class/drm/card1/device/vendor": "0x8086\n"}, ["NVIDIA", "Intel"]),
    ({"/sys/class/drm/card0/device/vendor": "0x1af4\n"}, []),  # of a virtual machine
    ({"/dev/nvidia0": ""}, ["NVIDIA"]),
    ({"/etc/nv_tegra_release": "# R36"}, ["NVIDIA"]),
])  # fmt: skip
def test_gpus_are_seen_without_an_engine(system, files, seen):
    system(files)
    assert device.seen_gpus() == seen


@linux
def test_a_gpu_is_as_fast_as_its_driver_and_its_clocks_let_it_be(system):
    system({"/proc/driver/nvidia/version": "NVRM version: 580.95\nGCC\n",
            "/var/lib/nvpmodel/status": "pmode:0002\n"})  # fmt: skip
    assert device.gpu_driver().endswith("; NVRM version: 580.95; pmode:0002")


def test_memory_is_available():
    assert 0 < device.available_memory() < psutil.virtual_memory().total


class Machine:
    """CPUs whose times are set by hand."""

    def __init__(self, cpus: int = 2) -> None:
        self.cpus, self.now, self.busy, self.own_s = cpus, 0.0, 0.0, 0.0

    def run(self, seconds: float, *, own: float = 0.0, others: float = 0.0) -> None:
        """Let time pass, with so many cores used."""
        self.now += seconds
        self.own_s += own * seconds
        self.busy += (own + others) * seconds

    def system(self) -> tuple[float, float]:
        return self.busy, self.cpus * self.now - self.busy

    def meter(self, system=None) -> device.LoadMeter:
        return device.LoadMeter(system or self.system, lambda: self.own_s, lambda: self.now)


def test_load_is_that_of_other_programs_since_the_last_look():
    machine = Machine(cpus=4)
    meter = machine.meter()
    machine.run(0.5, own=2, others=1.5)
    assert meter.look() == pytest.approx((1.5, 2, 0.5))
    machine.run(0.25, own=4)
    assert meter.look() == pytest.approx((0, 4, 0))


def test_load_that_the_system_does_not_show_is_none():
    def refuse() -> tuple[float, float]:
        raise PermissionError("/proc/stat")

    machine = Machine()
    for system in (refuse, lambda: (5.0, 5.0), lambda: (0.0, 2 * machine.now)):
        meter = machine.meter(system)
        machine.run(0.5, own=1)
        assert meter.look() is None


def test_the_load_of_this_machine_is_seen():
    meter = device.LoadMeter(CPU_SECONDS)
    sum(i * i for i in range(10**6))
    load = meter.look()
    assert load is None or load.others >= 0


def test_other_programs_use_nothing_of_a_quiet_machine():
    assert device.other_load(0.02) == pytest.approx(0, abs=0.02)


@pytest.mark.skipif(not hasattr(psutil.Process, "cpu_affinity"), reason="no affinity to set")
def test_only_the_load_of_its_own_cpus_counts():
    process = psutil.Process()
    before, every = process.cpu_affinity(), CPU_SECONDS()
    try:
        process.cpu_affinity(before[:1])
        assert len(before) == 1 or sum(CPU_SECONDS()) < sum(every)
    finally:
        process.cpu_affinity(before)


def test_no_number_of_threads_is_worth_a_try_above_the_most():
    assert device.thread_counts(1) == [1]
    assert device.thread_counts(10_000) == device.thread_counts()


@linux
def test_priority_is_that_of_every_thread():
    code = """
import os, threading
from edgespec import device
stay = threading.Event()
thread = threading.Thread(target=stay.wait)
thread.start()
nice = lambda thread=0: os.getpriority(os.PRIO_PROCESS, thread)
found = [nice()]
device.set_priority("normal")
found.append(nice())
device.set_priority("low")
new = threading.Thread(target=lambda: found.append(nice()))
new.start(); new.join()
print(*found, nice(), nice(thread.native_id))
stay.set()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, normal, *low = map(int, done.stdout.split())
    assert (normal, low) == (before, [10] * 3)


def test_a_priority_that_is_not_permitted_is_a_clear_error(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr("os.setpriority", refuse, raising=False)
    monkeypatch.setattr("psutil.Process.nice", refuse)
    with pytest.raises(ConfigError, match="'high' is not permitted"):
        device.set_priority("high")
