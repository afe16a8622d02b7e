"""Loading the weights of GGUF files, readable error messages, and copies in a different format."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import (
    ModelError,
    OutOfMemory,
    TruncatedModel,
    UnknownArchitecture,
)
from .ctrl_c import ctrl_c_afterwards, noting_ctrl_c
from .damage import check
from .declarations import FTYPE_Q4_0
from .devices import Gpu, native_list
from .library import engine, lib, native_log, start

_NO_MEMORY = ("failed to allocate", "out of memory", "unable to allocate")
_LONGEST_REASON = 300  # characters; a reason may quote the file
_DAMAGED = (
    "corrupted or incomplete", "file bounds", "failed to read",
    "failed to load model from file", "invalid", "unexpectedly",
)  # fmt: skip


def load_weights(
    path: Path,
    *,
    n_gpu_layers: int = 0,
    gpus: Sequence[Gpu] = (),
    vocab_only: bool = False,
    use_extra_bufts: bool = True,
    load_mtp: bool = False,
) -> tuple[Any, list[str]]:
    """Return the native model and the lines that were logged while loading it. Raises ModelError or
    a subclass.

    n_gpu_layers: the number of layers to put on `gpus`, all of them if it is negative. load_mtp:
    also load the MTP layers that the file has.
    """
    check(path)
    start()
    devices = native_list(gpus)  # without it, evaluations of many tokens would still go to a GPU
    params = lib.llama_model_default_params()
    params.devices = ctypes.cast(devices, ctypes.c_void_p)
    params.n_gpu_layers = n_gpu_layers if n_gpu_layers >= 0 else 0x7FFFFFFF
    params.vocab_only = vocab_only
    params.use_extra_bufts = use_extra_bufts
    params.load_mtp = load_mtp
    pressed = threading.Event()
    # A False from this callback ends the loading. The field keeps the callback alive.
    params.progress_callback = type(params.progress_callback)(lambda *_: not pressed.is_set())
    with native_log() as lines, noting_ctrl_c(pressed.set):
        model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if pressed.is_set():
        lib.llama_model_free(model)
        raise KeyboardInterrupt
    if not model:
        raise _load_error(path, lines)
    return model, lines


def _load_error(path: Path, lines: Sequence[str]) -> ModelError:
    said = " ".join(lines).lower()
    reason = next(
        (line.partition(": ")[2] or line for line in lines if "error" in line.lower()),
        lines[-1] if lines else "no reason given",
    )[:_LONGEST_REASON]
    if "unknown model architecture" in said or "unsupported model architecture" in said:
        return UnknownArchitecture(
            f"{path}: {reason}; the llama.cpp of {engine()} does not know the model: take another "
            "model, or try a newer release of that package"
        )
    if any(words in said for words in _NO_MEMORY):
        return OutOfMemory(f"{path}: {reason}; take a smaller model or quantisation")
    if any(words in said for words in _DAMAGED):
        return TruncatedModel(
            f"{path} is damaged or incomplete ({path.stat().st_size} bytes): {reason}; "
            "fetch it again"
        )
    return ModelError(f"{path} cannot be loaded: {reason}")


def requantize(path: Path, target: Path) -> None:
    """Write a copy of the model `path`, with all its weights as Q4_0, to `target`. Raises
    ModelError.
    """
    start()
    params = lib.llama_model_quantize_default_params()
    params.ftype = FTYPE_Q4_0
    params.allow_requantize = params.pure = True
    with native_log() as lines, ctrl_c_afterwards():  # quantising cannot be stopped half-way
        code = lib.llama_model_quantize(
            os.fsencode(path), os.fsencode(target), ctypes.byref(params)
        )
    if code:
        reason = lines[-1][:_LONGEST_REASON] if lines else f"code {code}"
        raise ModelError(f"{path} cannot be requantised: {reason}")
