"""Engines that evaluate tokens, each in a package that is imported only when a file needs it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from .files import FORMATS, format_of

if TYPE_CHECKING:  # it imports NumPy, which the command line does without
    from .base import Backend


def names() -> list[str]:
    """Return the names of all backends, installed or not."""
    return list(dict.fromkeys(each.engine for each in FORMATS.values()))


def get(name: str) -> Backend:
    """Import a backend and return it. Raises EngineMissing if the engine's package is not
    installed, and KeyError for an unknown name.
    """
    if name not in names():
        raise KeyError(name)
    return cast("Backend", import_module(f".{name}", __name__))


def name_of(path: Path) -> str:
    """Return the name of the backend for a model file, as its format says (`files.format_of`)."""
    return format_of(path).engine


def of(path: Path) -> Backend:
    """Import the backend for a model file and return it. Raises EngineMissing."""
    return get(name_of(path))
