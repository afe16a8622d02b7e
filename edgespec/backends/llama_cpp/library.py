"""The native library. It is opened only here and started once, and its log goes to `logging`.

It is opened when its first function is used, and not earlier: a load can choose it by its model.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ... import kept_files
from ...errors import EngineMissing
from .. import fork, helper_threads
from . import search
from .ctrl_c import ctrl_c_afterwards
from .declarations import OPTIONAL, LogCallback, missing

logger = logging.getLogger("edgespec.llama_cpp")
search.first()  # raises EngineMissing
_OMP_PAUSE_SOFT = 1  # omp_pause_resource_t of OpenMP 5.0
_opening, _opened = threading.Lock(), list[search.Found]()


def _found() -> search.Found:
    """Return the library, which is opened at the first call. Raises EngineMissing."""
    with _opening:
        if not _opened:
            _opened.append(search.find())
            _add_ender(_opened[0].library)
        return _opened[0]


def _add_ender(library: Any) -> None:
    """Tell `helper_threads` how to end a thread's helpers if the library uses GNU OpenMP."""
    pause = getattr(library, "omp_pause_resource_all", None)
    if pause and not hasattr(library, "kmp_set_blocktime"):  # LLVM's OpenMP pauses all threads
        helper_threads.enders.append(lambda: pause(_OMP_PAUSE_SOFT))


class _Functions:
    """The functions of the library, which is opened when the first of them is used."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(_found().library, name)
        setattr(self, name, function)  # the next use finds it directly
        return function


lib: Any = _Functions()
_LEVELS = {3: logging.INFO, 4: logging.INFO}  # warnings, errors; the latter are also raised

_starting, _started = threading.Lock(), list[bool]()
_log_listeners: list[Callable[[str], None]] = []


@LogCallback  # type: ignore[untyped-decorator]
def _on_native_log(level: int, text: bytes, _: Any) -> None:
    """Send native log lines to `logging`, and to the code that collects them while it loads a
    model.
    """
    line = text.decode("utf-8", "replace").rstrip()
    if line.strip(". "):
        logger.log(_LEVELS.get(level, logging.DEBUG), "%s", line)
        for listen in _log_listeners:
            listen(line)


log_callback = _on_native_log
"""The function that native libraries call for each line of their logs."""


def opened() -> Any:
    """Return the library itself, which is opened at the first call. Raises EngineMissing."""
    return _found().library


def candidate() -> search.Candidate:
    """Return the file that the library comes from. Raises EngineMissing."""
    return _found().candidate


def start() -> None:
    """Initialise the native library once per process, and load its separate library for the CPU."""
    with _starting, ctrl_c_afterwards():
        if not _started:
            _started.append(True)
            _begin()


def _begin() -> None:
    lib.llama_log_set(_on_native_log, None)
    lib.llama_backend_init()
    if missing(lib, OPTIONAL) or lib.ggml_backend_dev_count():
        return
    if not folder_of_processors():  # the user's own build, or the system's
        lib.ggml_backend_load_all()
    elif why := load_processor("cpu"):
        raise EngineMissing(f"{_found().candidate} cannot compute on this processor: {why}")


def folder_of_processors() -> list[Path]:
    """List the libraries that compute, one for each kind of processor. The list is empty if the
    build has no separate libraries for this.
    """
    folder = _found().candidate.processors
    return kept_files.matching(Path(folder), "*ggml*") if folder else []


def load_processor(name: str) -> str:
    """Load the library that computes on one kind of processor. Return "", or the reason if this
    failed.
    """
    suffixes = (".so", ".dylib", ".dll")
    names = [f"{start}ggml-{name}{suffix}" for start in ("lib", "") for suffix in suffixes]
    path = next((each for each in folder_of_processors() if each.name in names), None)
    if path is None:
        return f"there is no file for it in {_found().candidate.processors}"
    with native_log() as lines:
        loaded = lib.ggml_backend_load(os.fsencode(path))
    reasons = [line.rpartition(f"{path}: ")[2] for line in lines]
    return "" if loaded else "; ".join(reasons) or "no reason given"


@contextlib.contextmanager
def native_log() -> Iterator[list[str]]:
    """Collect what the library logs during the block. Its return codes alone do not tell why
    something failed.
    """
    lines: list[str] = []
    _log_listeners.append(lines.append)
    try:
        yield lines
    finally:
        _log_listeners.remove(lines.append)


def engine() -> str:
    """Return the name and version of the library that runs: "llama-cpp-python 0.3.36"."""
    return str(_found().candidate)


def is_fork() -> bool:
    """Return True if the library is ik_llama.cpp's."""
    return _found().candidate.package == fork.PACKAGE


def can_requantize() -> bool:
    """Return True if the library can write a model in a different format."""
    return _found().requantizes


def versions() -> dict[str, str]:
    """Return the versions of the packages that this engine is made of."""
    candidate = _found().candidate
    return {candidate.package: candidate.version or candidate.path, "numpy": np.__version__}


def features() -> list[str]:
    """List the processor features that the build uses: AVX2, AVX512, NEON, …"""
    words = system_info().replace("|", ":").split(":")
    pairs = (word.partition("=") for word in words if "=" in word)
    return [name.strip() for name, _, value in pairs if value.strip() != "0"]


def system_info() -> str:
    """Return the build's own line about itself and the processor."""
    start()  # the line names only processors whose libraries are loaded
    info: str = lib.llama_print_system_info().decode("utf-8", "replace")
    return info
