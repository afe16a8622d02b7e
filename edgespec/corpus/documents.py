"""Reading the files that a user names: texts, source code and saved chats."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigError

MOST_FILE = 8 << 20  # bytes of a file that is found in a folder
MOST_TEXT = 200 << 20  # bytes of all files together
CHAT = "edgespec-chat"  # the "format" of a chat that was saved with /save
_SKIPPED = ("node_modules", "__pycache__", "site-packages")  # folders of other people's texts
_LARGE = f"larger than {MOST_FILE >> 20} MB"


@dataclass(frozen=True, slots=True)
class Found:
    """The files that were found. left_out: how many were not taken, by reason."""

    files: dict[Path, os.stat_result] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def n_bytes(self) -> int:
        """The size of all files together."""
        return sum(stat.st_size for stat in self.files.values())


def find(paths: Iterable[str | os.PathLike[str]]) -> Found:
    """Return the files that are named, and those in folders that are named, and in theirs.

    In folders, hidden names, links and files of more than 8 MB are left out, and what others wrote:
    node_modules, site-packages, virtual environments. Raises ConfigError for a path that is not
    there, and for more text than 200 MB.
    """
    found = Found()
    for named in paths:
        path = Path(named).expanduser().absolute()
        if path.is_dir():
            for inside in _inside(path, found.left_out):
                _take(found, inside)
        elif path.is_file():
            found.files[path] = path.stat()
        else:
            raise ConfigError(f"{os.fspath(named)!r} is neither a file nor a folder")
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
        folders[:] = sorted(set(folders) - {*hidden, *foreign})
        yield from (here / name for name in sorted(set(files) - set(hidden)))


def _take(found: Found, path: Path) -> None:
    stat = path.lstat()
    if not os.path.isfile(path) or path.is_symlink():
        found.left_out["links"] += 1
    elif stat.st_size > MOST_FILE:
        found.left_out[_LARGE] += 1
    else:
        found.files[path] = stat


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
