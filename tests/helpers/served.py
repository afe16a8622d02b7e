"""`edgespec serve` in a process of its own, and devices of it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import edgespec
from tests.helpers import forced_trees

NODES = 12
METHODS = {"trees": forced_trees.ForcedTrees.name, "chains": "suffix", "plain": "none"}


class Served(NamedTuple):
    """A server: its process, and its URL for devices."""

    pid: int
    url: str


@contextlib.contextmanager
def serving(path: Path, *options: str, module: str = "edgespec_cli") -> Iterator[Served]:
    """Serve a file. module: it is run in place of the command line's own, with its arguments."""
    command = [
        sys.executable, "-m", module, "serve", "-m", str(path), "-md", "none",
        "--port", "0", "-q", *options,
    ]  # fmt: skip
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path), "OMP_WAIT_POLICY": "passive",
    }  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout
        address = process.stdout.readline().split(" at ")[1].split()[0]
        yield Served(process.pid, address.replace("http://", "ws://"))
    finally:
        process.terminate()
        process.wait()


def connected(url: str, path: Path, drafts: str) -> edgespec.Engine:
    """Return a device that drafts NODES tokens at every step, in "trees" or "chains", or none:
    "plain".
    """
    fixed = {"num_speculative_tokens": NODES, "draft_p_min": 0.0} if drafts != "plain" else {}
    remote = edgespec.RemoteConfig(url, tokenizer=path, timeout_s=60.0)
    with forced_trees.registered():
        return edgespec.connect(remote, speculative_config={"method": METHODS[drafts]} | fixed)
