"""The store of prefixes that an engine uses, and what identifies a model's states in it."""

from __future__ import annotations

from typing import Any

from .. import backends, kept_files
from ..backends import files
from ..backends.base import FileModel, Model
from ..cache import prefix_files
from ..cache.prefix_files import Identity, PrefixFiles, clear, forget, stored
from ..cache.prefixes import PrefixStore
from ..config import EngineConfig
from ..device import available_memory

__all__ = ["clear", "forget", "stored"]

_MOST = 8192 << 20  # bytes, in memory and on disk, unless a setting says otherwise
_LEAST = 64 << 20  # bytes: a smaller store is of no use
_THREADS = ("n_threads", "n_threads_batch")  # they change no state


def prefix_store(config: EngineConfig) -> PrefixStore | None:
    """Return the store that an engine with these settings uses; None if that is off, or if there is
    no memory for it.

    Call this after the models are loaded: the bounds depend on what is free then.
    """
    memory = _bound(config.cache_ram, available_memory())
    if config.prompt_cache == "off" or not memory:
        return None
    disk = _bound(config.cache_disk, kept_files.free_disk(prefix_files.folder()))
    on_disk = PrefixFiles(disk, keeps_all=config.prompt_cache == "disk") if disk else None
    return PrefixStore(memory, on_disk)


def _bound(given: int | None, free: int) -> int:
    """Return a bound in bytes. given: in MiB, None for the default."""
    if given is not None:
        return given << 20
    bound = min(free // 4, _MOST)
    return bound if bound >= _LEAST else 0


def identity_of(model: Model) -> Identity | None:
    """Return everything that shapes the states of a model, None for a model without a file."""
    if not isinstance(model, FileModel) or not model.capabilities.saves:
        return None
    backend = backends.of(model.path)
    settings: dict[str, Any] = model.fingerprint()
    own = settings.get("settings", {})
    settings["settings"] = {name: own[name] for name in own if name not in _THREADS}
    settings["is_long"] = 0 < model.n_ctx_short < model.n_ctx
    path = model.path.resolve()
    return Identity(path, files.stamps(path), backend.versions(), settings)
