"""`edgespec serve` with devices that send a tree at every step, for long, some of them with chains.

    python -m benchmarks.remote_trees NAME TARGET [--steps 2000] [--devices 8] [--chains 2]
        [--answer 128] [--batch-invariant]

All devices ask the same questions again and again, each begins with another one. Those with
chains draft as many tokens in a row. Trees are those of tests.helpers.forced_trees, so there
are rejected nodes at every step. Texts are compared with plain decoding in this process; without
--batch-invariant what is evaluated together changes rows by rounding, and texts that part are
explained as in equality.py. Memory and cells are the server's own, second by second.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when llama.cpp is loaded

import argparse
import itertools
import json
import sys
import tempfile
import threading
from pathlib import Path

import edgespec
from benchmarks.common import GREEDY, chat_prompt, median, model, save
from benchmarks.equality import gap, noise_of
from edgespec import Completion, Engine
from tests.helpers.served import NODES, connected, serving

TEXTS = (
    "Write a Python class for a stack, with docstrings, then explain each of its methods.",
    "What is the capital of France, and what should one see there?",
    "Count from one to one hundred.",
    "Why is the sky blue? Explain it to a child.",
)


class Question:
    """A prompt and the plain answer to it."""

    def __init__(self, engine: Engine, text: str, n: int) -> None:
        self.prompt = tuple(chat_prompt(engine, text))
        engine.generate(self.prompt[-1:], max_tokens=1)  # of the prompt nothing is in the cache
        self._options = {"max_tokens": n, "ignore_eos": True, "logprobs": 5}
        self.plain = self.ask(engine)

    def ask(self, engine: Engine) -> Completion:
        """Return an engine's answer."""
        return engine.generate(self.prompt, **self._options)

    def compare(self, done: Completion) -> tuple[list[float | None], list[float]]:
        """Return the gap of the tokens at which an answer parts from the plain one, if it does
        (None if the other one was unlikely), and the noise of gaps before that.
        """
        pairs = list(zip(self.plain.token_ids, done.token_ids, strict=True))
        part = next((i for i, (own, other) in enumerate(pairs) if own != other), len(pairs))
        noise = list(noise_of(self.plain, done, part))
        if part == len(pairs):
            return [], noise
        found = gap(self.plain.logprobs[part].top, *pairs[part])
        return [None if found is None else round(found, 4)], noise


class Device:
    """One device: its answers until it has made so many steps."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine, self.name = engine, name
        self.steps: list[float] = []
        self.gaps: list[float | None] = []
        self.noise: list[float] = []
        self.n_answers = self.n_drafted = self.n_accepted = 0
        engine.sessions[0]._policy.observe = lambda step, *_: self.steps.append(step.total_s)

    def run(self, questions: list[Question], n_steps: int) -> None:
        """Ask one question after another."""
        (drafter,) = self.engine.sessions[0]._drafting.drafters
        for question in itertools.cycle(questions):
            if len(self.steps) >= n_steps:
                return
            drafter.known = (*question.prompt, *question.plain.token_ids)
            done = question.ask(self.engine)
            gaps, noise = question.compare(done)
            self.gaps += gaps
            self.noise += noise
            self.n_answers += 1
            self.n_drafted += done.stats.num_draft_tokens
            self.n_accepted += done.stats.num_accepted_draft_tokens
            print(self.name, len(self.steps), self.n_answers, self.gaps, file=sys.stderr)

    def figures(self) -> dict:
        """Return what it saw, times in ms."""
        quarter = len(self.steps) // 4
        return {
            "device": self.name, "steps": len(self.steps), "answers": self.n_answers,
            "right": self.n_answers - len(self.gaps), "gaps_of_others": self.gaps,
            "drafted": self.n_drafted, "accepted": self.n_accepted,
            "median_ms_a_step_first_and_last_quarter": [
                round(1e3 * median(part), 1)
                for part in (self.steps[:quarter], self.steps[-quarter:])
            ],
        }  # fmt: skip


def plain_answers(target: str, n: int, invariant: bool) -> list[Question]:
    """Return the questions, answered by plain decoding in this process."""
    plain = {"method": "none"}
    options = {"n_ctx": 2048, "batch_invariant": invariant, "speculative_config": plain}
    with edgespec.load(model(target), **options, sampling=GREEDY) as engine:
        return [Question(engine, text, n) for text in TEXTS]


def by_quarters(path: Path) -> dict:
    """Return the server's figures, the largest of each quarter of the time."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    n = max(1, len(lines) // 4)
    parts = [lines[i * n : (i + 1) * n if i < 3 else None] for i in range(4)]
    return {
        name: [max((line[name] for line in part), default=None) for part in parts]
        for name in ("rss_mib", "parked", "cells", "evictions", "verifications", "evaluations")
    }


def has_room(url: str, path: Path) -> bool:
    """Return True if a prompt as long as the context can still be read: no cell has been lost."""
    with connected(url, path, "plain") as device:
        n = device.sessions[0].n_ctx
        return len(device.generate([5] * n, max_tokens=1, ignore_eos=True).token_ids) == 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("target")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--answer", type=int, default=128)
    parser.add_argument("--batch-invariant", action="store_true")
    given = parser.parse_args()
    questions = plain_answers(given.target, given.answer, given.batch_invariant)
    path, n_trees = model(given.target), given.devices - given.chains
    watched = Path(tempfile.mkdtemp()) / "watched"
    os.environ["EDGESPEC_WATCHED"] = str(watched)
    options = ["-c", "2048", "-np", "16"] + ["--batch-invariant"] * given.batch_invariant
    with serving(path, *options, module="benchmarks.watched_server") as server:
        kinds = ["trees"] * n_trees + ["chains"] * given.chains
        devices = [
            Device(connected(server.url, path, kind), f"{i}, {kind}")
            for i, kind in enumerate(kinds)
        ]
        threads = [
            threading.Thread(
                target=device.run,
                args=(questions[i % len(TEXTS) :] + questions[: i % len(TEXTS)], given.steps),
            )
            for i, device in enumerate(devices)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        quarters = by_quarters(watched)
        leaves = devices[0].engine.sessions[0]._verifier.max_leaves
        for device in devices:
            device.engine.close()
        room = has_room(server.url, path)
    noise = max(itertools.chain.from_iterable(device.noise for device in devices), default=0.0)
    save(f"remote_trees_{given.name}", {
        "target": given.target, "batch_invariant": given.batch_invariant, "nodes": NODES,
        "leaves": leaves, "devices": [device.figures() for device in devices],
        "answers": sum(device.n_answers for device in devices),
        "right": sum(device.n_answers - len(device.gaps) for device in devices),
        "unexplained": sum(
            gap is None or gap > noise for device in devices for gap in device.gaps),
        "largest_noise_of_the_gap": round(noise, 4),
        "server_largest_by_quarters": quarters, "a_full_context_fits": room,
    })  # fmt: skip


if __name__ == "__main__":
    main()
