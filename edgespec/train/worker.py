"""The program that trains a draft (see convert/program.py).

It needs torch, and what the task needs. It is given "parent", the id of the process that started
it, and "job", the path of a JSON file with

    task          the name of a file next to this one, whose class Task knows the kind of draft
    folder        the folder of the state of training and its results
    held_out      the numbers of the conversations that are only evaluated
    checked       those of them with which the draft is served afterwards
    n_steps, passes, seconds   how long to train: the first that is not 0 decides
    batch_tokens  most tokens of a batch, padding included
    rate          the highest learning rate
    seed

and what the task reads. It writes result.json to the folder, and the task writes the draft.

A task is made with the job. It has

    lengths       the number of tokens of each conversation
    weights       the trained tensors by name, float32
    has_learnt    True if the weights before the training may be the best ones
    prepare(bfloat16, wait)   is called before the first step, and computes
    prepared      what is kept for later runs
    loss_of(numbers)   the loss of some conversations, and numbers that describe it
    hits_of(numbers, n_drafts)   for each of these conversations, whether the guesses are right:
                  bools as for `walked`
    write(weights, measured)   writes the draft; returns more for result.json. measured(numbers)
                  measures the present weights
"""

from __future__ import annotations

import importlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..convert.program import replacing, tell
from .formats import PAUSE, RESULT, STATE, TOLD_EVERY_S, acceptance

N_DRAFTS = 5  # longest drafts that are evaluated
SAVED_EVERY_S = 60.0
_LOOKED_EVERY_S = 0.5
_N_EVALUATIONS = 8
_WARM_UP, _LEAST_WARM_UP = 0.02, 10  # share of all steps, and steps
_LOWEST_RATE = 0.05  # of the highest
_CLIP = 0.5
_TIMED = 3  # steps that are timed to know how many fit
_GAIN = 1.5  # bfloat16 is used where it multiplies so many times as fast
_TIMED_PRODUCTS = 20
_MOST_EVALUATED = 400  # conversations
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_KEPT = ("step", "n_steps", "bfloat16", "history", "best")


def main(given: dict[str, Any]) -> None:
    """Train the draft that a job describes, and write it."""
    job = json.loads(Path(given["job"]).read_text("utf-8"))
    tell(step="reading weights")
    training = Training(job, given["parent"])
    tell(step="training")
    training.run()
    tell(step="writing the draft")
    training.write()


def sibling(name: str) -> Any:
    """Import the file of this name next to this one."""
    return importlib.import_module(f".{name}", __package__)


def batches(
    lengths: Mapping[int, int], most_tokens: int, generator: np.random.Generator
) -> list[list[int]]:
    """Return conversations in batches of similar length, in random order.

    lengths: the number of tokens of each conversation. most_tokens: of a batch, padding included; a
    longer conversation is alone.
    """
    shuffled = generator.permutation(sorted(lengths))
    made: list[list[int]] = [[]]
    for number in sorted(shuffled.tolist(), key=lambda each: lengths[each] // 32):
        longest = max([lengths[number], *(lengths[each] for each in made[-1])])
        if made[-1] and longest * (len(made[-1]) + 1) > most_tokens:
            made.append([])
        made[-1].append(number)
    return [made[i] for i in generator.permutation(len(made)) if made[i]]


class Training:
    """A training run, which goes on where an earlier one was killed.

    All randomness is a function of the seed, the pass and the step, so that a run that was resumed
    ends with the same weights, bit for bit, as one that was not interrupted.
    """

    def __init__(self, job: dict[str, Any], parent: int) -> None:
        self._parent = parent
        self.job, self.folder = job, Path(job["folder"])
        torch.use_deterministic_algorithms(DEVICE == "cpu")
        self.task = sibling(job["task"]).Task(job)
        self.weights: dict[str, Any] = self.task.weights
        held_out = set(job["held_out"])
        self._lengths = {i: n for i, n in enumerate(self.task.lengths) if i not in held_out}
        self._held_out = sorted(held_out)[:_MOST_EVALUATED]
        self._optimiser = torch.optim.AdamW(
            list(self.weights.values()), job["rate"], (0.9, 0.95), weight_decay=0.0
        )
        self.step, self.n_steps, self.bfloat16 = 0, 0, False
        self.history: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}
        self._resume()

    def run(self) -> None:
        """Train from the current step to the end."""
        began, first = time.monotonic(), self.step
        told = saved = began
        for numbers in self._remaining():
            began += self._wait()
            reported = self._train(numbers)
            self.step += 1
            if self.step % max(1, self.n_steps // _N_EVALUATIONS) == 0 or self.step == self.n_steps:
                self._evaluate(reported)
                self._save()
                saved = time.monotonic()
            now = time.monotonic()
            if now - told > TOLD_EVERY_S:
                told, left_s = now, (now - began) / (self.step - first)
                left_s *= self.n_steps - self.step
                tell(progress=self._said(reported, left_s))
            if now - saved > SAVED_EVERY_S:
                self._save()
                saved = now

    def write(self) -> None:
        """Write the draft with the best weights, and what was measured as result.json."""
        result = {
            "n_steps": self.n_steps, "bfloat16": self.bfloat16, "best_step": self.best["step"],
            "history": self.history,
        }  # fmt: skip
        with torch.no_grad():
            for name, each in self.weights.items():
                each.copy_(self.best["weights"][name])
        counts = self._counts(self.job["checked"])
        result["checked"] = summary(counts) | {"counts": [each.tolist() for each in counts]}
        result["held_out"] = self.measured(self._held_out)
        result |= self.task.write(self.best["weights"], self.measured)
        with replacing(self.folder / RESULT) as path:
            path.write_text(json.dumps(result, indent=1), "utf-8")

    def _wait(self) -> float:
        """Wait while the parent process pauses the training; return the seconds.

        The file PAUSE is in the folder meanwhile. If the parent has ended, nothing is waited for.
        """
        began = time.monotonic()
        while (self.folder / PAUSE).exists() and os.getppid() == self._parent:
            time.sleep(_LOOKED_EVERY_S)
        return time.monotonic() - began

    def _remaining(self) -> Iterator[list[int]]:
        """Yield the batches from the current step on."""
        step, number = 0, 0
        while step < self.n_steps:
            generator = np.random.default_rng([self.job["seed"], number])
            for each in batches(self._lengths, self.job["batch_tokens"], generator):
                if self.step <= step < self.n_steps:
                    yield each
                step += 1
            number += 1

    def _train(self, numbers: Sequence[int]) -> list[float]:
        """Take one optimiser step; return the numbers that describe its loss."""
        for group in self._optimiser.param_groups:
            group["lr"] = self.job["rate"] * rate_at(self.step, self.n_steps)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=self.bfloat16):
            loss, reported = self.task.loss_of(numbers)
        if loss.requires_grad:
            self._optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(list(self.weights.values()), _CLIP)
            self._optimiser.step()
        return reported  # type: ignore[no-any-return]

    def _evaluate(self, reported: list[float]) -> None:
        """Note how the weights guess the conversations that were held out; keep the best."""
        measured = self.measured(self._held_out)
        self.history.append({"step": self.step, "divergence": reported} | measured)
        length = measured["acceptance_length"][-1]
        if not self.best or length >= self.best["length"]:
            weights = {name: each.detach().cpu().clone() for name, each in self.weights.items()}
            self.best = {"length": length, "step": self.step, "weights": weights}

    def measured(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return the `summary` of the drafts in these conversations."""
        return summary(self._counts(numbers))

    def _counts(self, numbers: Sequence[int]) -> list[Any]:
        """Return what `walked` counts in each of these conversations for drafts of 1 to N_DRAFTS
        tokens, [n, 1 + k] for each k.
        """
        hits: dict[int, Any] = {}
        lengths = {i: self.task.lengths[i] for i in numbers}
        order = batches(lengths, self.job["batch_tokens"], np.random.default_rng(0))
        for each in order:
            self._wait()
            # in float32, as the draft is served
            hits |= zip(each, self.task.hits_of(each, N_DRAFTS), strict=True)
        return [
            np.array([walked(hits[i], k) for i in numbers]).reshape(-1, 1 + k)
            for k in range(1, N_DRAFTS + 1)
        ]

    def _said(self, reported: Sequence[float], left_s: float) -> str:
        length = f", acceptance length {self.best['length']:.2f}" if self.best else ""
        return (
            f"training: step {self.step} of {self.n_steps}, divergence "
            f"{' '.join(f'{each:.2f}' for each in reported)}{length}, {left_s / 60:.0f} min left"
        )

    def _resume(self) -> None:
        """Read the state of an earlier run, or decide how long to train."""
        path = self.folder / STATE
        if path.exists():
            state = torch.load(path, map_location="cpu", weights_only=True)
            with torch.no_grad():
                for name, each in self.weights.items():
                    each.copy_(state["weights"][name])
            self._optimiser.load_state_dict(state["optimiser"])
            for name in _KEPT:
                setattr(self, name, state[name])
            self.task.prepared = state["prepared"]
            torch.set_num_threads(state["n_threads"])  # sums depend on it
            return
        self.bfloat16 = DEVICE != "cpu" or gains_by_bfloat16()
        self.task.prepare(self.bfloat16, self._wait)
        self.n_steps = self.job["n_steps"] or self._fitting_steps()
        if self.task.has_learnt:
            self._evaluate([])
        self._save()

    def _fitting_steps(self) -> int:
        """Return how many steps the passes or the seconds of the job allow."""
        order = batches(self._lengths, self.job["batch_tokens"], np.random.default_rng(0))
        if self.job["passes"]:
            return int(self.job["passes"]) * len(order)
        before = {name: each.detach().clone() for name, each in self.weights.items()}
        self.n_steps, times = 1, []
        for numbers in (order * _TIMED)[: _TIMED + 1]:  # the first one is slower
            began = time.monotonic()
            self._train(numbers)
            times.append(time.monotonic() - began)
        with torch.no_grad():
            for name, each in self.weights.items():
                each.copy_(before[name])
        self._optimiser.state.clear()
        return max(1, int(self.job["seconds"] / np.mean(times[1:])))

    def _save(self) -> None:
        """Write the state, so that a run that is killed now can go on from here."""
        state = {
            "weights": {name: each.detach() for name, each in self.weights.items()},
            "optimiser": self._optimiser.state_dict(),
            "n_threads": torch.get_num_threads(),
            "prepared": self.task.prepared,
            **{name: getattr(self, name) for name in _KEPT},
        }
        with replacing(self.folder / STATE) as path, path.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())


def rate_at(step: int, n_steps: int) -> float:
    """Return the learning rate of a step as a share of the highest: it rises, then falls as a
    cosine.
    """
    rising = min(max(_LEAST_WARM_UP, _WARM_UP * n_steps), n_steps / 2)
    falling = 0.5 * (1 + math.cos(math.pi * step / n_steps))
    return min(1.0, (step + 1) / rising) * (_LOWEST_RATE + (1 - _LOWEST_RATE) * falling)


def walked(hits: Any, n_drafted: int) -> Any:
    """Simulate an answer with drafts of a fixed length; return the number of drafts, and for each
    place of a draft how often its token was accepted, [1 + n_drafted].

    hits: bools [n_steps, rows], row 0 being the one that reads the first token of the answer. Like
    in inference, the next step begins after the accepted tokens and the target's own, which is not
    drafted at the end of an answer.
    """
    at, counts = 0, np.zeros(1 + n_drafted, np.int64)
    while (n_left := hits.shape[1] - at) > 1:
        n = int(hits[: min(n_drafted, n_left - 1), at].cumprod().sum())
        counts[: n + 1] += 1
        at += n + 1
    return counts


def summary(counts: Sequence[Any]) -> dict[str, Any]:
    """Return the `acceptance` with drafts of 1, 2, … tokens, for what was counted with them."""
    lengths, shares = zip(*map(acceptance, counts), strict=True)
    return {"acceptance_length": lengths, "acceptance": shares}


def gains_by_bfloat16() -> bool:
    """Return whether this processor multiplies matrices of bfloat16 clearly faster than of
    float32. Both are timed in turns, so that other programs disturb both.
    """
    least = dict.fromkeys((torch.float32, torch.bfloat16), math.inf)
    for _ in range(_TIMED_PRODUCTS):
        for dtype, seconds in least.items():
            a, b = torch.ones(512, 512, dtype=dtype), torch.ones(2048, 512, dtype=dtype)
            began = time.perf_counter()
            torch.nn.functional.linear(a, b)
            least[dtype] = min(seconds, time.perf_counter() - began)
    return least[torch.float32] > _GAIN * least[torch.bfloat16]
