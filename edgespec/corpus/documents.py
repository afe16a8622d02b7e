"""Reading the files that a user names: texts, source code and saved chats."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import filterfalse
from pathlib import Path
from typing import Any

from .. import kept_files
from ..errors import ConfigError
from ..named_files import expanded

MOST_FILE = 8 << 20  # most bytes of a file inside a named folder
MOST_TEXT = 200 << 20  # most bytes of all files together
CHAT = "edgespec-chat"  # the "format" of a chat that was saved with /save
_SKIPPED = ("node_modules", "__pycache__", "site-packages")  # folders that the user did not write
_LARGE = f"larger than {MOST_FILE >> 20} MB"
NO_TEXT = "empty or not UTF-8 text"
_LINKS, _SPECIAL = "links", "pipes, sockets and devices"
_HEAD = 8192  # first bytes of a file, in which a NUL byte shows that it is binary


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search for files. left_out: the number of files and folders that were
    skipped, by reason. unreadable: the files and folders that could not be read.
    """

    files: dict[Path, os.stat_result] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    unreadable: list[Path] = field(default_factory=list)

    @property
    def n_bytes(self) -> int:
        """The size of all files together."""
        return sum(status.st_size for status in self.files.values())


def located(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the given files and folders as absolute paths.

    Raises ConfigError for a path that does not exist or cannot be reached, that is empty, or that
    is not UTF-8.
    """
    return [_located(os.fspath(path)) for path in paths]


def _located(named: str) -> Path:
    if not named:
        raise ConfigError("a path is empty; name a file or a folder, '.' for the current one")
    path = expanded(named).absolute()
    if not _is_utf8(str(path)):
        raise ConfigError(f"{named!r} has a name that is not UTF-8; rename it")
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
    except OSError as error:
        raise ConfigError(f"{named!r:.200} cannot be reached: {error.strerror}") from None
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise ConfigError(f"{named!r} is neither a file nor a folder")
    return path


def _is_utf8(name: str) -> bool:
    """Return False for a name that is not UTF-8: its surrogates in Python cannot go into JSON."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def find(paths: Iterable[str | os.PathLike[str]]) -> Found:
    """Return the named files, and all files in the named folders and their subfolders.

    In folders, these are left out: hidden names, links, files of more than 8 MB, binary files,
    names that are not UTF-8, and installed packages (node_modules, site-packages, virtual
    environments). Files that cannot be read are left out, too. Raises ConfigError as `located`
    does, and for more than 200 MB of text.
    """
    found = Found()
    for path in located(paths):
        if path.is_dir():
            for inside in _inside(path, found):
                _take(found, inside, inside.lstat)
        else:
            _take(found, path, path.stat, is_named=True)
    if found.n_bytes > MOST_TEXT:
        raise ConfigError(
            f"there are {found.n_bytes >> 20} MB of text in {len(found.files)} files, and a corpus "
            f"takes {MOST_TEXT >> 20} MB; name fewer files or folders"
        )
    return found


def _inside(folder: Path, found: Found) -> Iterator[Path]:
    def note(error: OSError) -> None:
        found.unreadable.append(Path(error.filename))

    left_out = found.left_out
    for where, folders, files in os.walk(folder, onerror=note):
        here = Path(where)
        hidden = [name for name in (*folders, *files) if name.startswith(".")]
        left_out["hidden"] += len(hidden)
        foreign = [
            name
            for name in folders
            if name in _SKIPPED or os.path.exists(here / name / "pyvenv.cfg")
        ]
        left_out["of installed packages"] += len(foreign)
        unnamable = set(filterfalse(_is_utf8, (*folders, *files))) - {*hidden, *foreign}
        left_out["with a name that is not UTF-8"] += len(unnamable)
        folders[:] = sorted(set(folders) - {*hidden, *foreign, *unnamable})
        left_out[_LINKS] += sum(os.path.islink(here / name) for name in folders)
        yield from (here / name for name in sorted(set(files) - {*hidden, *unnamable}))


def _take(
    found: Found, path: Path, status_of: Callable[[], os.stat_result], *, is_named: bool = False
) -> None:
    try:
        status = status_of()
        if stat.S_ISLNK(status.st_mode):
            found.left_out[_LINKS] += 1
        elif not stat.S_ISREG(status.st_mode):
            found.left_out[_SPECIAL] += 1
        elif not is_named and status.st_size > MOST_FILE:
            found.left_out[_LARGE] += 1
        elif not is_named and _is_binary(path):
            found.left_out[NO_TEXT] += 1
        else:
            found.files[path] = status
    except (OSError, ValueError):
        found.unreadable.append(path)


def read(path: Path, status: os.stat_result) -> bytes:
    """Return the present content of a file. Raises OSError if it can no longer be read, and
    ValueError if it is no longer a regular file, or if it has grown above 8 MB.
    """
    return kept_files.read(path, max(MOST_FILE, status.st_size))


def _is_binary(path: Path) -> bool:
    """Return True if the first bytes of a file have a NUL byte. Raises errors as `read` does."""
    with kept_files.open_regular(path) as file:
        return b"\0" in file.read(_HEAD)


def texts_of(data: bytes) -> list[str]:
    """Return the texts in a file: the messages of a saved chat, or else the whole file; [] if it is
    not UTF-8 text.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return []
    if "\0" in text:
        return []
    return _contents(text) or [text]


def _contents(text: str) -> list[str]:
    """Return the contents of a saved chat's messages, [] if the text is anything else."""
    contents = [message.get("content") for message in saved_messages(text)]
    texts = [each for each in contents if isinstance(each, str)]
    others = [each for each in contents if not isinstance(each, (str, list))]  # lists have pictures
    return [] if others else texts


def saved_messages(text: str) -> list[dict[str, Any]]:
    """Return the messages of a saved chat, [] if the text is anything else."""
    if CHAT not in text[:200]:
        return []
    try:
        messages = json.loads(text)["messages"]
        return messages if all(isinstance(each, dict) for each in messages) else []
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
