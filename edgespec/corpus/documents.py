"""Reading the files that a user names: texts, source code and saved chats."""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import filterfalse
from pathlib import Path

from ..errors import ConfigError

MOST_FILE = 8 << 20  # bytes of a file that is found in a folder
MOST_TEXT = 200 << 20  # bytes of all files together
CHAT = "edgespec-chat"  # the "format" of a chat that was saved with /save
_SKIPPED = ("node_modules", "__pycache__", "site-packages")  # folders of other people's texts
_LARGE = f"larger than {MOST_FILE >> 20} MB"
NO_TEXT = "empty or no text"
_HEAD = 8192  # bytes of a file that are looked at to see that it is no text


@dataclass(frozen=True, slots=True)
class Found:
    """The files that were found. left_out: how many were not taken, by reason."""

    files: dict[Path, os.stat_result] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def n_bytes(self) -> int:
        """The size of all files together."""
        return sum(stat.st_size for stat in self.files.values())


def located(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the files and folders that are named, as absolute paths.

    Raises ConfigError for one that is not there, an empty one, and one that is not UTF-8.
    """
    return [_located(os.fspath(path)) for path in paths]


def _located(named: str) -> Path:
    if not named:
        raise ConfigError("a path is empty; name a file or a folder, '.' for the current one")
    try:
        path = Path(named).expanduser().absolute()
    except RuntimeError:
        raise ConfigError(f"{named!r} is in the home folder of nobody who is known here") from None
    if not _is_utf8(str(path)):
        raise ConfigError(f"{named!r} has a name that is not UTF-8; rename it")
    if not (path.is_dir() or path.is_file()):
        raise ConfigError(f"{named!r} is neither a file nor a folder")
    return path


def _is_utf8(name: str) -> bool:
    """Return False for a name that Python holds in surrogates, which JSON cannot have."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def find(paths: Iterable[str | os.PathLike[str]]) -> Found:
    """Return the files that are named, and those in folders that are named, and in theirs.

    In folders, hidden names, links, files of more than 8 MB, binary ones and names that are not
    UTF-8 are left out, and what others wrote: node_modules, site-packages, virtual environments.
    Raises ConfigError as `located` does, and for more text than 200 MB.
    """
    found = Found()
    for path in located(paths):
        if path.is_dir():
            for inside in _inside(path, found.left_out):
                _take(found, inside)
        else:
            found.files[path] = path.stat()
    if found.n_bytes > MOST_TEXT:
        raise ConfigError(
            f"there are {found.n_bytes >> 20} MB of text in {len(found.files)} files, and a corpus "
            f"takes {MOST_TEXT >> 20} MB; name fewer files or folders"
        )
    return found


def _inside(folder: Path, left_out: Counter[str]) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        here = Path(where)
        hidden = [name for name in (*folders, *files) if name.startswith(".")]
        left_out["hidden"] += len(hidden)
        foreign = [
            name for name in folders if name in _SKIPPED or (here / name / "pyvenv.cfg").exists()
        ]
        left_out["of installed packages"] += len(foreign)
        unnamable = set(filterfalse(_is_utf8, (*folders, *files))) - {*hidden, *foreign}
        left_out["with a name that is not UTF-8"] += len(unnamable)
        folders[:] = sorted(set(folders) - {*hidden, *foreign, *unnamable})
        yield from (here / name for name in sorted(set(files) - {*hidden, *unnamable}))


def _take(found: Found, path: Path) -> None:
    stat = path.lstat()
    if not os.path.isfile(path) or path.is_symlink():
        found.left_out["links"] += 1
    elif stat.st_size > MOST_FILE:
        found.left_out[_LARGE] += 1
    elif _is_binary(path):
        found.left_out[NO_TEXT] += 1
    else:
        found.files[path] = stat


def _is_binary(path: Path) -> bool:
    """Return True if a file begins with what texts do not have."""
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as file:
        return b"\0" in file.read(_HEAD)
    return False


def texts_of(data: bytes) -> list[str]:
    """Return the texts in a file: each message of a saved chat, or else the file as it is; none
    if it is no UTF-8 text.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return []
    if "\0" in text:
        return []
    return _messages(text) or [text]


def _messages(text: str) -> list[str]:
    """Return the messages of a saved chat, none if it is something else."""
    if CHAT not in text[:200]:
        return []
    try:
        saved = json.loads(text)
        found = [message["content"] for message in saved["messages"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
    return found if all(isinstance(content, str) for content in found) else []
