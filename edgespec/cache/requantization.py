"""Copies of draft models in the format that this device evaluates fastest.

On CPUs, llama.cpp evaluates Q4_0 in about half the time of formats that pack the same weights more
carefully, because it lays out Q4_0 for their vector units. A draft model that is twice as fast may
be wrong a little more often, but answers are the same in any case. So a Q4_0 copy is made once, and
kept if it was measured to be faster.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from .. import backends
from ..backends.files import opened
from ..config import EngineConfig, build
from ..costs.curves import least
from ..costs.kept_curves import keep_curve
from ..costs.measuring import READING, measure
from ..costs.profiles import Entry, keep, kept
from ..device import BUSY, LoadMeter, available_memory, cache_folder
from ..errors import EdgeSpecError, ModelError
from ..types import Abort

logger = logging.getLogger("edgespec.cache.requantization")

MAX_TIME = 0.9  # a copy is used if a token takes at most this share of the original's time
_READ = 64  # tokens evaluated at once, as in a prompt
_ROUNDS, _ROUND_S = 3, 0.7  # rounds of measuring both files; seconds for each file in a round
_POLL_S = 0.02
_NICE = 10  # niceness of the process that makes a copy


class _Decided(Entry, frozen=True, kw_only=True):
    """The decision whether a model's Q4_0 copy is used in its place.

    faster: True if the copy is faster than the original, None until that is measured. copy: the
    copy's `_stamp`.
    """

    faster: bool | None = None
    copy: list[int] | None = None


def fastest(path: Path, config: EngineConfig) -> Path:
    """Return the file of a draft model, or its copy if that is faster on this device.

    The first call makes the copy and measures both, which takes some seconds. If no copy can be
    made (a full disk, a format that is already as small), the file itself is returned. Raises
    ModelError and its subclasses for a file that is not a model.
    """
    from filelock import FileLock

    if fastest_copy := known(path, config):
        return fastest_copy
    if not backends.of(path).requantizable(path):
        keep(_key(path), {"faster": False})  # next time the header need not be read for this
        return path
    copy = _copy_path(path)
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(copy.with_suffix(".lock")):  # another process may be making it
            return known(path, config) or _decide(path, copy, config)
    except (OSError, NotImplementedError) as error:
        logger.info("no copy of %s can be kept in %s: %s", path.name, copy.parent, error)
        return path


def _decide(path: Path, copy: Path, config: EngineConfig) -> Path:
    """Make the copy and measure it; return the copy if it is faster, otherwise the file."""
    key, faster = _key(path), None
    if not keep(key, {}):
        return path  # nothing can be stored, so the copy would be made again at every load
    try:
        _make(path, copy)
        faster = _is_faster(copy, path, config)
    except (ModelError, OSError) as error:
        logger.info("no copy of %s was made: %s", path.name, error)
    if faster is not None and keep(key, {"faster": faster, "copy": _stamp(copy)}) and faster:
        return copy
    discard(copy)
    return path


def discard(copy: Path) -> None:
    """Delete a copy; the next `fastest` may make another one."""
    with contextlib.suppress(OSError):
        copy.unlink(missing_ok=True)


def discard_copy_of(path: Path) -> int:
    """Delete the copy of a file, if it has one; return the copy's bytes. Call this before the file
    is deleted.
    """
    copy = _copy_path(path)
    size, _ = _stamp(copy) or (0, 0)
    discard(copy)
    return size


def is_copy(path: Path) -> bool:
    """Return whether a file is a copy made by this module."""
    return path.parent == cache_folder("drafts")


def known(path: Path, config: EngineConfig) -> Path | None:
    """Return the result of `fastest` if the decision was made earlier, else None."""
    engine = backends.of(path)
    if not engine.can_requantize():
        return path
    opened(path).close()  # raises ModelNotFound
    if engine.gpus(config):
        return path
    decided, copy = kept(_key(path), _Decided), _copy_path(path)
    if decided is None:
        return None
    if decided.faster is False:
        return path
    return copy if decided.copy and decided.copy == _stamp(copy) else None


def _key(path: Path) -> dict[str, Any]:
    changed = path.stat().st_mtime_ns
    return backends.of(path).identity(path) | {"kind": "requantized", "changed": changed}


def _copy_path(path: Path) -> Path:
    """Return the path of a file's copy; it depends only on the file's path, not on its content."""
    digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    return cache_folder("drafts") / f"{path.stem}-q4_0-{digest[:8]}{path.suffix}"


def _stamp(copy: Path) -> list[int] | None:
    """Return the size and modification time (ns) of a copy, None if it does not exist."""
    try:
        stat = copy.stat()
    except OSError:
        return None
    return [stat.st_size, stat.st_mtime_ns]


def _make(path: Path, copy: Path) -> None:
    logger.info("making a copy of %s that this CPU may evaluate faster: %s", path.name, copy)
    free, needed = shutil.disk_usage(copy.parent).free, 2 * path.stat().st_size
    if free < needed:
        raise OSError(f"{free >> 20} MiB are free in {copy.parent}, {needed >> 20} MiB are wanted")
    partial = copy.with_suffix(".partial")
    try:
        backends.of(path).requantize(path, partial)
        partial.chmod(path.stat().st_mode & 0o777)  # a private draft stays private
        partial.replace(copy)
    finally:
        partial.unlink(missing_ok=True)


def _is_faster(copy: Path, path: Path, config: EngineConfig) -> bool:
    """Measure both files in turns; return True if the copy takes clearly less time for one token
    and no more time for reading a prompt.

    The costs of a faster copy are stored, so that it can draft from the first step on; they are not
    stored if other programs were using the CPU.
    """
    engine, settings = backends.of(path), replace(config, n_ctx=2 * max(READING))
    meter = LoadMeter()
    with contextlib.ExitStack() as stack:
        models = [
            stack.enter_context(contextlib.closing(engine.open_model(file, settings)))
            for file in (copy, path)
        ]
        new, old = (least(curves) for curves in zip(*(
            [measure(model, widths=READING, budget_s=_ROUND_S) for model in models]
            for _ in range(_ROUNDS)
        ), strict=True))  # fmt: skip
        load = meter.look()
        logger.info(
            "%s takes %.1f ms a token, its copy %.1f ms", path.name, 1e3 * old(1), 1e3 * new(1)
        )
        faster = new(1) <= MAX_TIME * old(1) and new(_READ) <= old(_READ)
        if faster and (load is None or load.others <= BUSY):
            keep_curve(models[0], new)
    return faster


class Copying:
    """The work that makes a copy of a draft model, in a process that can be killed at any time."""

    doing = "making a copy of the draft model that this CPU may evaluate faster, once"
    urgent = False

    def __init__(self, path: Path, config: EngineConfig) -> None:
        self._path = path
        self._config = config

    def run(self, abort: Abort) -> bool:
        """Decide as `fastest` does. Return False if `abort` ended that; the next call then starts
        again from the beginning.
        """
        if known(self._path, self._config) or available_memory() < 2 * self._path.stat().st_size:
            return True
        code = f"import sys; from {__name__} import main; main(*sys.argv[1:])"
        settings = json.dumps(asdict(self._config))
        call = [sys.executable, "-c", code, str(self._path), settings]
        process = subprocess.Popen(
            call,
            stdin=subprocess.PIPE,  # when it closes, the new process knows that this one is gone
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONSAFEPATH": "1"},
        )
        try:
            while process.poll() is None and not abort():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_S)
            return process.poll() is not None
        finally:
            if process.poll() is None:
                process.kill()
            failed = process.wait()  # ended by us, or by others
            assert process.stdin
            process.stdin.close()
            if failed:
                _clean_up(_copy_path(self._path))


def _clean_up(copy: Path) -> None:
    """Delete a partial copy, unless another process is making it now."""
    from filelock import FileLock, Timeout

    with contextlib.suppress(Timeout, OSError), FileLock(copy.with_suffix(".lock"), timeout=0):
        copy.with_suffix(".partial").unlink(missing_ok=True)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main(path: str, config: str) -> None:
    """Make the copy of a file at a low priority. config: the fields of EngineConfig as JSON."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the program that waits
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if hasattr(os, "nice"):
        os.nice(_NICE)
    with contextlib.suppress(EdgeSpecError):
        fastest(Path(path), build(EngineConfig, json.loads(config)))
