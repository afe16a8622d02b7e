"""Programs under strace: the addresses that they reach for and the files that they write."""

from __future__ import annotations

import ipaddress
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_WRITES = (
    "open", "openat", "openat2", "creat", "mkdir", "mkdirat", "mknod", "mknodat", "rename",
    "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat", "unlink", "unlinkat",
    "rmdir", "truncate",
)  # fmt: skip
_UNSEEN = "io_uring_setup"  # strace does not see what is done through it
_CALL = re.compile(r"\d+ +(\w+)\((.*)")
_TO_WRITE = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_TMPFILE")
_PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"')
_ADDRESS = re.compile(r'inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"')
_DEVICES = re.compile(r"/dev/(null|tty|ptmx|pts/\d+)")


def require() -> None:
    """Skip a test unless strace is installed and may trace programs here."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: nothing was checked about connections and files")
    if subprocess.run(["strace", "-o", "/dev/null", "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("strace may not trace programs here")


class Trace:
    """The log of a traced program, while it runs or after it ended.

    path: the file for the log. inject: calls that fail with ENETUNREACH instead of being made.
    """

    def __init__(self, path: Path, inject: str = "") -> None:
        self._path = path
        self._inject = ["-e", f"inject={inject}:error=ENETUNREACH"] if inject else []

    def command(self, *program: str) -> list[str]:
        """Return the command line that runs a program under strace, with all its children."""
        calls = ",".join(["%network", _UNSEEN, *_WRITES])
        options = ["-f", "-qq", "-y", "-s", "4096", "-e", "signal=none", "-e", f"trace={calls}"]
        return ["strace", *options, *self._inject, "-o", str(self._path), "--", *program]

    @property
    def text(self) -> str:
        """The log."""
        return self._path.read_text(errors="replace")

    def outside(self) -> list[str]:
        """Return the calls that reach beyond this machine or prepare to: those with an address
        other than loopback, those that ask a service for a host's address, and those that strace
        cannot follow.
        """
        return [f"{name}({rest}" for name, rest in self._calls() if _reaches_out(name, rest)]

    def written(self) -> set[Path]:
        """Return the paths of all files and folders that were made, changed, moved or deleted."""
        found = set()
        for name, rest in self._calls():
            opens = name.startswith("open")
            if name not in _WRITES or (opens and not _TO_WRITE.search(rest)):
                continue
            if re.search(r"\) += -1 E", rest):
                continue  # it failed
            for folder, path in _PATH.findall(rest.rpartition(") = ")[0] or rest):
                if not _DEVICES.fullmatch(path):
                    found.add(Path(folder, path))
        return found

    def _calls(self) -> Sequence[tuple[str, str]]:
        found = map(_CALL.match, self.text.splitlines())
        return [(match[1], match[2]) for match in found if match]


def _reaches_out(name: str, rest: str) -> bool:
    if name == _UNSEEN or (name == "connect" and "sun_path=" in rest):
        return True  # a service of this machine, as nscd, would ask others
    if name in _WRITES:
        return '"/etc/resolv.conf"' in rest
    addresses = [ipaddress.ip_address(v4 or v6) for v4, v6 in _ADDRESS.findall(rest)]
    return any(not address.is_loopback for address in addresses)
