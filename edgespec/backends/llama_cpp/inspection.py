"""Metadata of a GGUF, read without its weights."""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path
from typing import Any

from ...device import processor
from .library import engine, lib, system_info
from .weights import load_weights

_ABOVE_Q4_0 = {  # LLAMA_FTYPE: what has as many bits a weight as Q4_0, or more
    0, 1, 3, 7, 8, 9,  # F32, F16, Q4_1, Q8_0, Q5_0, Q5_1
    14, 15, 16, 17, 18, 32,  # Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M, Q6_K, BF16
}  # fmt: skip


def inspect_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a file, the architecture's prefix cut off ("qwen2.block_count" →
    "block_count"), without loading weights. Raises as `load_weights`.
    """
    model, _ = load_weights(path, vocab_only=True)
    try:
        metadata = _read_metadata(model)
        metadata["vocab_size"] = str(lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model)))
        metadata["has_chat_template"] = str(bool(lib.llama_model_chat_template(model, None)))
    finally:
        lib.llama_model_free(model)
    prefix = metadata.get("general.architecture", "") + "."
    return {k.removeprefix(prefix): v for k, v in metadata.items()}


def _read_metadata(model: Any) -> dict[str, str]:
    """Return the metadata of a loaded native model."""
    buffer = ctypes.create_string_buffer(1 << 16)
    found = {}
    for i in range(lib.llama_model_meta_count(model)):
        lib.llama_model_meta_key_by_index(model, i, buffer, len(buffer))
        key = buffer.value.decode("utf-8", "replace")
        lib.llama_model_meta_val_str_by_index(model, i, buffer, len(buffer))
        found[key] = buffer.value.decode("utf-8", "replace")
    return found


def requantizable(path: Path) -> bool:
    """Return True if a Q4_0 of this file would be another format, and hardly a worse one. Raises
    as `load_weights`.
    """
    file_type = inspect_metadata(path).get("general.file_type", "")
    return file_type.isdecimal() and int(file_type) in _ABOVE_Q4_0


def identity(path: Path) -> dict[str, Any]:
    """Return what stands for a file on this device with this build, whatever the settings."""
    with path.open("rb") as file:
        head = hashlib.sha256(file.read(1 << 20)).hexdigest()[:16]
    return {
        "engine": engine(),
        "device": system_info(),
        "processor": processor(),
        "file": [path.name, path.stat().st_size, head],
    }
