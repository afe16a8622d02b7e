"""Metadata of a GGUF, read without its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...device import processor
from .. import files
from .damage import check
from .library import engine, system_info
from .metadata import Header

_ABOVE_Q4_0 = {  # LLAMA_FTYPE of formats with at least as many bits per weight as Q4_0
    0, 1, 3, 7, 8, 9,  # F32, F16, Q4_1, Q8_0, Q5_0, Q5_1
    14, 15, 16, 17, 18, 32,  # Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M, Q6_K, BF16
}  # fmt: skip
_MOST_LAYERS = 512


def inspect_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a file, without opening it with the engine. The architecture's prefix
    is cut off ("qwen2.block_count" → "block_count"). Raises ModelError or a subclass.
    """
    header = check(path)
    prefix = header.text("general.architecture") + "."
    shown = {key.removeprefix(prefix): _shown(v) for key, v in header.metadata.items()}
    known = {key: value for key, value in shown.items() if value is not None}
    known["vocab_size"] = str(len(header.tokens))
    known["has_chat_template"] = str(bool(header.text("tokenizer.chat_template")))
    return known


def entries(path: Path) -> Header:
    """Return a file's vocabulary, without opening the file with the engine. Raises ModelError or a
    subclass.
    """
    return check(path)


def _shown(value: Any) -> str | None:
    """Return a value as text in llama.cpp's form; None for long lists."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:f}"
    if isinstance(value, list):
        short = len(value) <= _MOST_LAYERS and all(isinstance(v, int) for v in value)
        return str(value) if short else None
    return str(value)


def requantizable(path: Path) -> bool:
    """Return True if a Q4_0 copy of this file would have a different format and be hardly less
    accurate. Raises ModelError or a subclass.
    """
    file_type = inspect_metadata(path).get("general.file_type", "")
    return file_type.isdecimal() and int(file_type) in _ABOVE_Q4_0


def identity(path: Path) -> dict[str, Any]:
    """Return values that identify a file, this device and this build, and that do not depend on
    settings.
    """
    return {
        "engine": engine(),
        "device": system_info(),
        "processor": processor(),
        "file": files.identity(path),
    }
