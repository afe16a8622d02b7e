"""The machine that this runs on: processors and memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """Where files of a kind are kept: $EDGESPEC_MODELS, $EDGESPEC_PROFILES, $EDGESPEC_DRAFTS, or
    the user's cache.
    """
    if given := os.environ.get(f"EDGESPEC_{kind.upper()}"):
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "edgespec" / kind


def physical_cores() -> int:
    """Cores this process may run on, hyper-threads counted once."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if cpus is None:
        return max(1, (os.cpu_count() or 2) // 2)
    siblings = set()
    for cpu in cpus:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(path.read_text())
        except OSError:
            siblings.add(str(cpu))
    return len(siblings)


def processor() -> str:
    """The CPU's name and how many of its threads this process may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(named, platform.processor() or platform.machine())} x{usable_cpus()}"


def usable_cpus() -> int:
    """CPUs that this process may run on, hyper-threads counted each."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_counts() -> list[int]:
    """Numbers of threads that are worth a try."""
    return sorted({1, physical_cores(), usable_cpus()})


def available_memory() -> int | None:
    """Bytes that new allocations can use, None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kib = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return int(kib) * 1024 if kib else None
