"""Comparison of files on this disk with those that the catalogue knows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .. import kept_files
from ..backends.files import single_files
from ..errors import DownloadError
from . import catalogue
from .catalogue import Entry, ModelFile
from .storage import models_dir, verify


def called_like(file: ModelFile) -> list[Path]:
    """Return the files in our folder that are named like this file of the catalogue."""
    return [path for path in single_files(models_dir()) if is_called_like(path, file)]


def is_called_like(path: Path, file: ModelFile) -> bool:
    """Return True if a path has one of the names of this file of the catalogue."""
    of = [place for place in _places() if place[0].files[place[1]] == file]
    return any(path.name.lower() in _names(*place) for place in of)


def is_gguf(path: Path) -> bool:
    """Return True if a file begins with the magic bytes of a GGUF."""
    try:
        with kept_files.open_regular(path) as file:
            return file.read(4) == b"GGUF"
    except (OSError, ValueError):
        return False


def comparison(path: Path) -> str:
    """Return a sentence that compares a file with the catalogue's file of the same size or name, ""
    if there is none.

    The whole file is read if the catalogue knows a file of its size.
    """
    if not os.path.isfile(path):
        return ""
    same, called = "", ""
    for entry, number in _places():
        file = entry.files[number]
        name = entry.reference(file)
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
    """Yield each single file of the catalogue: its entry, and its index among the entry's files."""
    for entry in catalogue.load().values():
        for number, file in enumerate(entry.files):
            if not file.has_folder:
                yield entry, number


def _names(entry: Entry, number: int) -> set[str]:
    """Return the names that a file may have, in lower case: its published name, and those made from
    its name in the catalogue.
    """
    file = entry.files[number]
    suffix = Path(file.filename).suffix
    names = {file.filename, f"{entry.name}-{file.quantisation}{suffix}"}
    if number == 0:
        names.add(f"{entry.name}{suffix}")
    return {name.lower() for name in names}
