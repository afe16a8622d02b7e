"""Paths and files that a user names. They are not trusted: paths and contents may be anything."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from .errors import ConfigError

MOST = 64 << 20  # most bytes of a file that is read


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with ~ and ~user replaced by home folders. Raises ConfigError for an unknown
    user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{os.fspath(path)!r:.200} begins with the home folder of a user who is unknown here; "
            "./~… names a file in the current folder"
        ) from None


def read(path: Path, most: int = MOST) -> bytes:
    """Return the content of a file or a pipe. Raises OSError if it cannot be read, and ConfigError
    if it has more than `most` bytes.
    """
    with path.open("rb") as file:
        return read_stream(file, str(path), most)


def read_stream(file: BinaryIO, name: str, most: int = MOST) -> bytes:
    """Return the rest of an open file. name: its name in messages. Raises errors as `read` does."""
    data = file.read(most + 1)
    if len(data) > most:
        raise ConfigError(f"{name} has more than {most} bytes, which is the most that is read")
    return data
