"""Compare files on this disk with those that the catalogue knows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .. import kept_files
from ..errors import DownloadError
from . import catalogue
from .catalogue import Entry, ModelFile
from .storage import models_dir, verify


def called_like(file: ModelFile) -> list[Path]:
    """Return the GGUF files of our folder that have the name of a file of the catalogue."""
    names = {
        name
        for entry, number in _places()
        if entry.files[number] == file
        for name in _names(entry, number)
    }
    there = kept_files.matching(models_dir(), "*.gguf")
    return [path for path in there if path.name.lower() in names]


def is_gguf(path: Path) -> bool:
    """Return True for a file that begins as a GGUF does."""
    try:
        with kept_files.open_regular(path) as file:
            return file.read(4) == b"GGUF"
    except (OSError, ValueError):
        return False


def comparison(path: Path) -> str:
    """Return how a file compares with the catalogue's of its size or name, "" if it has neither.

    The whole file is read where the catalogue knows one of its size.
    """
    if not os.path.isfile(path):
        return ""
    same, called = "", ""
    for entry, number in _places():
        file = entry.files[number]
        name = f"{entry.name}:{file.quantisation}" if number else entry.name
        if file.size == path.stat().st_size and file.sha256 and not same:
            same = f"same as the catalogue's {name}" if _is(path, file) else ""
        if file.size and path.name.lower() in _names(entry, number):
            called = f"differs from the catalogue's {name}: damaged or another version"
    return same or called


def _is(path: Path, file: ModelFile) -> bool:
    try:
        verify(path, file)
    except DownloadError:
        return False
    return True


def _places() -> Iterator[tuple[Entry, int]]:
    """Yield each GGUF of the catalogue as its entry and its number there."""
    for entry in catalogue.load().values():
        for number, file in enumerate(entry.files):
            if not file.has_folder:
                yield entry, number


def _names(entry: Entry, number: int) -> set[str]:
    """Return what a file may be called: by its makers, and after its name in the catalogue."""
    file = entry.files[number]
    names = {file.filename, f"{entry.name}-{file.quantisation}.gguf"}
    if number == 0:
        names.add(f"{entry.name}.gguf")
    return {name.lower() for name in names}
