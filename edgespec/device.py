"""Facts about this machine: its folders, processors, GPUs, memory and load."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .errors import ConfigError
from .named_files import expanded

_NICE = {"low": 10, "high": -10}
_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}  # of PCI devices
_WINDOWS_ADAPTERS = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
_FAST = 0.6  # a core with at least this share of the fastest core's capacity is fast
_TUNABLES = "GLIBC_TUNABLES"  # settings of glibc, separated by colons
HUGE_PAGES = f"{_TUNABLES}=glibc.malloc.hugetlb=1"  # glibc then asks for huge pages
_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
BUSY = 0.25  # cores: if other programs use more, measured times are not reliable

# platformdirs and psutil are imported where they are needed: `import edgespec` has to be quick.


def cache_folder(kind: str) -> Path:
    """Return the folder for files that can be made again: "models", "profiles", "drafts", "engines"
    or "prefixes".

    It is $EDGESPEC_MODELS, $EDGESPEC_PROFILES, …, or else a folder in the user's cache.
    """
    if given := os.environ.get(f"EDGESPEC_{kind.upper()}"):
        return expanded(given)
    from platformdirs import user_cache_path

    return user_cache_path("edgespec", appauthor=False) / kind


def data_folder(kind: str) -> Path:
    """Return the folder for files that the user wants kept: $EDGESPEC_<KIND>, or else a folder in
    the user's data.
    """
    if given := os.environ.get(f"EDGESPEC_{kind.upper()}"):
        return expanded(given)
    from platformdirs import user_data_path

    return user_data_path("edgespec", appauthor=False) / kind


def state_folder() -> Path:
    """Return the user's folder for the state of programs, such as the history of typed prompts."""
    from platformdirs import user_state_path

    return user_state_path("edgespec", appauthor=False)


def chats_folder() -> Path:
    """Return the folder of the conversations that `edgespec chat` keeps, one file each."""
    return state_folder() / "chats"


def _usable() -> list[int]:
    """Return the numbers of the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    import psutil

    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # macOS does not have it
        return process.cpu_affinity()
    return list(range(psutil.cpu_count() or 1))


def usable_cpus() -> int:
    """Return the number of CPUs that this process may run on; each hyper-thread counts as one."""
    return len(_usable())


def physical_cores() -> int:
    """Return the number of physical cores that this process may run on."""
    import psutil

    cpus = _usable()
    try:  # psutil counts the cores of the machine, not those of the CPUs of this process
        return len(set(map(_siblings, cpus)))
    except OSError:
        return min(psutil.cpu_count(logical=False) or len(cpus), len(cpus))


def is_arm() -> bool:
    """Return True if this is an ARM processor."""
    return platform.machine().lower().startswith(("arm", "aarch"))


def fast_cores() -> int:
    """Return the number of physical cores that are about as fast as the fastest one.

    Using slower cores as well would slow down an evaluation, because its threads wait for each
    other.
    """
    every, fast = physical_cores(), _fast_cpus()
    cores = {_siblings(cpu) for cpu in fast.intersection(_usable())}
    if sys.platform == "darwin":
        return min(every, _sysctl("hw.perflevel0.physicalcpu") or every)
    return min(every, len(cores) or every)


def _fast_cpus() -> set[int]:
    """Return the numbers of the fast CPUs; an empty set if Linux does not say which are fast."""
    capacity_files = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpu_capacity")
    try:
        capacities = {
            int(path.parent.name[3:]): int(path.read_text("utf-8")) for path in capacity_files
        }
        if capacities:  # ARM: 1024 is the fastest
            return {n for n, of in capacities.items() if of >= _FAST * max(capacities.values())}
        return _numbers(Path("/sys/devices/cpu_core/cpus").read_text("utf-8"))  # Intel's hybrids
    except (OSError, ValueError):
        return set()


def _numbers(text: str) -> set[int]:
    """Return the numbers in a list such as "0-3,8"."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def _siblings(cpu: int) -> str:
    """Return the list of the CPUs that share a core with this one, as text. Raises OSError."""
    topology = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return Path(topology).read_text("utf-8")


def _sysctl(name: str) -> int:
    """Return a number that macOS's sysctl knows under this name, 0 if there is none."""
    import subprocess

    said = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True).stdout
    return int(said) if said.strip().isdecimal() else 0


def processor() -> str:
    """Return the CPU's name and the number of hardware threads that this process may use."""
    return f"{_processor_name() or platform.processor() or platform.machine()} x{usable_cpus()}"


def _processor_name() -> str:
    """Return the CPU's name as the operating system knows it, or ""."""
    try:
        if sys.platform == "win32":
            import winreg

            key = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as cpu:
                return str(winreg.QueryValueEx(cpu, "ProcessorNameString")[0]).strip()
        if sys.platform == "darwin":
            import subprocess

            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True).stdout.strip()
        return _linux_processor()
    except OSError:
        return ""


def _linux_processor() -> str:
    """Return the CPU's name. On ARM this is the board's name, or the CPU's implementer and part
    numbers. Raises OSError.
    """
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    said = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    if name := said.get("model name"):
        return name
    with contextlib.suppress(OSError):
        return Path("/proc/device-tree/model").read_text("utf-8", "replace").strip("\0 \n")
    parts = [said[key] for key in ("CPU implementer", "CPU part") if key in said]
    return " ".join(["ARM", *parts]) if parts else ""


def gpu_driver() -> str:
    """Return facts that a GPU's speed depends on: the versions of the operating system and of the
    NVIDIA driver, and the power mode of a Jetson.
    """
    facts = [platform.release()]
    for path in ("/proc/driver/nvidia/version", "/var/lib/nvpmodel/status"):
        with contextlib.suppress(OSError):
            facts += Path(path).read_text("utf-8", "replace").splitlines()[:1]
    return "; ".join(facts)


def seen_gpus() -> list[str]:
    """Return the vendors of the GPUs that the operating system shows: "NVIDIA", "AMD", "Intel",
    "Apple". It may be that no installed engine can use these GPUs.
    """
    if sys.platform == "darwin":
        return ["Apple"] if platform.machine() == "arm64" else []
    names = _windows_gpus() or _linux_gpus()
    return [maker for maker in _VENDORS.values() if any(maker in name for name in names)]


def _linux_gpus() -> list[str]:
    """Return the vendors of the PCI graphics devices, and "NVIDIA" on a Jetson."""
    names = []
    for path in Path("/sys/class/drm").glob("card*/device/vendor"):
        with contextlib.suppress(OSError):
            names.append(_VENDORS.get(path.read_text("utf-8").strip(), ""))
    if Path("/etc/nv_tegra_release").exists() or any(Path("/dev").glob("nvidia*")):
        names.append("NVIDIA")
    return names


def _windows_gpus() -> list[str]:
    """Return the names of the display adapters in the registry of Windows."""
    if sys.platform != "win32":
        return []
    import winreg

    names, adapters = [], winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _WINDOWS_ADAPTERS)
    for i in range(winreg.QueryInfoKey(adapters)[0]):
        with contextlib.suppress(OSError):
            adapter = winreg.OpenKey(adapters, winreg.EnumKey(adapters, i))
            names.append(str(winreg.QueryValueEx(adapter, "DriverDesc")[0]))
    return names


def instructions() -> frozenset[str]:
    """Return the CPU's instruction sets by their Linux names ("avx512f", "asimddp"); an empty set
    if the operating system does not list them.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return frozenset()
    listed = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(listed, "").split())


def thread_counts(most: int = 0) -> list[int]:
    """Return the numbers of threads that are worth trying, in ascending order.

    most: the largest number to return, 0 for no limit.
    """
    counts = (1, fast_cores(), physical_cores(), usable_cpus())
    return sorted({min(n, most or n) for n in counts})


def set_priority(prio: str) -> None:
    """Set the priority of this process: "low", "high", or "normal", which leaves it as it is.

    Raises ConfigError where that is not permitted.
    """
    if prio == "normal":
        return
    import psutil

    try:
        if not psutil.WINDOWS:
            for thread in _threads():  # Linux has a priority for each; new ones inherit it
                os.setpriority(os.PRIO_PROCESS, thread, _NICE[prio])
            return
        classes = {"low": "BELOW_NORMAL_PRIORITY_CLASS", "high": "HIGH_PRIORITY_CLASS"}
        psutil.Process().nice(getattr(psutil, classes[prio]))
    except (PermissionError, psutil.AccessDenied) as error:
        raise ConfigError(
            f"prio {prio!r} is not permitted for this user; leave it out, or start edgespec with "
            "the permission to raise priorities (CAP_SYS_NICE on Linux)"
        ) from error


def _threads() -> list[int]:
    """Return the ids of this process's threads, or [0] (the process) if there is no such list."""
    tasks = Path("/proc/self/task")
    return [int(task.name) for task in tasks.iterdir()] if tasks.is_dir() else [0]


def on_battery() -> bool:
    """Return True if this machine runs on its battery; False if it has none, or does not say."""
    import psutil

    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    return battery is not None and battery.power_plugged is False


def lacks_huge_pages() -> bool:
    """Return True if this program's memory is in small pages, and `HUGE_PAGES` would change that:
    if Linux gives huge pages to programs that ask for them, and glibc could ask but does not.
    """
    try:
        asks = "[madvise]" in _PAGES.read_text()
    except OSError:
        return False
    library, version = platform.libc_ver()
    numbers = re.match(r"(\d+)\.(\d+)", version)
    able = library == "glibc" and numbers and tuple(map(int, numbers.groups())) >= (2, 35)
    return bool(asks and able and "glibc.malloc.hugetlb" not in os.environ.get(_TUNABLES, ""))


def available_memory() -> int:
    """Return the bytes that new allocations can use without swapping."""
    import psutil

    return psutil.virtual_memory().available


def total_memory() -> int:
    """Return the bytes of memory that this machine has."""
    import psutil

    return psutil.virtual_memory().total


class Load(NamedTuple):
    """The use of the CPUs: cores used by other programs, cores used by this process, idle cores."""

    others: float
    own: float
    idle: float


@functools.cache
def _n_cpus() -> int | None:
    return os.cpu_count()  # asks the system each time


def cpu_seconds() -> tuple[float, float]:
    """Return for how many seconds since the machine started the CPUs that this process may use were
    busy, and for how many idle. Time that a hypervisor gave to other machines counts as neither.
    Raises OSError if the system does not show these times.
    """
    import psutil

    usable = _usable()
    every = len(usable) == _n_cpus()
    times = [psutil.cpu_times()] if every else psutil.cpu_times(percpu=True)
    if not every:
        times = [times[cpu] for cpu in usable if cpu < len(times)]
    busy = sum(
        getattr(one, name, 0.0)
        for one in times
        for name in ("user", "nice", "system", "irq", "softirq", "interrupt", "dpc")
    )
    return busy, sum(one.idle + getattr(one, "iowait", 0.0) for one in times)


class LoadMeter:
    """Measures how much other programs use the CPUs between two calls of `look`.

    Children of this process count as other programs. system: returns the busy and the idle seconds
    of all CPUs together, `cpu_seconds` by default. own: returns the CPU seconds of this process.
    """

    def __init__(
        self,
        system: Callable[[], tuple[float, float]] | None = None,
        own: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._system, self._own, self._clock = system, own, clock
        self._last = self._read()

    def look(self, least_s: float = 0.0) -> Load | None:
        """Return the use of the CPUs since the last call. Return None if the system does not show
        it, or if at most `least_s` seconds have passed.
        """
        last, self._last = self._last, self._read()
        if last is None or self._last is None:
            return None
        seconds, own, busy, idle = (b - a for a, b in zip(last, self._last, strict=True))
        if seconds <= least_s or busy + idle < seconds / 2 or busy < own / 2:
            return None  # the counters do not change, as in some containers
        return Load(max(0.0, busy - own) / seconds, own / seconds, idle / seconds)

    def _read(self) -> tuple[float, float, float, float] | None:
        try:
            busy, idle = (self._system or cpu_seconds)()
        except (OSError, RuntimeError, ValueError, NotImplementedError):
            return None
        return self._clock(), self._own(), busy, idle


def others_now() -> float | None:
    """Return how many cores other programs could use at this moment, estimated from the number of
    threads that are ready to run; None if the system does not tell it. This is a snapshot: it says
    little about the next seconds.
    """
    try:
        with open("/proc/loadavg") as file:
            n_ready = int(file.read().split()[3].split("/")[0])
    except (OSError, ValueError, IndexError):
        return None
    return max(0, n_ready - 1) * usable_cpus() / (os.cpu_count() or 1)


def other_load(seconds: float = 0.3) -> float | None:
    """Return how many cores other programs use, or None if the system does not show it.

    seconds: how long to watch; the thread sleeps meanwhile. If the result is above BUSY, times
    measured now should not be kept.
    """
    meter = LoadMeter()
    time.sleep(seconds)
    load = meter.look()
    return load.others if load else None
