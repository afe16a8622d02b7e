"""The native library: opened here alone, started once, its log sent to `logging`."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...config import EngineConfig
from . import search
from .declarations import OPTIONAL, LogCallback, missing

logger = logging.getLogger("edgespec.llama_cpp")
_found = search.find()
lib = _found.library

_LEVELS = {3: logging.INFO, 4: logging.INFO}  # what matters comes back as an exception
_GPU_KINDS = (1, 2)  # ggml_backend_dev_type: GPU, integrated GPU

_started = threading.Lock()
_log_listeners: list[Callable[[str], None]] = []


@LogCallback  # type: ignore[untyped-decorator]
def _on_native_log(level: int, text: bytes, _: Any) -> None:
    """Send native log lines to `logging`, and to who is loading a model just now."""
    line = text.decode("utf-8", "replace").rstrip()
    if line.strip(". "):
        logger.log(_LEVELS.get(level, logging.DEBUG), "%s", line)
        for listen in _log_listeners:
            listen(line)


def start() -> None:
    """Initialise the native library once."""
    if _started.acquire(blocking=False):  # never released: once a process
        lib.llama_log_set(_on_native_log, None)
        lib.llama_backend_init()
        if not missing(lib, OPTIONAL) and not lib.ggml_backend_dev_count():
            lib.ggml_backend_load_all()  # a build that keeps its processors in files of their own


@contextlib.contextmanager
def native_log() -> Iterator[list[str]]:
    """Collect what the library logs meanwhile: its return codes do not say why something failed."""
    lines: list[str] = []
    _log_listeners.append(lines.append)
    try:
        yield lines
    finally:
        _log_listeners.remove(lines.append)


def supports_gpu_offload() -> bool:
    """Return True if this build of llama.cpp can put layers on a GPU."""
    start()
    return bool(lib.llama_supports_gpu_offload())


def ignores_gpu_layers(config: EngineConfig) -> bool:
    """Return True if `config` asks for layers on a GPU and this build can use none."""
    return config.n_gpu_layers > 0 and not supports_gpu_offload()


def engine() -> str:
    """Return the name and version of the library that runs: "llama-cpp-python 0.3.36"."""
    return str(_found.candidate)


def can_requantize() -> bool:
    """Return True if the library can write a model in another format."""
    return _found.requantizes


def versions() -> dict[str, str]:
    """Return the versions of the packages that this engine is made of."""
    candidate = _found.candidate
    return {candidate.package: candidate.version or candidate.path, "numpy": np.__version__}


def features() -> list[str]:
    """List what the build uses of the processor: AVX2, AVX512, NEON, …"""
    words = system_info().replace("|", ":").split(":")
    found = (word.partition("=") for word in words if "=" in word)
    return [name.strip() for name, _, value in found if value.strip() != "0"]


def gpus() -> list[dict[str, Any]]:
    """List the devices beside the CPU that this build can use: name, free and total bytes."""
    start()
    if missing(lib, OPTIONAL):  # a build without the registry
        return []
    found = []
    for device in map(lib.ggml_backend_dev_get, range(lib.ggml_backend_dev_count())):
        if lib.ggml_backend_dev_type(device) in _GPU_KINDS:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            lib.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            name = lib.ggml_backend_dev_description(device).decode("utf-8", "replace")
            found.append({"name": name, "free": free.value, "total": total.value})
    return found


def system_info() -> str:
    """Return the build's own line about itself and the processor."""
    found: str = lib.llama_print_system_info().decode("utf-8", "replace")
    return found
