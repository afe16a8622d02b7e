"""Checks of this machine: processor, load, memory, versions, GPU, and the folder for profiles."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

from .. import backends, drafters, kept_files
from ..advice import install
from ..backends import telemetry
from ..backends.base import Backend
from ..cache import prefix_files
from ..config import EngineConfig
from ..costs.profiles import folder
from ..device import (
    BUSY,
    HUGE_PAGES,
    available_memory,
    fast_cores,
    lacks_huge_pages,
    other_load,
    physical_cores,
    processor,
    seen_gpus,
)  # fmt: skip
from ..errors import ConfigError, EngineMissing
from .engine_checks import check_libllama
from .findings import Finding, count, gib

LITTLE_MEMORY = 1 << 30  # bytes


def check_machine(tune: str) -> Iterator[Finding]:
    """Yield findings about this machine and build. tune: the command that tunes the user's model.

    Raises EngineMissing if there is no engine.
    """
    from .. import __version__

    engines = _engines()
    cpu, fast = f"{processor()}, {count(physical_cores(), 'physical core')}", fast_cores()
    if fast < physical_cores():
        cpu += f", {fast} of them fast: so many threads are used"
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
        yield from check_gpu(tune)
    if "onnx" in engines:
        yield _check_onnxruntime("NVIDIA" in seen_gpus())
        yield from check_pages()
        yield from check_telemetry()
    yield _check_profiles(folder())
    yield _check_prompts(prefix_files.folder())


def _engines() -> dict[str, Backend]:
    """Return the backends that are installed. Raises EngineMissing if none is."""
    engines = {}
    for name in backends.names():
        try:
            engine = backends.get(name)
            engine.versions()  # opens its library
            engines[name] = engine
        except EngineMissing as error:
            missing = error
    if not engines:
        raise missing
    return engines


def check_load() -> Iterator[Finding]:
    """Yield a note if other programs take much of the CPUs' time."""
    busy = other_load() or 0.0  # None on systems that do not tell, such as Android
    if busy > BUSY:
        text = f"other programs use {busy:.1f} cores: what is measured now says little"
        yield Finding("note", "load", text, "look again while nothing else is running")


def check_memory(free: int) -> Finding:
    """Return a finding about the free memory, which says whether that is little. free: bytes."""
    text = f"{gib(free)} are free"
    if free < LITTLE_MEMORY:
        return Finding("note", "memory", text, "close other programs, or take a small model")
    return Finding("ok", "memory", text)


def check_gpu(tune: str) -> Iterator[Finding]:
    """Yield findings about llama.cpp's use of this machine's GPUs. tune: as in `check_machine`."""
    from ..backends import llama_cpp

    used = llama_cpp.chosen(EngineConfig())
    for gpu in used:
        kind = "the CPU's memory" if gpu.is_integrated else "its own memory"
        memory = f"{gib(gpu.free)} of {gib(gpu.total)} of {kind} free"
        yield Finding("ok", "GPU", f"layers go on {gpu.description} ({gpu.name}, {memory})")
    if unused := llama_cpp.unused_gpu(tune):
        text, remedy = unused
        yield Finding("problem" if "NVIDIA" in seen_gpus() else "note", "GPU", text, remedy)
    elif not used:
        yield Finding("ok", "GPU", "none is seen here: models run on the CPU")


def _check_onnxruntime(nvidia: bool) -> Finding:
    from ..backends import onnx as engine

    try:
        engine.check_packages()
    except ConfigError as error:
        return Finding("problem", "onnxruntime", str(error))
    providers = f"its providers: {', '.join(engine.all_providers())}"
    if nvidia and not engine.supports_gpu_offload():
        text = f"this machine has an NVIDIA GPU, but onnxruntime cannot use it; {providers}"
        remedy = f"uninstall onnxruntime, then {install('onnx-cuda')}; see docs/how-to/onnx.md"
        return Finding("note", "onnxruntime", text, remedy)
    return Finding("ok", "onnxruntime", providers)


def check_pages() -> Iterator[Finding]:
    """Yield a note if ONNX models would be faster with huge pages."""
    if lacks_huge_pages():
        text = "memory is in small pages; with huge pages, ONNX models on the CPU are faster"
        yield Finding("note", "pages", text, f"put {HUGE_PAGES} into the environment")


def check_telemetry() -> Iterator[Finding]:
    """Yield a finding if the program imported onnxruntime before edgespec could switch off its
    telemetry, which versions from 1.29 on have.
    """
    if not telemetry.switch_off():
        text = (
            "this program imported onnxruntime before edgespec, so onnxruntime's telemetry may be "
            "on: it writes a device id to the user's cache folder and sends data to its makers"
        )
        remedy = (
            "set ORT_DISABLE_TELEMETRY=1, or `import edgespec.backends.onnx` before onnxruntime"
        )
        yield Finding("problem", "telemetry", text, remedy)


def _check_prompts(path: Path) -> Finding:
    if why := kept_files.refusal_ahead(path, "EDGESPEC_PREFIXES"):
        what, _, remedy = why.partition("; ")
        return Finding("note", "prompts", f"{what}, so prompts are kept in memory alone", remedy)
    sizes = [each.n_bytes for each in prefix_files.stored()]
    text = f"{len(sizes)} that were read are kept in {path}: {sum(sizes) / 1e6:.1f} MB"
    return Finding("ok", "prompts", text)


def _check_profiles(path: Path) -> Finding:
    why = kept_files.refusal_ahead(path, "EDGESPEC_PROFILES")
    if not why:
        return Finding("ok", "profiles", f"what is measured is kept in {path}")
    what, _, remedy = why.partition("; ")
    return Finding("problem", "profiles", f"{what}, so every load measures anew", remedy)
