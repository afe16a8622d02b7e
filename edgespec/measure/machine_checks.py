"""Checks of this machine: processor, load, memory, versions, GPU, and where profiles are kept."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import backends, drafters
from ..backends.base import Backend
from ..costs.profiles import folder
from ..device import BUSY, available_memory, other_load, physical_cores, processor
from ..errors import ConfigError, EngineMissing
from .engine_checks import check_libllama
from .findings import Finding, count, gib

LITTLE_MEMORY = 1 << 30  # bytes


def check_machine() -> Iterator[Finding]:
    """Yield findings about this machine and build. Raises EngineMissing if there is no engine."""
    from .. import __version__

    engines = _engines()
    nvidia = _has_nvidia()
    cpu = f"{processor()}, {count(physical_cores(), 'physical core')}"
    yield Finding("ok", "processor", cpu)
    yield from check_load()
    yield check_memory(available_memory())
    versions = [pair for engine in engines.values() for pair in engine.versions().items()]
    built = ", ".join(f"{name} {version}" for name, version in versions)
    python = platform.python_version()
    yield Finding("ok", "versions", f"edgespec {__version__}, {built}, Python {python}")
    names = [name.replace("_", "-") for name in drafters.names()]
    yield Finding("ok", "drafters", ", ".join(names))
    yield check_libllama()
    if "llama_cpp" in engines:
        yield _check_llama_cpp(nvidia)
    if "onnx" in engines:
        yield _check_onnxruntime(nvidia)
    yield _check_profiles(folder())


def _engines() -> dict[str, Backend]:
    """Return the backends that are installed. Raises EngineMissing where none is."""
    found = {}
    for name in backends.names():
        try:
            found[name] = backends.get(name)
        except EngineMissing as error:
            missing = error
    if not found:
        raise missing
    return found


def check_load() -> Iterator[Finding]:
    """Yield a note if other programs take much of the CPUs' time."""
    busy = other_load() or 0.0  # nothing from a system that does not say, such as Android
    if busy > BUSY:
        text = f"other programs use {busy:.1f} cores: what is measured now says little"
        yield Finding("note", "load", text, "look again while nothing else is running")


def check_memory(free: int) -> Finding:
    """Return how much memory is free, in bytes, and whether that is little."""
    text = f"{gib(free)} are free"
    if free < LITTLE_MEMORY:
        return Finding("note", "memory", text, "close other programs, or take a small model")
    return Finding("ok", "memory", text)


def check_gpu(offload: bool, gpus: list[dict[str, Any]], nvidia: bool) -> Finding:
    """Return what llama.cpp does with GPUs here.

    offload: the build can use GPUs; gpus: those that it sees (name, and bytes `free` and
    `total`); nvidia: the machine has an NVIDIA GPU.
    """
    if gpus:
        listed = ", ".join(
            f"{gpu['name']} ({gib(gpu['free'])} of {gib(gpu['total'])} free)" for gpu in gpus
        )
        return Finding("ok", "GPU", f"this build offloads to {listed}")
    if offload:
        text = "this build can offload to a GPU, but finds none"
        return Finding("problem" if nvidia else "note", "GPU", text, "check the driver")
    if nvidia:
        return Finding(
            "problem",
            "GPU",
            "this machine has an NVIDIA GPU, but this build of llama.cpp cannot use it",
            "build it with CMAKE_ARGS=-DGGML_CUDA=on, see docs/how-to/building.md",
        )
    return Finding("ok", "GPU", "this build computes on the CPU alone; no NVIDIA GPU is seen here")


def _check_llama_cpp(nvidia: bool) -> Finding:
    from ..backends import llama_cpp

    return check_gpu(llama_cpp.supports_gpu_offload(), llama_cpp.gpus(), nvidia)


def _check_onnxruntime(nvidia: bool) -> Finding:
    from ..backends import onnx as engine

    try:
        engine.check_packages()
    except ConfigError as error:
        return Finding("problem", "onnxruntime", str(error))
    providers = f"its providers: {', '.join(engine.all_providers())}"
    if nvidia and not engine.supports_gpu_offload():
        text = f"this machine has an NVIDIA GPU, but onnxruntime cannot use it; {providers}"
        remedy = "uninstall onnxruntime and install edgespec[onnx-cuda], see docs/how-to/onnx.md"
        return Finding("note", "onnxruntime", text, remedy)
    return Finding("ok", "onnxruntime", providers)


def _has_nvidia() -> bool:
    return any(Path("/dev").glob("nvidia*")) or shutil.which("nvidia-smi") is not None


def _check_profiles(path: Path) -> Finding:
    nearest = next(p for p in (path, *path.parents) if p.exists())
    if os.access(nearest, os.W_OK):
        return Finding("ok", "profiles", f"what is measured is kept in {path}")
    return Finding(
        "problem",
        "profiles",
        f"{path} cannot be written, so every load measures anew",
        "set EDGESPEC_PROFILES to a folder that can be written",
    )
