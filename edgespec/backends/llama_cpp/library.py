"""The native library: imported here alone, started once, its log sent to `logging`."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...config import EngineConfig
from ...errors import EngineMissing

try:
    import llama_cpp.llama_cpp
except ImportError as error:
    raise EngineMissing(
        f"GGUF models need llama-cpp-python, which cannot be imported here ({error}); "
        "install it with: pip install 'edgespec[gguf]'"
    ) from error

logger = logging.getLogger("edgespec.llama_cpp")
lib = llama_cpp.llama_cpp
lib_version: str = llama_cpp.__version__

_LEVELS = {3: logging.INFO, 4: logging.INFO}  # what matters comes back as an exception
_DEVICE_CALLS = ("count", "get", "description", "type", "memory")
_GPU_KINDS = (1, 2)  # ggml_backend_dev_type: GPU, integrated GPU

_started = threading.Lock()
_log_listeners: list[Callable[[str], None]] = []


@lib.llama_log_callback  # type: ignore[untyped-decorator]
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
        lib.llama_log_set(_on_native_log, ctypes.c_void_p(0))
        lib.llama_backend_init()


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


def versions() -> dict[str, str]:
    """Return the versions of the packages that this engine is made of."""
    return {"llama-cpp-python": lib_version, "numpy": np.__version__}


def features() -> list[str]:
    """List what the build uses of the processor: AVX2, AVX512, NEON, …"""
    words = system_info().replace("|", ":").split(":")
    found = (word.partition("=") for word in words if "=" in word)
    return [name.strip() for name, _, value in found if value.strip() != "0"]


def gpus() -> list[dict[str, Any]]:
    """List the devices beside the CPU that this build can use: name, free and total bytes."""
    start()
    try:
        native = [getattr(lib._lib, f"ggml_backend_dev_{name}") for name in _DEVICE_CALLS]
    except AttributeError:  # a build without the registry
        return []
    count, get, describe, kind, memory = native
    count.restype, get.restype, get.argtypes = ctypes.c_size_t, ctypes.c_void_p, [ctypes.c_size_t]
    describe.restype, describe.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    kind.restype, kind.argtypes = ctypes.c_int, [ctypes.c_void_p]
    memory.restype, memory.argtypes = None, [ctypes.c_void_p, *[ctypes.c_void_p] * 2]
    found = []
    for device in map(get, range(count())):
        if kind(device) in _GPU_KINDS:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            memory(device, ctypes.byref(free), ctypes.byref(total))
            name = describe(device).decode("utf-8", "replace")
            found.append({"name": name, "free": free.value, "total": total.value})
    return found


def system_info() -> str:
    """Return the build's own line about itself and the processor."""
    found: str = lib.llama_print_system_info().decode("utf-8", "replace")
    return found
