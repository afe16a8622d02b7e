"""The machine that this runs on: its folders, processors and memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path

# platformdirs and psutil are imported where they are needed: `import edgespec` has to be quick.


def cache_folder(kind: str) -> Path:
    """Return the folder of files that can be made again: "models", "profiles" or "drafts".

    $EDGESPEC_MODELS, $EDGESPEC_PROFILES or $EDGESPEC_DRAFTS, or else in the user's cache.
    """
    if given := os.environ.get(f"EDGESPEC_{kind.upper()}"):
        return Path(given).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("edgespec", appauthor=False) / kind


def state_folder() -> Path:
    """Return the user's folder for what programs remember, such as the history of a prompt."""
    from platformdirs import user_state_path

    return user_state_path("edgespec", appauthor=False)


def _usable() -> list[int]:
    """Return the numbers of the CPUs that this process may run on."""
    import psutil

    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # which macOS does not have
        return process.cpu_affinity()
    return list(range(psutil.cpu_count() or 1))


def usable_cpus() -> int:
    """Return the number of CPUs that this process may run on, hyper-threads counted each."""
    return len(_usable())


def physical_cores() -> int:
    """Return the number of cores that this process may run on, hyper-threads counted once."""
    import psutil

    cpus = _usable()
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    try:  # psutil counts the cores of the machine, not those of the CPUs of this process
        return len({Path(topology.format(cpu)).read_text() for cpu in cpus})
    except OSError:
        return min(psutil.cpu_count(logical=False) or len(cpus), len(cpus))


def processor() -> str:
    """Return the CPU's name and how many of its threads this process may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(named, platform.processor() or platform.machine())} x{usable_cpus()}"


def thread_counts() -> list[int]:
    """Return the numbers of threads that are worth a try, in ascending order."""
    return sorted({1, physical_cores(), usable_cpus()})


def available_memory() -> int:
    """Return the bytes that new allocations can use without swapping."""
    import psutil

    return psutil.virtual_memory().available
