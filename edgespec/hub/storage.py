"""The folder of fetched models: its locks, its free space, and checks of the files in it."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..device import cache_folder
from ..errors import DownloadError
from .catalogue import ModelFile

log = logging.getLogger(__name__)

Progress = Callable[[str, int, "int | None"], None]
"""A function that is called with a description of the activity, the bytes done and the total bytes,
if known. The description may end with its present state in brackets, such as " (try 2)".
"""

_CHUNK = 1 << 20


def models_dir() -> Path:
    """Return the folder of fetched files. Files of the hub stay in the hub's own cache instead."""
    return cache_folder("models")


def has_size(path: Path, size: int | None, otherwise: str = "it is not used") -> bool:
    """Return True if a file exists and has `size` bytes. None means any size.

    otherwise: the end of the warning that is logged for a file of a different size.
    """
    try:
        n_bytes = path.stat().st_size
    except OSError:
        return False
    if not os.path.isfile(path):
        return False
    if size is not None and n_bytes != size:
        _warn_once(f"{path} has {n_bytes} bytes, expected {size}; {otherwise}")
        return False
    return True


@functools.cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def need_space(folder: Path, needed: int, why: str = "") -> None:
    """Raise DownloadError if fewer than `needed` bytes are free on the disk of `folder`. why: a
    part of the message, which explains why more than the file's own size is needed.
    """
    import shutil

    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DownloadError(
            f"{needed / 1e6:.0f} MB are needed in {folder}{why}, {free / 1e6:.0f} MB are free; "
            "free some space or set EDGESPEC_MODELS to a folder on another disk"
        )


@contextmanager
def locked(file: ModelFile, progress: Progress) -> Iterator[Path]:
    """Yield the final path of `file`. No other process can fetch that file during the block."""
    from filelock import FileLock, Timeout

    folder = models_dir()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f".{file.filename}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another download of {file.filename}", 0, file.size)
        lock.acquire()
    try:
        yield folder / file.filename
    finally:
        lock.release()


def verify(path: Path, file: ModelFile, *, progress: Progress | None = None) -> str:
    """Compare size and SHA-256 of `path` with the catalogue's; return the computed SHA-256.

    It reads the whole file and changes nothing. If the catalogue knows no hash, only the size is
    compared. Raises DownloadError with the expected and the actual value.
    """
    if not os.path.isfile(path):  # reading a pipe would wait for a writer
        raise DownloadError(f"{path} is no regular file; delete it and pull it again")
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        raise DownloadError(
            f"{path} has {size} bytes, expected {file.size}; delete it and pull it again"
        )
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress:
                progress(f"checking {file.filename}", done, size)
    found = digest.hexdigest()
    if file.sha256 is not None and found != file.sha256:
        raise DownloadError(
            f"{path} has SHA-256 {found}, expected {file.sha256}; delete it and pull it again"
        )
    return found


def verify_or_delete(
    path: Path, file: ModelFile, progress: Progress, delete: Callable[[Path], None] = Path.unlink
) -> None:
    """Verify a fetched file; if it is wrong, delete it and raise DownloadError."""
    try:
        verify(path, file, progress=progress)
    except DownloadError as error:
        if not os.path.isfile(path):
            raise
        delete(path)
        why = str(error).rpartition(";")[0]
        raise DownloadError(
            f"{why}; it was deleted. Pull again; if it stays so, the source does not have the "
            "file that it should have"
        ) from None
