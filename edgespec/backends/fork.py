"""ik_llama.cpp, a fork of llama.cpp with faster kernels for CPUs, as one more library for GGUFs.

It evaluates some formats wrongly, and lacks some of llama.cpp's functions. So a process uses it
only if it asks for it, which `loading` does for models that were checked.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path

PACKAGE, VERSION = "ik-llama-cpp-python", "0.1.5"
NAME = "ik_llama.cpp"
_MODULE, _FILE = "ik_llama_cpp", "lib/libllama.so"
_asked: list[bool] = []


def library() -> Path | None:
    """Return the fork's libllama, None if the version that edgespec knows is not installed. Only
    Linux is supported, where it was tried.
    """
    spec = importlib.util.find_spec(_MODULE) if sys.platform == "linux" else None
    folders = (spec.submodule_search_locations if spec else None) or ()
    if not folders or _version() != VERSION:
        return None
    return next((path for each in folders if (path := Path(each, _FILE)).is_file()), None)


def _version() -> str:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return ""


def ask() -> None:
    """Let this process use the fork for all its GGUFs. It has no effect once a libllama is open."""
    _asked.append(True)


def is_asked() -> bool:
    """Return whether this process has asked for the fork."""
    return bool(_asked)
