"""Paths and files that a user names: any text, and any file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from .errors import ConfigError

MOST = 64 << 20  # bytes of a file that is read as a whole


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path, with the home folder for ~. Raises ConfigError for that of an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{os.fspath(path)!r:.200} begins with the home folder of a user who is unknown here; "
            "./~… names a file in the current folder"
        ) from None


def read(path: Path, most: int = MOST) -> bytes:
    """Return what a file holds, or what comes through a pipe. Raises OSError if it cannot be read,
    and ConfigError for more than `most` bytes.
    """
    with path.open("rb") as file:
        return read_stream(file, str(path), most)


def read_stream(file: BinaryIO, name: str, most: int = MOST) -> bytes:
    """Return the rest of an open file. name: for messages. Raises as `read`."""
    data = file.read(most + 1)
    if len(data) > most:
        raise ConfigError(f"{name} has more than {most} bytes, which is the most that is read")
    return data
