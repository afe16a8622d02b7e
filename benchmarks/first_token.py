"""Seconds from the start of the program to the first token of an answer, with the model on disk.

    python -m benchmarks.first_token [FILE.gguf] [--rounds N] [--install WHEEL]

`edgespec run` and `edgespec chat` (a message on stdin) take turns, in an empty home where nothing
is known about the device, and in one where costs are known; the model is smollm2-135m unless FILE
is given. --install: also the seconds of a new environment and of `pip install WHEEL` in it, with
nothing in pip's cache and with everything, and of the first token of what was installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import median, model, save

PROMPT = "Tell me about the history of the bicycle."
COMMANDS = {"run": ["run", PROMPT], "chat": ["chat"]}
N_TOKENS = 16
MEASURE = "import edgespec, sys; edgespec.load(sys.argv[1]).measure()"


def environment(home: Path) -> dict[str, str]:
    """Variables of a user without any files, and without settings of edgespec."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("EDGESPEC_", "XDG_"))}
    return kept | {"HOME": str(home), "USERPROFILE": str(home), "LOCALAPPDATA": str(home)}


def first_token(python: str | Path, file: Path, command: Sequence[str], home: Path) -> float:
    """Return the seconds until the first byte on stdout, which has nothing but the answer."""
    options = ["-m", file, "-n", str(N_TOKENS), "-q", "--temp", "0"]
    call = [python, "-m", "edgespec_cli", *command, *options]
    began = time.perf_counter()
    with subprocess.Popen(
        call,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(home),
        cwd=home,
        bufsize=0,
    ) as process:
        assert process.stdin
        assert process.stdout
        if command[0] == "chat":
            process.stdin.write(f"{PROMPT}\n".encode())
        process.stdin.close()
        first = process.stdout.read(1)
        seconds = time.perf_counter() - began
        process.stdout.read()
    if not first or process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}; its message is above")
    return seconds


def summary(values: Sequence[float]) -> dict[str, float]:
    low, middle, high = min(values), median(list(values)), max(values)
    return {"median_s": round(middle, 2), "min_s": round(low, 2), "max_s": round(high, 2)}


def first_tokens(python: str | Path, file: Path, rounds: int) -> dict:
    """Return the seconds by what is known and command; all take turns."""
    found = defaultdict(list)
    with tempfile.TemporaryDirectory() as known:
        subprocess.run([python, "-c", MEASURE, file], env=environment(Path(known)), check=True)
        for round_ in range(rounds + 1):
            for name, command in COMMANDS.items():
                with tempfile.TemporaryDirectory() as empty:
                    homes = {"nothing known": empty, "costs known": known}
                    for what, home in homes.items():
                        seconds = first_token(python, file, command, Path(home))
                        if round_:  # the first one brings all files into memory
                            found[f"{name}, {what}"].append(seconds)
    return {name: summary(values) for name, values in found.items()}


def timed(*command: str | Path) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=sys.stderr)
    return time.perf_counter() - began


def installed(wheel: Path, file: Path, rounds: int) -> dict:
    """Install a wheel into new environments; the last one answers."""
    found = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for round_ in range(rounds):
            cache = Path(folder, f"cache-{round_}")
            for kind in ("nothing cached", "all cached"):
                place = Path(folder, f"{kind} {round_}".replace(" ", "-"))
                found["new environment"].append(timed(sys.executable, "-m", "venv", place))
                python = place / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
                pip = [python, "-m", "pip", "--cache-dir", cache, "install", "-q", wheel]
                found[f"pip install, {kind}"].append(timed(*pip))
        tokens = first_tokens(python, file, rounds)
    return {name: summary(values) for name, values in found.items()} | {"first token": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--install", type=Path, metavar="WHEEL")
    given = parser.parse_args()
    file = (given.file or model("smollm2-135m")).resolve()
    found = {"model": file.name, "rounds": given.rounds}
    found["first_token"] = first_tokens(sys.executable, file, given.rounds)
    if given.install:
        found["install"] = installed(given.install.resolve(), file, min(given.rounds, 3))
    save("first_token", found)


if __name__ == "__main__":
    main()
