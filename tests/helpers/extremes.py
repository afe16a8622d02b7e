"""Runs command lines with extreme values, each in a process of its own with bounded memory.

`python -m tests.helpers.extremes` reads cases from stdin, one a line: [arguments, environment].
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

NUMBERS = (
    "", " ", "-1", "0", "1", "2147483647", "2147483648", str(2**63), str(-(2**63)), str(10**399),
    "1e308", "-1e308", "1e-320", "nan", "inf", "-inf", "0x10", "1_0", "٣", "1.5", "1e400",
)  # fmt: skip
DEEP = "[" * 100_000
TEXTS = (
    "x" * 100_000, os.fsdecode(b"a\xff\xfe"), "\u202eabc\u2066", "\x1b[31mred", "a\nb", DEEP,
    "{" * 1000, "(" * 5000, '"', "[1, 2]", "null", "%s%n", "../..", "~nobody-here/x", "0=1", "-",
    f"{10**300}=1", "1=1e400", "a=" + DEEP,
)  # fmt: skip
FILES = ("/dev/zero", "/dev/null", "/", "/dev/full", "missing/file", "binary", "no-entry")
EXTREMES = NUMBERS + TEXTS + FILES

SECONDS = 60.0  # that a case may take
_ADDRESS_SPACE = 6 << 30  # bytes
_USED = ("edgespec.backends.llama_cpp.model", "edgespec.server.app", "edgespec.bench.replay")


class Case(NamedTuple):
    """A command line and variables of the environment."""

    arguments: list[str]
    variables: dict[str, str]


class Outcome(NamedTuple):
    """How a case ended. code: the exit code, minus the signal, or None where it took too long."""

    code: int | None
    output: str
    peak: int  # bytes


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands of the CLI that do something, with the words that name them."""
    from edgespec_cli.main import cli

    def walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple]:
        subcommands = getattr(command, "commands", {})
        for name, subcommand in subcommands.items():
            yield from walk(subcommand, (*words, name))
        if not subcommands or command.invoke_without_command:
            yield words, command

    return walk(cli, ())


def run(cases: Iterable[Case], folder: Path) -> Iterator[Outcome]:
    """Yield how each case ends in `folder`."""
    keep = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "EDGESPEC_LIBLLAMA", "HOME")
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    for kind in ("MODELS", "PROFILES", "DRAFTS", "CORPUS", "ENGINES"):
        environment[f"EDGESPEC_{kind}"] = str(folder / "kept" / kind.lower())
    with tempfile.TemporaryFile() as lines:
        lines.write("".join(json.dumps(case) + "\n" for case in cases).encode())
        lines.seek(0)
        with subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.extremes"], stdin=lines, cwd=folder,
            stdout=subprocess.PIPE, text=True, env=environment | {"XDG_STATE_HOME": str(folder)},
        ) as runner:  # fmt: skip
            assert runner.stdout
            for line in runner.stdout:
                yield Outcome(*json.loads(line))
    assert runner.returncode == 0


def _outcome(case: Case) -> Outcome:
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if not child:
            try:
                _become(case, output.fileno())
            finally:
                os._exit(99)
        deadline, done = time.monotonic() + SECONDS, (0, 0, None)
        while not done[0] and time.monotonic() < deadline:
            time.sleep(0.005)
            done = os.wait4(child, os.WNOHANG)
        late = not done[0]
        if late:
            os.kill(child, 9)
            done = os.wait4(child, 0)
        output.seek(0)
        code = None if late else os.waitstatus_to_exitcode(done[1])
        said = output.read(1 << 20).decode("utf-8", "replace")
        return Outcome(code, said, done[2].ru_maxrss << 10)


def _become(case: Case, output: int) -> None:
    """Run a case in this process, which ends."""
    import resource

    from edgespec_cli.__main__ import main

    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.update(case.variables)
    sys.argv = ["edgespec", *case.arguments]
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    _end_when_ready(case.arguments[:1])
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code if isinstance(code, int) else 1)


def _end_when_ready(command: list[str]) -> None:
    """Let a server end once it listens, and what measures end before it does."""
    import edgespec
    from edgespec.bench import replay
    from edgespec.server import app

    def ready(*args: object, on_ready, **settings: object) -> None:
        on_ready("http://127.0.0.1:1")

    def stop(*args: object, **settings: object) -> None:
        raise edgespec.EdgeSpecError("nothing is measured in this test")

    app.serve = ready
    if command and command[0] in ("bench", "tune", "doctor"):
        edgespec.load = edgespec.connect = edgespec.tune = replay.table = stop


if __name__ == "__main__":
    for module in _USED:
        importlib.import_module(module)  # so that cases do not need to
    importlib.import_module("edgespec_cli.main")
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin.read().splitlines():
        answers.write(json.dumps(_outcome(Case(*json.loads(line)))) + "\n")
        answers.flush()
