"""Break small rules on purpose, one at a time, and say which tests notice.

    python -m benchmarks.mutants quick                  the README's command
    python -m benchmarks.mutants long --only any-hash   every test of the folders that could see it

The rules are in mutants.toml. Each is broken in a copy of the working tree, so nothing here
changes. A mutant is killed if a test fails; the first failure ends its run. `quick` begins with the
folders that could see the fault, and runs the rest of the command for what they did not notice.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import msgspec

HERE = Path(__file__).parent


class Mutant(msgspec.Struct, forbid_unknown_fields=True):
    """A rule and how to break it: `old`, which occurs once in `file`, becomes `new`."""

    name: str
    rule: str
    file: str
    old: str
    new: str
    tests: list[str]

    def apply(self, tree: Path) -> None:
        """Break the rule in a tree. Raises ValueError unless `old` occurs once."""
        path = tree / self.file
        text = path.read_text("utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has the text {text.count(self.old)} times")
        path.write_text(text.replace(self.old, self.new), "utf-8")


def load() -> list[Mutant]:
    """Return the mutants of mutants.toml."""
    return msgspec.toml.decode((HERE / "mutants.toml").read_bytes(), type=dict[str, list[Mutant]])[
        "mutant"
    ]


def copy(tree: Path, target: Path) -> None:
    """Copy what git knows of a tree, with changes that are not committed."""
    names = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=tree, check=True, capture_output=True
    ).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (tree / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, target / name)


def verdict(
    mutant: Mutant, tree: Path, python: Sequence[str], arguments: Sequence[str]
) -> dict[str, Any]:
    """Return what pytest says of a broken copy of a tree. python: the command that runs it."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        broken = Path(folder)
        copy(tree, broken)
        mutant.apply(broken)
        environment = os.environ | {"PYTHONPATH": f"{broken}{os.pathsep}{broken / 'cli'}"}
        began = time.monotonic()
        run = subprocess.run(
            [*python, "-m", "pytest", "-x", "--tb=line", "-p", "no:cacheprovider", *arguments],
            cwd=broken,
            env=environment,
            capture_output=True,
            text=True,
        )
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", run.stdout, re.MULTILINE)
    by = failed[0] if run.returncode == 1 and failed else ""
    return {
        "name": mutant.name,
        "killed": bool(by),
        "by": by or f"exit code {run.returncode}",
        "seconds": round(time.monotonic() - began),
        "last_line": run.stdout.strip().rpartition("\n")[2][:200],
    }


def in_folders(mutant: Mutant, tree: Path, python: str, *options: str) -> dict[str, Any]:
    """Run the folders that could see the fault, in one process pinned to a core."""
    core = threading.current_thread().name.rpartition("_")[2]
    pinned = ["taskset", "-c", core, python]
    return verdict(mutant, tree, pinned, ["-n0", *options, *mutant.tests])


@click.command()
@click.argument("suite", type=click.Choice(["quick", "long"]))
@click.option("--only", multiple=True, help="Names of mutants; default: all.")
@click.option("--tree", type=Path, default=HERE.parent, help="What to break and test.")
@click.option("--python", default=sys.executable, help="The interpreter that runs pytest.")
@click.option("--jobs", default=1, help="Mutants at a time.")
@click.option("--out", type=Path, help="A JSON file; verdicts that it has are not repeated.")
def main(
    suite: str, only: Sequence[str], tree: Path, python: str, jobs: int, out: Path | None
) -> None:
    """Run a suite against every mutant."""
    results = json.loads(out.read_text()) if out and out.exists() else {"verdicts": []}
    known = {each["name"] for each in results["verdicts"]}
    mutants = [m for m in load() if m.name not in known and (not only or m.name in only)]

    def run(mutant: Mutant) -> dict[str, Any]:
        return in_folders(mutant, tree, python, *(["--all"] if suite == "long" else []))

    with ThreadPoolExecutor(jobs) as pool:
        for mutant, each in zip(mutants, pool.map(run, mutants), strict=True):
            if suite == "quick" and not each["killed"]:
                each = verdict(mutant, tree, [python], [])
            what = "killed by" if each["killed"] else "SURVIVED:"
            click.echo(f"{each['name']:24} {each['seconds']:5} s  {what} {each['by']}")
            results["verdicts"].append(each)
            if out:
                command = f"python -m benchmarks.mutants {suite}"
                out.write_text(json.dumps({"command": command, **results}, indent=1) + "\n")
    killed = sum(each["killed"] for each in results["verdicts"])
    click.echo(f"{killed} of {len(results['verdicts'])} killed")


if __name__ == "__main__":
    main()
