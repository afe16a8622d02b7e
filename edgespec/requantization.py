"""A draft model in the format that this device evaluates fastest.

A draft may be made by any model: the text does not depend on it. On CPUs llama.cpp evaluates
Q4_0, which it lays out for their vector units, in about half the time of formats that pack the
same weights more carefully, and a draft model that is twice as fast may be wrong a little more
often. So a copy is made, once, and kept where it was measured to be faster.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .config import EngineConfig
from .errors import ModelError
from .interfaces import FileModel
from .policies.profile import keep, kept, measure

logger = logging.getLogger("edgespec.requantization")

WORTH = 0.9  # of the file's time for a token: at most so much a copy may take
_READ = 64  # tokens at once, as in a prompt


def folder() -> Path:
    """Where copies are kept: $EDGESPEC_DRAFTS, or the user's cache."""
    if given := os.environ.get("EDGESPEC_DRAFTS"):
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "edgespec" / "drafts"


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
    if faster is not None and keep(key, {"faster": faster}) and faster:
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
    faster, copy = kept(key).get("faster"), _place(path, key)
    return path if faster is False else copy if faster and copy.exists() else None


def _key(path: Path) -> dict[str, Any]:
    from .backends import llama_cpp

    changed = path.stat().st_mtime_ns
    return llama_cpp.identity(path) | {"kind": "requantized", "changed": changed}


def _place(path: Path, key: dict[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return folder() / f"{path.stem}-q4_0-{digest[:8]}.gguf"


def _make(path: Path, copy: Path) -> None:
    from .backends import llama_cpp

    logger.info("making a copy of %s that this CPU may evaluate faster: %s", path.name, copy)
    copy.parent.mkdir(parents=True, exist_ok=True)
    free, needed = shutil.disk_usage(copy.parent).free, 2 * path.stat().st_size
    if free < needed:
        raise OSError(f"{free >> 20} MiB are free in {copy.parent}, {needed >> 20} MiB are wanted")
    partial = copy.with_suffix(f".{os.getpid()}")
    try:
        llama_cpp.requantize(path, partial)
        partial.replace(copy)
    finally:
        partial.unlink(missing_ok=True)


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
