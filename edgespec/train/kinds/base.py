"""The contract of a kind of draft."""

from __future__ import annotations

import functools
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ... import kept_files
from ...convert import tools
from ...engine import Engine
from ..formats import JOB, RESULT, STATE, STATES
from ..planning import TrainingPlan
from ..work import ADVICE, Work


@dataclass(frozen=True, slots=True)
class MadeDraft:
    """A draft that a kind has made.

    path: the file that drafts, a GGUF or an ONNX graph. checkpoint: the folder of its card.
    title, license: of the card; facts: the rows of its table. simulated: the worker's counts, for
    drafts of 1, 2, … tokens and each answer of `Work.checked` the number of drafts and how often
    the token at each place was accepted; empty if the kind simulates nothing. before: the draft
    model that it was made from, with which it is compared; None if there is none.
    """

    path: Path
    checkpoint: Path
    title: str
    license: str
    facts: Mapping[str, str]
    simulated: Sequence[Sequence[Sequence[int]]] = ()
    before: Path | None = None


class Kind(ABC):
    """Plans and makes one kind of draft. Its files are in a folder of its own, `folder`, in that of
    the training; `Work` has what all kinds share: target, prompts and recorded answers.

    rate: the learning rate if the options name none.
    """

    name: ClassVar[str]
    rate: ClassVar[float] = 0.0

    def __init__(self, work: Work) -> None:
        self.work = work
        self.folder: Path = work.folder / self.name

    def begun_with(self) -> dict[str, Any]:
        """Return the values, for JSON, that must not change between two runs, in addition to target
        and prompts.
        """
        return {}

    def prepare(self, python: Path) -> None:  # noqa: B027
        """Make what the plan has to measure. python: as for `make`."""

    @abstractmethod
    def plan(self, engine: Engine) -> TrainingPlan:
        """Measure this device and return the plan. engine: the target with slots."""

    @abstractmethod
    def make(self, python: Path) -> MadeDraft:
        """Make the draft from the recorded answers, or go on with it after a kill.

        python: the interpreter that has the tools of `convert`.
        """

    def _for_all(self) -> dict[str, Any]:
        """Return what `worker.py` and all its tasks read of a job."""
        o, work = self.work.options, self.work
        return {
            "folder": str(self.folder.resolve()), "recorded": str(work.folder.resolve()),
            "held_out": work.held_out,
            "checked": work.checked, "n_steps": o.n_steps, "passes": o.passes,
            "seconds": 60 * o.minutes, "batch_tokens": o.batch_tokens, "rate": o.rate or self.rate,
            "seed": o.seed,
            "n_conversations": len(work.recordings.done),  # more of them: it begins anew
        }  # fmt: skip

    def train(self, python: Path, job: dict[str, Any]) -> dict[str, Any]:
        """Train in the tools' environment, or go on with it; return the worker's result.

        job: what the task reads, and its name.
        """
        path, result = self.folder / JOB, self.folder / RESULT
        content = json.dumps(self._for_all() | job).encode()
        if not path.exists() or path.read_bytes() != content:
            for each in (self.folder / STATE, self.folder / STATES, result):
                each.unlink(missing_ok=True)
            kept_files.replace(path, [content])
        if not result.exists():
            waiting = functools.partial(self.work.pauses.of_worker, self.folder)
            given = {"job": str(path), "parent": os.getpid()}
            self.run(python, given, "worker", while_running=waiting)
        return kept_files.read_json(result, dict)

    def run(self, python: Path, job: dict[str, Any], program: str, **options: Any) -> None:
        """Run a program of edgespec/train in the tools' environment. options: as for
        `tools.run_worker`.
        """
        work, name = self.work, f"edgespec.train.{program}"
        tools.run_worker(
            python, job, self.folder, work.progress, work.times, name, advice=ADVICE, **options
        )
