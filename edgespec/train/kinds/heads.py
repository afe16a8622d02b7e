"""What all kinds of heads share: features of the target, and training in the tools' environment."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ... import kept_files
from ...config import EngineConfig
from ...convert import tools
from ...convert.heads.conversion import convert_head
from ...costs.governed import GovernedModel
from ...costs.threads import governor_of
from ...device import LoadMeter
from ...engine import Engine
from ...loading.models import open_model
from ..answers import N_CTX
from ..earlier import EarlierHead, earlier_head
from ..features import extract
from ..planning import TrainingPlan, make_plan, matrix_flops
from ..shape import Shape
from ..work import ADVICE, Work
from .base import Kind, MadeDraft

WORKER = Path(__file__).parents[1] / "worker.py"
TARGET_WEIGHTS = Path(tools.__file__).with_name("heads") / "target_weights.py"


class HeadKind(Kind):
    """Makes heads that read hidden states of the target.

    A head is trained further from the folder `head` of an earlier training, if the options name
    one. network: the name of the file in edgespec/train with the head in torch. title: the name of
    the kind in cards. shape: the shape of the head, which is made by `new_shape`.
    """

    network: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        start = work.options.start
        self.start: EarlierHead | None = earlier_head(Path(start)) if start else None
        n_drafted = len(self.start.drafted) if self.start else work.options.vocabulary
        self.shape = self.new_shape(n_drafted)
        if self.start:
            self.start.check(self.shape)

    @abstractmethod
    def new_shape(self, n_drafted: int) -> Shape:
        """Return the shape of a head that can draft at most so many different tokens."""

    def begun_with(self) -> dict[str, Any]:
        """Return the identity of the earlier head, None if there is none."""
        return {"start": self.start and self.start.identity}

    def plan(self, engine: Engine) -> TrainingPlan:
        """Measure this device and return the plan."""
        o, work = self.work.options, self.work
        work.progress("measuring what this device needs and takes")
        return make_plan(
            engine, work.path, self.shape, work.folder, o.n_tokens, work.recordings.n_tokens,
            o.passes, 60 * o.minutes, o.depth, matrix_flops(),
        )  # fmt: skip

    def make(self, python: Path) -> MadeDraft:
        """Extract the features, train, and write the head."""
        self._extract()
        self._train(python)
        result = kept_files.read_json(self.folder / "result.json", dict)
        self._write_checkpoint()
        return MadeDraft(
            self.export(python), self.checkpoint, self.title, self.shape.license,
            self._facts(result),
            result["checked"]["acceptance"],
        )  # fmt: skip

    @property
    def checkpoint(self) -> Path:
        """The folder of the exported checkpoint."""
        return self.folder / "head"

    def _extract(self) -> None:
        """Write the target's hidden states for the recorded answers."""
        work = self.work
        work.progress("hidden states")
        meter = LoadMeter()
        with contextlib.closing(open_model(work.path, EngineConfig(n_ctx=N_CTX))) as model:
            governor = governor_of(model, [model], meter)  # fewer threads while others run
            governed = GovernedModel(model, governor) if governor else model
            extract(governed, self.shape.layers, work.recordings.done, work.folder, work.pauses)

    def _train(self, python: Path) -> None:
        """Train in the tools' environment, or go on with it."""
        job = json.dumps(self.job()).encode()
        path = self.folder / "job.json"
        if not path.exists() or path.read_bytes() != job:
            for name in ("state.pt", "result.json"):
                (self.folder / name).unlink(missing_ok=True)
            kept_files.replace(path, [job])
        if (self.folder / "result.json").exists():
            return
        work = self.work
        given = {"job": str(path), "parent": os.getpid()}
        tools.run_worker(
            python, given, self.folder, work.progress, work.times, WORKER, advice=ADVICE,
            beside=functools.partial(work.pauses.of_worker, self.folder),
        )  # fmt: skip

    def job(self) -> dict[str, Any]:
        """Return the worker's job."""
        o, work = self.work.options, self.work
        return {
            "task": "head_task", "network": self.network,
            "target": str(work.path.resolve()), "target_weights": str(TARGET_WEIGHTS),
            "rope": "pairs" if self.shape.paired else "halves", "sizes": self.shape.sizes(),
            "features": str(work.folder.resolve()), "folder": str(self.folder.resolve()),
            "drafted": self._drafted(),
            "n_conversations": len(work.recordings.done),  # more of them: it begins anew
            "start": str(self.start.path.resolve()) if self.start else "",
            "held_out": work.held_out, "checked": work.checked, "depth": o.depth,
            "n_steps": o.n_steps, "passes": o.passes, "seconds": 60 * o.minutes,
            "batch_tokens": o.batch_tokens, "rate": o.rate, "seed": o.seed,
        }  # fmt: skip

    def _drafted(self) -> list[int]:
        """Return the tokens that the head can draft: those of an earlier head, or the most frequent
        ones of the answers that are trained with, then those with the lowest ids, which
        vocabularies made first.
        """
        if self.start:
            return self.start.drafted
        answers, n = self.work.answers, self.shape.target.vocab_size
        counts = np.bincount(np.concatenate(answers), minlength=n)
        order = np.argsort(-counts, kind="stable")
        return sorted(order[: self.shape.n_drafted].tolist())

    def _write_checkpoint(self) -> None:
        """Write the folder that other engines load."""
        self.checkpoint.mkdir(exist_ok=True)
        shutil.copyfile(self.folder / "model.safetensors", self.checkpoint / "model.safetensors")
        config = json.dumps(self.shape.config(), indent=1)
        (self.checkpoint / "config.json").write_text(config, "utf-8")

    def export(self, python: Path) -> Path:
        """Write the checkpoint's head in a format that drafts, ONNX graphs; return its path."""
        folder = self.folder / "onnx"
        shutil.rmtree(folder, ignore_errors=True)
        return convert_head(
            self.checkpoint, self.work.path, folder, python=python, progress=self.work.progress
        ).path  # fmt: skip

    def _facts(self, result: Mapping[str, Any]) -> dict[str, str]:
        """Return what is special about the head, for its card."""
        shape = self.shape
        return {
            "reads": shape.reads,
            "drafts": f"{shape.n_drafted} of {shape.target.vocab_size} tokens",
            "weights": f"{shape.n_weights / 1e6:.1f} million",
            "training": f"{result['n_steps']} steps for drafts of {self.work.options.depth} "
            f"tokens, best at step {result['best_step']}",
        }
