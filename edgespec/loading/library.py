"""The choice between llama.cpp and its fork ik_llama.cpp for the GGUFs of this process.

A process opens one of the two, at its first GGUF. `tune` compares them, each in a process of its
own, and keeps the results by file and version.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import backends
from ..backends import compiled, files, fork
from ..config import EngineConfig
from ..costs.profiles import Entry, keep, kept
from ..device import processor
from ..errors import ConfigError


class Compared(Entry, frozen=True, kw_only=True):
    """A comparison of ik_llama.cpp with the other library for a GGUF.

    is_right: it computes the same. is_faster: its evaluations take less time. ms: the milliseconds
    of some evaluations with the other library and with it, empty if they were not timed.
    """

    is_right: bool
    is_faster: bool
    ms: tuple[float, ...] = ()


def compared(path: Path) -> Compared | None:
    """Return the comparison that was kept for a GGUF, None if there is none."""
    return kept(_key(path), Compared)


def keep_compared(
    path: Path, *, is_right: bool, is_faster: bool = False, ms: Sequence[float] = ()
) -> None:
    """Keep a comparison for later loads."""
    keep(_key(path), {"is_right": is_right, "is_faster": is_faster, "ms": list(ms)})


def comparable(path: Path, config: EngineConfig) -> bool:
    """Return whether ik_llama.cpp is installed and may evaluate a file with these settings, once it
    was compared.
    """
    if fork.library() is None or compiled.VARIABLE in os.environ or _unlike(config):
        return False
    return backends.name_of(path) == "llama_cpp"


def choose(ggufs: Sequence[Path]) -> bool:
    """Let this process use ik_llama.cpp if it was compared with all these GGUFs, computes the same
    with each of them, and is faster with the first. Return whether that is so.
    """
    known = [compared(path) for path in ggufs]
    if not known or not known[0] or not known[0].is_faster:
        return False
    if not all(each and each.is_right for each in known):
        return False
    fork.ask()
    return True


def check(path: Path, config: EngineConfig) -> None:
    """Raise ConfigError if this process uses ik_llama.cpp and that was not found right for a file
    with these settings.
    """
    if not fork.is_asked() or backends.name_of(path) != "llama_cpp":
        return
    from ..backends import llama_cpp

    known, unlike = compared(path), _unlike(config)
    if not llama_cpp.is_fork() or (known and known.is_right and not unlike):
        return
    reason = (
        f"{unlike} was not tried with it" if unlike
        else "it computes something else than llama.cpp" if known
        else "it was not compared with llama.cpp, which `edgespec tune` does"
    )  # fmt: skip
    raise ConfigError(
        f"{files.label(path)}: this process evaluates GGUFs with {fork.NAME}, and {reason}; load "
        f"this model in a process of its own, or uninstall {fork.PACKAGE}"
    )


def _unlike(config: EngineConfig) -> str:
    """Return the setting with which ik_llama.cpp was never tried, "" if there is none."""
    default = EngineConfig()
    names = ("batch_invariant", "type_k", "type_v", "flash_attn")
    return next((name for name in names if getattr(config, name) != getattr(default, name)), "")


def _key(path: Path) -> dict[str, Any]:
    from ..backends import llama_cpp

    return {
        "kind": fork.NAME,
        "version": fork.VERSION,
        "instead_of": llama_cpp.first(),
        "processor": processor(),
        "file": files.identity(path),
    }
