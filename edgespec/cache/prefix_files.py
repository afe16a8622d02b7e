"""Prefixes on disk: one private file for each part of a text, written completely or not at all.

A file begins with _MAGIC, the length and the checksum of its header, then come the header and the
state of the tokens. Files that are damaged or cut short are removed, and so are those of models
that were changed or deleted. Files of other builds of an engine are left alone until they are the
least recently used ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import queue
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .. import kept_files
from ..backends import files
from ..backends.base import Buffer
from ..device import cache_folder

if TYPE_CHECKING:
    from .prefixes import Part

logger = logging.getLogger("edgespec.prefixes")

_MAGIC = b"edgespec prefix\n"
_FRONT = struct.Struct("<16sII")  # _MAGIC, bytes of the header, its checksum
_VERSION = 1
_MOST_HEADER = 64 << 20  # bytes
_SUFFIX = ".prefix"
_SALT, _SALT_BYTES = "salt", 32
_NEW_SALT = "owners are told apart anew"
_CLOSE_S = 5.0  # most seconds that closing waits for files to be written
_ANEW = "the prompt is read again"


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything that shapes the states of a model.

    path: its file. of: the stamps of its files (`files.stamps`). build, settings: the engine's
    build, and the settings that the model was loaded with, as values for JSON.
    """

    path: Path
    of: Any
    build: Any
    settings: Any

    @property
    def key(self) -> str:
        """A hash of everything."""
        said = [_VERSION, str(self.path), self.of, self.build, self.settings]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]


class Header(msgspec.Struct, frozen=True):
    """The description at the beginning of a file.

    key: the hash of the model's Identity. model, path, of: the model's label, file and stamps.
    owner: a salted hash. before: the id of the file with the tokens before position `start`, "" for
    none. tokens: the text's tokens from position 0 on, int32 little-endian. n_bytes, checksum: the
    size and the CRC-32 of the state. created: seconds since 1970.
    """

    key: str
    model: str
    path: str
    of: Any
    owner: str
    is_everybodys: bool
    before: str
    start: int
    tokens: bytes
    n_bytes: int
    checksum: int
    created: float

    @property
    def n_tokens(self) -> int:
        """The number of tokens that the state is of."""
        return len(self.tokens) // 4 - self.start


@dataclass(frozen=True, slots=True)
class PrefixFile:
    """A file with the state of a part of a text."""

    path: Path
    header: Header

    @property
    def id(self) -> str:
        """The name by which other files refer to it."""
        return self.path.stem

    @property
    def n_bytes(self) -> int:
        """The size of the state in bytes."""
        return self.header.n_bytes

    @property
    def used(self) -> float:
        """The time of its last use, in seconds since 1970; 0 if the file is gone."""
        status = _status(self.path)
        return status.st_mtime if status else 0.0

    def read(self) -> tuple[Buffer | None, float]:
        """Return the state and the seconds that reading it took. The state is None if the file is
        gone or damaged; a damaged one is removed.
        """
        began = time.perf_counter()
        state = kept_files.load(self.path, self._state, _ANEW)
        return state, time.perf_counter() - began

    def _state(self, path: Path) -> Buffer:
        with kept_files.open_regular(path) as file:
            header = _header(file.read(_FRONT.size), file.read)
            state = file.read(header.n_bytes + 1)
        if header != self.header or len(state) != header.n_bytes:
            raise ValueError("it is cut short, or was replaced")
        if zlib.crc32(state) != header.checksum:
            raise ValueError("its checksum is wrong")
        return state


def folder() -> Path:
    """Return the folder of the prefixes."""
    return cache_folder("prefixes")


class PrefixFiles:
    """The prefixes on disk, bounded in bytes; new ones are written in a thread of its own.

    most_bytes: most bytes of all files. keeps_all: keep the prefixes of all owners, not only what
    belongs to everybody. salt: what owners' names are hashed with.
    """

    def __init__(self, most_bytes: int, *, keeps_all: bool) -> None:
        self._most_bytes, self._keeps_all = most_bytes, keeps_all
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._has_failed = False
        self.salt = kept_files.load(folder() / _SALT, _read_salt, _NEW_SALT) or b""
        self._has_salt = bool(self.salt)
        self.salt = self.salt or secrets.token_bytes(_SALT_BYTES)

    def keeps(self, *, is_everybodys: bool) -> bool:
        """Return whether prefixes are written that belong to everybody, or to one owner."""
        return is_everybodys or self._keeps_all

    def of(self, identity: Identity) -> list[PrefixFile]:
        """Return the files of a model, those that others continue first. Files that can never be
        used again are removed.
        """
        key, usable = identity.key, []
        for each in stored():
            header = each.header
            if header.path == str(identity.path) and header.of != identity.of:
                kept_files.remove(each.path)
            elif header.key == key and self.keeps(is_everybodys=header.is_everybodys):
                usable.append(each)
        usable.sort(key=lambda each: each.header.start)
        ids = {""}
        for each in usable:
            if each.header.before in ids:
                ids.add(each.id)
            else:
                kept_files.remove(each.path)
        return [each for each in usable if each.header.before in ids]

    def n_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(_size(path) for path in _paths())

    def write(self, identity: Identity, part: Part, *, is_everybodys: bool) -> None:
        """Write a part soon. Its `file` is set when that is done."""
        if os.getpid() != self._process:
            return  # the thread belongs to the parent
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="edgespec-prefix", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no thread can start; answers need none
                self._thread = None
                return
        self._queue.put(lambda: self._write(identity, part, is_everybodys))

    def close(self) -> None:
        """Wait until everything is written, for some seconds at most."""
        if self._thread and os.getpid() == self._process:
            self._queue.put(None)
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                logger.info("not all prompts could be kept within %g s", _CLOSE_S)
            self._thread = None

    def _work(self) -> None:
        while write := self._queue.get():
            try:
                write()
            except Exception as error:
                log = logger.info if self._has_failed else logger.warning
                said = (
                    kept_files.unwritten(error, folder()) if isinstance(error, OSError) else error
                )
                log("prompts that were read are not kept: %s", said)
                self._has_failed = True

    def _write(self, identity: Identity, part: Part, is_everybodys: bool) -> None:
        state = part.state
        if state is None or (part.before and part.before.file is None):
            return  # it was dropped, or what it continues could not be written
        tokens = part.tokens.astype("<i4").tobytes()
        header = Header(
            identity.key,
            files.label(identity.path),
            str(identity.path),
            identity.of,
            part.owner,
            is_everybodys,
            part.before.file.id if part.before and part.before.file else "",
            part.start,
            tokens,
            len(state),
            zlib.crc32(state),
            time.time(),
        )
        said = b"".join([self.salt, *(f"{header.key} {part.owner} {part.start} ".encode(), tokens)])
        path = folder() / f"{hashlib.sha256(said).hexdigest()[:32]}{_SUFFIX}"
        encoded = msgspec.msgpack.encode(header)
        front = _FRONT.pack(_MAGIC, len(encoded), zlib.crc32(encoded))
        size = len(front) + len(encoded) + len(state)
        if not self._keep_salt() or not self._trim(size, part):
            return
        kept_files.replace(path, [front, encoded, memoryview(state)])
        part.file = PrefixFile(path, header)
        touch(part)

    def _keep_salt(self) -> bool:
        """Write the salt if it is new; return False if another process has written another one."""
        if not self._has_salt:
            if (folder() / _SALT).exists():
                return False
            kept_files.replace(folder() / _SALT, [self.salt])
            self._has_salt = True
        return True

    def _trim(self, n_bytes: int, part: Part) -> bool:
        """Delete the least recently used files until `n_bytes` more fit, but none that `part`
        continues; return False if they cannot fit.
        """
        if n_bytes > self._most_bytes:
            return False
        safe = {each.file.path for each in part.chain() if each.file}
        there = [(status, path) for path in _paths() if (status := _status(path))]
        left = self._most_bytes - sum(status.st_size for status, _ in there)
        for status, path in sorted(there, key=lambda one: one[0].st_mtime_ns):
            if left >= n_bytes:
                return True
            if path not in safe and kept_files.remove(path):
                left += status.st_size
        return left >= n_bytes


def touch(part: Part) -> None:
    """Note on disk that a part is used, and after it the parts that it continues: they go last."""
    now = time.time_ns()
    for i, each in enumerate(reversed(part.chain())):
        if each.file:
            with contextlib.suppress(OSError):
                os.utime(each.file.path, ns=(now + i, now + i))


def stored() -> list[PrefixFile]:
    """Return all files, the latest used first. Those that are damaged are removed, and so are those
    of a model that is not in its folder any more.
    """
    kept = []
    for path in _paths():
        header = kept_files.load(path, _read_header, _ANEW)
        if header and not os.path.exists(header.path) and os.path.isdir(Path(header.path).parent):
            kept_files.remove(path)
        elif header:
            kept.append(PrefixFile(path, header))
    return sorted(kept, key=lambda each: each.used, reverse=True)


def forget(model: Path) -> int:
    """Delete the prefixes that a model has read, and return how many bytes that freed."""
    theirs = [each for each in stored() if each.header.path == str(model.resolve())]
    return sum(each.n_bytes for each in theirs if kept_files.remove(each.path))


def clear(*, everybodys: bool = True) -> int:
    """Delete the prefixes on disk, and return how many bytes that freed. everybodys: also delete
    what belongs to everybody.
    """
    freed = 0
    keep = set() if everybodys else {f.path for f in stored() if f.header.is_everybodys}
    for path in _paths():
        size = _size(path)
        if path not in keep and kept_files.remove(path):
            freed += size
    return freed


def _paths() -> list[Path]:
    return kept_files.matching(folder(), f"*{_SUFFIX}")


def _status(path: Path) -> os.stat_result | None:
    with contextlib.suppress(OSError):
        return path.lstat()
    return None


def _size(path: Path) -> int:
    status = _status(path)
    return status.st_size if status else 0


def _read_header(path: Path) -> Header:
    with kept_files.open_regular(path) as file:
        header = _header(file.read(_FRONT.size), file.read)
        size = os.fstat(file.fileno()).st_size
        if size != file.tell() + header.n_bytes:
            raise ValueError(f"it has {size} bytes, {file.tell() + header.n_bytes} were expected")
    return header


def _header(front: bytes, read: Callable[[int], bytes]) -> Header:
    """Return the header that comes after `front`. Raises ValueError."""
    if len(front) != _FRONT.size:
        raise ValueError("it is cut short")
    magic, size, checksum = _FRONT.unpack(front)
    if magic != _MAGIC or size > _MOST_HEADER:
        raise ValueError("it is no prefix")
    encoded = read(size)
    if len(encoded) != size or zlib.crc32(encoded) != checksum:
        raise ValueError("its header is damaged")
    header = msgspec.msgpack.decode(encoded, type=Header)
    if len(header.tokens) % 4 or not 0 <= header.start < len(header.tokens) // 4:
        raise ValueError("its header is impossible")
    return header


def _read_salt(path: Path) -> bytes:
    salt = kept_files.read(path, _SALT_BYTES)
    if len(salt) != _SALT_BYTES:
        raise ValueError(f"it has {len(salt)} bytes, not {_SALT_BYTES}")
    return salt
