"""The settings that `tune` chose for a model's file on this device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import backends
from ..config import EngineConfig, build
from ..costs.profiles import Entry, kept
from ..errors import ConfigError, ModelError

TUNABLE = ("n_threads", "n_threads_batch", "flash_attn", "use_extra_bufts", "device")


class _Tuned(Entry, frozen=True, kw_only=True):
    options: dict[str, Any]


def tuned_options(path: Path, config: EngineConfig, given: Iterable[str] = ()) -> dict[str, Any]:
    """Return the settings that `tune` chose for this file, except those that the user has given."""
    try:
        entry = kept(tuning_key(path, config), _Tuned)
        known, fixed = entry.options if entry else {}, explicit(given)
        chosen = {name: known[name] for name in TUNABLE if name in known and name not in fixed}
        build(EngineConfig, chosen)
        backends.of(path).gpus(replace(config, **chosen))
    except (ConfigError, ModelError, OSError, TypeError):  # the engine reports what cannot be read
        return {}
    return chosen


def explicit(given: Iterable[str]) -> set[str]:
    """Return the tunable settings that a user has fixed; n_threads also fixes n_threads_batch."""
    fixed = set(given) & set(TUNABLE)
    return fixed | {"n_threads_batch"} if "n_threads" in fixed else fixed


def tuning_key(path: Path, config: EngineConfig) -> dict[str, Any]:
    """Return the facts that the best settings depend on; the context length is not one of them."""
    engine = backends.of(path)
    facts: dict[str, Any] = engine.identity(path) | {
        "kind": "tuned",
        "n_gpu_layers": config.n_gpu_layers if (gpus := engine.gpus(config)) else 0,
        "gpus": gpus,
        "type_k": config.type_k,
        "type_v": config.type_v,
        "provider": config.provider,
    }
    return facts
