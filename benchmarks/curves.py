"""t(n) of one model on several libraries and in several formats: what the controller believes, and
what the engine then takes.

    python -m benchmarks.curves FILE[,LIBLLAMA,NAME]... [--rounds N] [--profiles OUT] [--save NAME]

Each FILE (a GGUF, or the graph of an ONNX folder) is loaded in a process of its own, a GGUF with
the libllama LIBLLAMA, which the results call NAME. The processes take turns: in each round, each
measures all widths once. Before and in the middle of the rounds each measures a curve as `load`
does; what it believes is compared with the least times of the other rounds, which it did not see.
Nothing else must run. --profiles writes the least times as profiles for `edgespec bench replay`,
with the last FILE as the draft model of all others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.common import median, save
from edgespec import EngineConfig
from edgespec.costs.measuring import WIDTHS, fill, measure, timed
from edgespec.loading.models import open_model

N_CACHED = 128


def serve(file: str) -> None:
    """Answer each line of stdin with a line: the seconds of all widths, or a measured curve."""
    model = open_model(Path(file), EngineConfig(n_ctx=1024, n_threads=2))
    for line in sys.stdin:
        if line == "believe\n":
            curve = measure(model)
            seconds = [curve(width) for width in WIDTHS]
        else:
            fill(model, N_CACHED)
            timed(model, 1)
            seconds = [timed(model, width) for width in WIDTHS]
        print(json.dumps(seconds), flush=True)
    model.close()


class Child:
    def __init__(self, file: str, library: str = "", name: str = "") -> None:
        env = os.environ | ({"EDGESPEC_LIBLLAMA": library} if library else {})
        self.name = Path(file).stem if "onnx" not in file else Path(file).parent.name
        self.name += f" ({name})" if name else ""
        command = [sys.executable, "-m", "benchmarks.curves", "--serve", file]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        self.believed: list[list[float]] = []
        self.rounds: list[list[float]] = []

    def ask(self, what: str) -> list[float]:
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


def least(rounds: list[list[float]]) -> list[float]:
    return [min(times) for times in zip(*rounds, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*")
    parser.add_argument("--serve", default="")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--profiles", default="")
    parser.add_argument("--save", default="")
    given = parser.parse_args()
    if given.serve:
        serve(given.serve)
        return
    children = [Child(*file.split(",")) for file in given.files]
    for child in children:
        child.ask("round")  # once all are loaded, and the weights are in memory
    for i in range(given.rounds):
        for child in children:
            if i in (0, given.rounds // 2):
                child.believed.append(child.ask("believe"))
            child.rounds.append(child.ask("round"))
    results = {}
    for child in children:
        taken, half = least(child.rounds), given.rounds // 2
        off = {
            width: round(
                median([
                    believed[i] / least(rounds)[i] - 1
                    for believed, rounds in zip(
                        child.believed, (child.rounds[half:], child.rounds[:half]), strict=True
                    )
                ]), 3,
            )
            for i, width in enumerate(WIDTHS)
        }  # fmt: skip
        results[child.name] = {
            "ms": {w: round(1e3 * s, 2) for w, s in zip(WIDTHS, taken, strict=True)},
            "of one": {w: round(s / taken[0], 2) for w, s in zip(WIDTHS, taken, strict=True)},
            "believed off by": off,
        }
        print(child.name, json.dumps(results[child.name]["of one"]), f"t(1) {1e3 * taken[0]:.1f}")
        print("  believed off by", json.dumps(off), flush=True)
    if given.profiles:
        curves = {
            child.name: {
                "lengths": [N_CACHED], "widths": list(WIDTHS),
                "ms": [[round(1e3 * s, 3) for s in least(child.rounds)]],
            }
            for child in children
        }  # fmt: skip
        *targets, draft = curves
        profiles = {name: {"target": curves[name], "draft": curves[draft]} for name in targets}
        Path(given.profiles).write_text(json.dumps(profiles, indent=1) + "\n")
    if given.save:
        save(given.save, results)


main()
