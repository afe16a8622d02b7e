"""The processor and GPUs that a model can run on, and how fast decoding reads weights there."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import device
from ..backends.base import share_on_gpu
from ..config import EngineConfig
from ..errors import EngineMissing
from . import profiles

if TYPE_CHECKING:
    from ..backends.llama_cpp import Gpu

# Bytes of weights that decoding reads per second, if nothing was measured. They are about two
# thirds of the memory bandwidth that manufacturers publish, and less with few cores. Published
# figures: two channels of DDR4 51 GB/s, Apple M1 68, Raspberry Pi 5 17, Jetson Orin Nano 68,
# graphics cards from 250 on.
_TYPICAL = {"x86": 35e9, "arm": 12e9, "apple": 45e9}
_OF_A_CORE = {"x86": 6e9, "arm": 3e9, "apple": 12e9}
_GPU = {"x86": 180e9, "arm": 45e9, "apple": 45e9}


@dataclass(frozen=True, slots=True)
class Place:
    """A processor or a GPU.

    memory: bytes free. read_speed: bytes of weights that decoding reads per second. is_measured:
    True if that speed was measured on this device, False if it is typical of such devices.
    """

    name: str
    memory: int
    read_speed: float
    is_measured: bool = False
    is_gpu: bool = False


def places() -> list[Place]:
    """Return the GPUs that llama.cpp can use here, and the processor."""
    kind, cores = _kind(), device.physical_cores()
    typical = min(cores * _OF_A_CORE[kind], _TYPICAL[kind])
    cpu = _place("processor", device.available_memory(), typical, on_gpu=False)
    gpus = [_place(gpu.description, gpu.free, _GPU[kind], on_gpu=True) for gpu in _gpus()]
    return [*gpus, cpu]


def _place(name: str, memory: int, typical: float, *, on_gpu: bool) -> Place:
    measured = _measured(on_gpu=on_gpu)
    return Place(name, memory, measured or typical, bool(measured), on_gpu)


def _gpus() -> Sequence[Gpu]:
    """Return the GPUs that models run on by default; none if llama.cpp is not installed."""
    try:
        from ..backends import llama_cpp

        return llama_cpp.chosen(EngineConfig())
    except EngineMissing:
        return []


def _kind() -> str:
    if not device.is_arm():
        return "x86"
    return "apple" if sys.platform == "darwin" else "arm"


def _measured(*, on_gpu: bool) -> float | None:
    """Return the bytes of weights read per second by the largest model that was measured here, None
    if none was. Small models spend much of their time on other work than reading weights.
    """
    here, largest = device.processor(), (0, 0.0)
    for fingerprint, curve in profiles.curves():
        file = fingerprint.get("file")
        size = file[1] if isinstance(file, list) and len(file) == 3 else None
        if fingerprint.items() >= profiles.BESIDE_OTHERS.items():
            continue  # measured while other programs ran, and true only then
        is_here = fingerprint.get("processor") == here and _was_on_gpu(fingerprint) == on_gpu
        if is_here and isinstance(size, int) and (on_gpu or not curve.is_flat):
            largest = max(largest, (size, size / curve(1)))
    return largest[1] or None


def _was_on_gpu(fingerprint: Mapping[str, Any]) -> bool | None:
    """Return whether the measured GGUF had layers on a GPU; None for a model of another engine."""
    layers = fingerprint.get("layers")
    if layers is None:
        return None
    return share_on_gpu({"layers": str(layers)}) > 0
