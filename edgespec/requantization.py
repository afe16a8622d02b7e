"""A draft model in the format that this device evaluates fastest.

A draft may be made by any model: the text does not depend on it. On CPUs llama.cpp evaluates
Q4_0, which it lays out for their vector units, in about half the time of formats that pack the
same weights more carefully, and a draft model that is twice as fast may be wrong a little more
often. So a copy is made, once, and kept where it was measured to be faster.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .config import EngineConfig
from .device import cache_folder
from .errors import ModelError
from .interfaces import FileModel
from .policies.profile import keep, kept, measure

logger = logging.getLogger("edgespec.requantization")

WORTH = 0.9  # of the file's time for a token: at most so much a copy may take
_READ = 64  # tokens at once, as in a prompt
_ABANDONED_S = 3600  # nobody writes to a copy any more that has not changed for so long


def fastest(
    path: Path, config: EngineConfig, open_model: Callable[[Path, EngineConfig], FileModel]
) -> Path:
    """The file of a GGUF draft model, or its copy where that is faster on this device.

    The first time it is made and both are measured, which takes some seconds; where it cannot
    be made (no room, a format already as small) it is the file. Raises ModelError and its kinds
    for a file that is no model.
    """
    from .backends import llama_cpp

    if found := known(path, config):
        return found
    key = _key(path)
    if not llama_cpp.requantizable(path):
        keep(key, {"faster": False})  # to find that out takes a load of the vocabulary
        return path
    copy, faster = _place(path, key), None
    try:
        _make(path, copy)
        faster = _is_faster(copy, path, config, open_model)
    except (ModelError, OSError) as error:
        logger.info("no copy of %s was made: %s", path.name, error)
    if faster is not None and keep(key, {"faster": faster, "size": _size(copy)}) and faster:
        return copy
    with contextlib.suppress(OSError):
        copy.unlink(missing_ok=True)
    return path


def known(path: Path, config: EngineConfig) -> Path | None:
    """The same, as far as it is decided already."""
    from .backends import llama_cpp

    llama_cpp.check_is_gguf(path)
    if config.n_gpu_layers and llama_cpp.supports_gpu_offload():
        return path
    key = _key(path)
    decided, copy = kept(key), _place(path, key)
    if decided.get("faster") is False:
        return path
    size = decided.get("size")
    return copy if size and size == _size(copy) else None


def _key(path: Path) -> dict[str, Any]:
    from .backends import llama_cpp

    changed = path.stat().st_mtime_ns
    return llama_cpp.identity(path) | {"kind": "requantized", "changed": changed}


def _place(path: Path, key: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_folder("drafts") / f"{path.stem}-q4_0-{digest[:8]}.gguf"


def _size(copy: Path) -> int | None:
    """Bytes, None where there is none: a disk that was full once, a cache that was cleaned."""
    try:
        return copy.stat().st_size
    except OSError:
        return None


def _make(path: Path, copy: Path) -> None:
    from .backends import llama_cpp

    logger.info("making a copy of %s that this CPU may evaluate faster: %s", path.name, copy)
    copy.parent.mkdir(parents=True, exist_ok=True)
    _clean(copy)
    free, needed = shutil.disk_usage(copy.parent).free, 2 * path.stat().st_size
    if free < needed:
        raise OSError(f"{free >> 20} MiB are free in {copy.parent}, {needed >> 20} MiB are wanted")
    partial = copy.with_suffix(f".{os.getpid()}")
    try:
        llama_cpp.requantize(path, partial)
        partial.replace(copy)
    finally:
        partial.unlink(missing_ok=True)


def _clean(copy: Path) -> None:
    """Away with what processes left that were killed while they made this copy."""
    for partial in copy.parent.glob(f"{glob.escape(copy.stem)}.[0-9]*"):
        with contextlib.suppress(OSError):
            if time.time() - partial.stat().st_mtime > _ABANDONED_S:
                partial.unlink()


def _is_faster(
    copy: Path,
    path: Path,
    config: EngineConfig,
    open_model: Callable[[Path, EngineConfig], FileModel],
) -> bool:
    """Whether a token takes clearly less, and reading no more."""
    curves = []
    for file in (copy, path):
        model = open_model(file, replace(config, n_ctx=4 * _READ))
        try:
            curves.append(measure(model, widths=(1, _READ), repeats=9, budget_s=1))
        finally:
            model.close()
    new, old = curves
    logger.info("%s takes %.1f ms a token, its copy %.1f ms", path.name, 1e3 * old(1), 1e3 * new(1))
    return new(1) <= WORTH * old(1) and new(_READ) <= old(_READ)
