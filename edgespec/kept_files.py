"""Reading and writing the files that edgespec keeps. A file is written completely or not at all.

At the next start a file may be cut short, belong to another program, or be a pipe without a writer.
Only regular files of bounded size with valid content are used. Anything else is treated as missing,
and one line in the log says so.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

T = TypeVar("T")
logger = logging.getLogger("edgespec.kept")

_MOST_JSON = 16 << 20  # bytes
NEW = ".edgespec-new."  # beginning of a partial file's name; the writer's process id follows
_ABANDONED_S = 86_400.0  # seconds; a partial file older than this has no writer any more
_DENIED = ("no permission", "change who may use it", "that you may write to")
_NO_FOLDER = ("a file is where a folder has to be", "rename it", "elsewhere")
_OBSTACLES = {  # why something cannot be written, what to do, and where to write instead
    errno.EACCES: _DENIED,
    errno.EDQUOT: ("your quota is used up", "delete some files of yours", "on another disk"),
    errno.EEXIST: _NO_FOLDER,
    errno.EFBIG: ("the file would be too large", "raise the limit", "on another disk"),
    errno.ENOSPC: ("the disk is full", "free some space there", "on another disk"),
    errno.ENOTDIR: _NO_FOLDER,
    errno.EPERM: _DENIED,
    errno.EROFS: ("the disk is read-only", "mount it so that it can be written", "on another disk"),
}
NOT_WRITTEN = _OBSTACLES.keys()  # error numbers that mean that a place cannot be written to
_PROBE = 4096  # bytes: a full disk still takes empty files
_CLOCKS_S = 5.0  # most difference between a file's time and the start time of a process
_swept: set[Path] = set()  # folders in which this process has deleted partial files
_left_out: set[Path] = set()  # paths that this process has logged as left out


def matching(folder: Path, *patterns: str) -> list[Path]:
    """Return the paths in a folder that match one of the patterns, sorted.

    Returns [] if the folder cannot be read (it may be another user's), and logs that once.
    """
    try:
        os.scandir(folder).close()
        return sorted({path for pattern in patterns for path in folder.glob(pattern)})
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        leave_out(folder, error)
        return []


def leave_out(path: Path, error: Exception) -> None:
    """Log, once in a process, that a path cannot be read and is left out."""
    if path not in _left_out:
        _left_out.add(path)
        reason = one_line(getattr(error, "strerror", None) or error)
        logger.warning("%s cannot be read (%s) and is left out", path, reason)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises OSError, and ValueError if it is a pipe, a device or
    a folder.
    """
    # without O_NONBLOCK, opening a pipe waits until somebody writes to it
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is no regular file")
    return os.fdopen(handle, "rb")


def read(path: Path, most: int) -> bytes:
    """Return the content of a file.

    Raises OSError if it cannot be read, and ValueError if it is not a regular file, or has more
    than `most` bytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"it has {size} bytes, at most {most} were expected")
        return file.read(most)


def read_json(path: Path, kind: type[T], most: int = _MOST_JSON) -> T:
    """Return the JSON in a file as a msgspec Struct of type `kind`. Raises OSError and ValueError
    as `read` does, and ValueError if the content is not such a Struct.
    """
    try:
        return msgspec.json.decode(read(path, most), type=kind)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def load(
    path: Path, reader: Callable[[Path], T], instead: str, *, is_users: bool = False
) -> T | None:
    """Return the result of `reader` for a file, None if the file is missing or cannot be used.

    If `reader` raises ValueError, the file is damaged. It is then removed, or renamed to
    "*.damaged" if `is_users`, so that the warning comes only once. Files of other users are never
    removed or renamed, nor are links, pipes and the like. instead: the end of the warning, which
    says what happens now. Partial files that killed writers left in the same folder are deleted.
    """
    _sweep(path.parent)
    try:
        return reader(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        logger.warning("%s cannot be read (%s); %s", path, error.strerror or error, instead)
    except ValueError as error:
        gone = _put_aside(path) if is_users else remove(path)
        logger.warning("%s is damaged%s: %s; %s", path, gone, one_line(error), instead)
    return None


def replace(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file that only this user can read, and move it to `path` when it is complete.

    Raises OSError if this fails; the earlier file is then as it was. Only a regular file of this
    user is replaced; for any other, OSError is raised too.
    """
    if os.path.lexists(path) and not _is_ours(path):
        raise OSError(errno.EPERM, "it is no regular file of this user", str(path))
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _sweep(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{NEW}{os.getpid()}.")
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave an empty file in its place
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def protect(folder: Path) -> None:
    """Let only this user read a folder and all that is in it."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)


def free_disk(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which need not exist."""
    nearest = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
    return shutil.disk_usage(nearest).free


def unwritten(error: OSError, folder: Path, variable: str = "") -> str:
    """Return a message that says why a write to a folder failed, and what to do.

    variable: the environment variable that can name another folder, "" if there is none.
    """
    place = error.filename or folder
    if error.errno not in NOT_WRITTEN:
        return f"{place}: {one_line(error.strerror or error)}"
    otherwise = f"set {variable} to a folder" if variable else ""
    return f"{place} cannot be written: {obstacle(error, otherwise)}"


def obstacle(error: OSError, otherwise: str = "") -> str:
    """Return a message that says why something cannot be written, and how to solve it: the advice
    differs for a full disk, a read-only disk and a missing permission.

    otherwise: other advice, such as "set X to a folder"; a suitable place is added to it, such as
    "on another disk".
    """
    cause, remedy, elsewhere = _OBSTACLES.get(error.errno or 0, ("", "", "elsewhere"))
    reason = one_line(error.strerror or error)
    why = f"{cause} ({reason})" if cause else reason
    instead = f"{otherwise} {elsewhere}" if otherwise else ""
    return f"{why}; {', or '.join(filter(None, (remedy, instead)))}".removesuffix("; ")


def refusal(folder: Path, variable: str = "") -> str:
    """Return the message of `unwritten` if a folder cannot be written to, else ""."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = None  # it names the probe
        return unwritten(error, folder, variable)
    return ""


def refusal_ahead(folder: Path, variable: str = "") -> str:
    """Return what `refusal` says of a folder, without making it: if it is not there, the nearest
    folder above it is tried.
    """
    # a link that leads nowhere is there, and is no folder
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    return refusal(nearest, variable)


def remove(path: Path) -> str:
    """Remove a regular file of this user; return " and removed", or "" if it was not removed."""
    with contextlib.suppress(OSError):
        if _is_ours(path):
            path.unlink()
            return " and removed"
    return ""


def one_line(said: object, most: int = 200) -> str:
    """Return the text of an error, shortened and without control characters, because it may quote a
    file.
    """
    shown = (c if c.isprintable() else ascii(c)[1:-1] for c in str(said)[:most])
    return "".join(shown)


def _sweep(folder: Path) -> None:
    """Delete the partial files that killed writers left in a folder, once in a process."""
    if folder in _swept:
        return
    _swept.add(folder)
    for path in matching(folder, f"{NEW}*"):
        with contextlib.suppress(OSError):
            if _is_ours(path) and _is_abandoned(path):
                path.unlink()


def _is_abandoned(path: Path) -> bool:
    import psutil

    writer = path.name.removeprefix(NEW).partition(".")[0]
    if not writer.isdecimal():
        return False
    written = path.stat().st_mtime
    if time.time() - written > _ABANDONED_S:
        return True
    try:  # a new container reuses process ids, so compare when the process started
        return psutil.Process(int(writer)).create_time() > written + _CLOCKS_S
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, OverflowError):
        return False


def _is_ours(path: Path) -> bool:
    """Return True for a regular file of this user; False for a link to one."""
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and (os.name != "posix" or status.st_uid == os.getuid())


def _put_aside(path: Path) -> str:
    """Rename a regular file of this user to "*.damaged". Return words about this for the warning,
    or "" if it was not renamed.
    """
    aside = path.with_name(f"{path.name}.damaged")
    with contextlib.suppress(OSError):
        if _is_ours(path):
            path.replace(aside)
            return f" and set aside as {aside.name}"
    return ""
