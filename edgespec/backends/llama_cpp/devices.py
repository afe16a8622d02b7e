"""The GPUs that llama.cpp can use here, and the choice of GPUs for a model's layers."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...advice import install
from ...config import EngineConfig
from ...device import gpu_driver, seen_gpus
from ...errors import ConfigError
from .ctrl_c import ctrl_c_afterwards
from .declarations import OPTIONAL, missing
from .library import engine, folder_of_processors, lib, load_processor, start

_GPU, _INTEGRATED = 1, 2  # ggml_backend_dev_type
_OTHER_BUILD = (
    f"{install('gpu')} uses it without a compiler (Linux, Windows); "
    "docs/how-to/building.md has CUDA and the others"
)
_LOADER = "install the Vulkan loader: libvulkan1 (Debian, Ubuntu), vulkan-loader (Fedora)"
_DRIVER = (
    "install the GPU's Vulkan driver: mesa-vulkan-drivers for AMD and Intel; for NVIDIA its own, "
    "with libegl1, libgl1, libx11-6 and libxext6, without which it finds no device"
)
_loading = threading.Lock()
_NO_GPU = ("base", "cpu", "blas")  # how names of libraries for other processors begin


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device other than the CPU that llama.cpp can use.

    name: llama.cpp's name for it ("Vulkan0", "CUDA0"). description: its product name. free, total:
    its memory in bytes. is_integrated: it shares the CPU's memory. handle: the native device.
    """

    name: str
    description: str
    free: int
    total: int
    is_integrated: bool
    handle: Any = field(repr=False, compare=False)


def all_gpus() -> list[Gpu]:
    """Return the GPUs that this llama.cpp can use on this machine."""
    start()
    if missing(lib, OPTIONAL):  # a build without the registry
        return []
    with _loading, ctrl_c_afterwards():
        reasons()
    devices = map(lib.ggml_backend_dev_get, range(lib.ggml_backend_dev_count()))
    return [_gpu(each) for each in devices if _kind(each) in (_GPU, _INTEGRATED)]


@functools.lru_cache(maxsize=1)
def reasons() -> dict[str, str]:
    """Load the libraries that compute on GPUs, once, if the build has such libraries. For each kind
    of GPU ("vulkan") that cannot be used, return the reason that the system gave.
    """
    start()
    names = {name for file in folder_of_processors() if (name := _of_file(file))}
    failed = {name: load_processor(name) for name in sorted(names)}
    return {name: why for name, why in failed.items() if why}


def chosen(config: EngineConfig) -> list[Gpu]:
    """Return the GPUs on which a model with these settings has its layers.

    They are the GPUs that `device` names, or else all that have memory of their own, or else the
    integrated ones. An integrated GPU is often slower than the CPU next to it. So an integrated GPU
    under Vulkan is used only if `device` or a number of layers asks for it. Raises ConfigError for
    an unknown name.
    """
    if config.n_gpu_layers == 0 or config.device == "none":
        return []
    here = all_gpus()
    if config.device:
        return [_named(name.strip(), here) for name in config.device.split(",")]
    if separate := [gpu for gpu in here if not gpu.is_integrated]:
        return separate
    asked = config.n_gpu_layers > 0
    return [gpu for gpu in here if asked or not gpu.name.startswith("Vulkan")]


def integrated(config: EngineConfig) -> str:
    """Return the name of an integrated GPU that is left unused with these settings because it may
    be slower than the CPU; "" if there is none.
    """
    if config.device or config.n_gpu_layers >= 0 or chosen(config):
        return ""
    return next((gpu.name for gpu in all_gpus()), "")


def gpus(config: EngineConfig) -> list[str]:
    """Return the GPUs that compute a part of a model with these settings. Each is a text with the
    GPU's name and everything that its speed depends on. Raises ConfigError as `chosen` does.
    """
    return [f"{gpu.name} {gpu.description}, {gpu_driver()}" for gpu in chosen(config)]


def unused_gpu(tune: str) -> tuple[str, str] | None:
    """Return (reason, advice) if this machine seems to have a GPU and no layers go on it by
    default. Return None otherwise.

    tune: the command that tunes the user's model.
    """
    seen, here = " and ".join(seen_gpus()), all_gpus()
    if here:
        if chosen(EngineConfig()):
            return None
        names = ", ".join(f"{gpu.description} ({gpu.name})" for gpu in here)
        text = f"{names} shares the CPU's memory and is often slower than the CPU: it is not used"
        return text, f"{tune} uses it where it is faster; -dev {here[0].name} always does"
    if not seen:  # the GPUs of single-board computers are slower than the CPU
        return None
    if not folder_of_processors():
        text = f"this machine has a GPU ({seen}), and {engine()} computes on the CPU alone"
        return text, _OTHER_BUILD
    failed = "; ".join(reasons().values())
    if "libvulkan" in failed:
        return f"no GPU can be used: {failed}", _LOADER
    text = "no GPU can be used: Vulkan finds no driver"
    return f"{text} ({failed})" if failed else text, _DRIVER


def ignores_gpu_layers(config: EngineConfig) -> bool:
    """Return True if `config` asks for layers on a GPU and this build can use none."""
    return config.n_gpu_layers > 0 and not chosen(config)


def native_list(chosen: Sequence[Gpu]) -> Any:
    """Return the native list of these devices. An empty list keeps a model off all GPUs."""
    return (ctypes.c_void_p * (len(chosen) + 1))(*(gpu.handle for gpu in chosen), None)


def _of_file(path: Path) -> str:
    """Return the kind of GPU that a library computes on ("vulkan" for libggml-vulkan.so), or "" for
    any other library.
    """
    _, ggml, name = path.name.partition(".")[0].partition("ggml-")
    return name if ggml and not name.startswith(_NO_GPU) else ""


def _kind(device: Any) -> int:
    return int(lib.ggml_backend_dev_type(device))


def _gpu(device: Any) -> Gpu:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    lib.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    name, description = lib.ggml_backend_dev_name(device), lib.ggml_backend_dev_description(device)
    is_integrated = _kind(device) == _INTEGRATED
    return Gpu(_text(name), _text(description), free.value, total.value, is_integrated, device)


def _text(native: bytes) -> str:
    return native.decode("utf-8", "replace")


def _named(name: str, here: Sequence[Gpu]) -> Gpu:
    for gpu in here:
        if gpu.name.lower() == name.lower():
            return gpu
    known = ", ".join(f"{gpu.name} ({gpu.description})" for gpu in here)
    raise ConfigError(
        f"no GPU is called {name!r}; "
        + (f"known: {known}" if known else "llama.cpp sees none here, `edgespec doctor` says why")
    )
