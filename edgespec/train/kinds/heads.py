"""The part that all kinds of heads share: features of the target, training, and export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ...convert import tools
from ...convert.heads.conversion import HeadPrecision, convert_head
from ...costs.governed import GovernedModel
from ...costs.threads import governor_of
from ...device import LoadMeter
from ...engine import Engine
from ..earlier import EarlierHead, earlier_head
from ..features import extract
from ..opening import N_CTX, opened
from ..planning import TrainingPlan, make_plan, matrix_flops
from ..shape import Shape, shape_for
from ..work import Work
from .base import Kind, MadeDraft

TARGET_WEIGHTS = Path(tools.__file__).with_name("heads") / "target_weights.py"

_AS_GOOD = 0.98  # of the accepted tokens of a draft in float32
_IN_ONNX: dict[str, HeadPrecision] = {"F32": "fp32", "Q8_0": "int8", "Q4_0": "int4"}


class HeadKind(Kind):
    """Makes heads that read hidden states of the target.

    A head is trained further from the folder `head` of an earlier training, if the options name
    one. name: that of the file in edgespec/train with the head in torch, too. title: the name of
    the kind in cards. shape: the shape of the head.
    """

    rate = 2e-3
    title: ClassVar[str]
    shape_type: ClassVar[type[Shape]] = Shape

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        start = work.options.start
        self.start: EarlierHead | None = earlier_head(Path(start)) if start else None
        n_drafted = len(self.start.drafted) if self.start else work.options.vocabulary
        self.shape = shape_for(work.path, n_drafted, work.options.depth, self.shape_type)
        if self.start:
            self.start.check(self.shape)

    def begun_with(self) -> dict[str, Any]:
        """Return the identity of the earlier head, None if there is none."""
        return {"start": self.start and self.start.identity}

    def plan(self, engine: Engine) -> TrainingPlan:
        """Measure this device and return the plan."""
        self.work.progress("measuring what this device needs and takes")
        return make_plan(engine, self.work, self.shape, matrix_flops())

    def make(self, python: Path) -> MadeDraft:
        """Extract the features, train, and write the head."""
        self._extract()
        result = self.train(python, self.job())
        self._write_checkpoint()
        path = self.export(python, precision_of(result["precisions"]))
        return MadeDraft(
            path, self.checkpoint, self.title, self.shape.license, self._facts(result),
            result["checked"]["counts"],
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
        with opened(work.path, N_CTX) as model:
            governor = governor_of(model, [model], meter)  # fewer threads while others run
            governed = GovernedModel(model, governor) if governor else model
            extract(
                governed, self.shape.layers, work.recordings.done, work.folder, work.pauses,
                exact=work.checked,
            )  # fmt: skip

    def job(self) -> dict[str, Any]:
        """Return the worker's job."""
        work = self.work
        return self.loop_options() | {
            "task": "head_task", "network": self.name, "evaluate_start": False,
            "target": str(work.path.resolve()), "target_weights": str(TARGET_WEIGHTS),
            "rope": "pairs" if self.shape.paired else "halves", "sizes": self.shape.sizes(),
            "features": str(work.folder.resolve()), "drafted": self._drafted(),
            "start": str(self.start.path.resolve()) if self.start else "",
            "depth": work.options.depth,
        }  # fmt: skip

    def _drafted(self) -> list[int]:
        """Return the tokens that the head can draft: those of an earlier head, or else the most
        frequent ones.
        """
        if self.start:
            return self.start.drafted
        return self.work.frequent(self.shape.n_drafted, self.shape.target.vocab_size)

    def _write_checkpoint(self) -> None:
        """Write the folder that other engines load."""
        self.checkpoint.mkdir(exist_ok=True)
        shutil.copyfile(self.folder / "model.safetensors", self.checkpoint / "model.safetensors")
        config = json.dumps(self.shape.config(), indent=1)
        (self.checkpoint / "config.json").write_text(config, "utf-8")

    def export(self, python: Path, precision: str) -> Path:
        """Write the checkpoint's head in a format that drafts, ONNX graphs; return its path.

        precision: that of its matrices, by a GGUF's name.
        """
        folder = self.folder / "onnx"
        shutil.rmtree(folder, ignore_errors=True)
        return convert_head(
            self.checkpoint, self.work.path, folder, precision=_IN_ONNX[precision], python=python,
            progress=self.work.progress,
        ).path  # fmt: skip

    def _facts(self, result: Mapping[str, Any]) -> dict[str, str]:
        """Return what is special about the head, for its card."""
        shape, precisions = self.shape, result["precisions"]
        lengths = ", ".join(f"{length:.3f} in {name}" for name, length in precisions.items())
        return {
            "precision": f"{precision_of(precisions)}; acceptance length simulated {lengths}",
            "reads": shape.reads,
            "drafts": f"{shape.n_drafted} of {shape.target.vocab_size} tokens",
            "weights": f"{shape.n_weights / 1e6:.1f} million",
            "training": f"{result['n_steps']} steps for drafts of {self.work.options.depth} "
            f"tokens, best at step {result['best_step']}",
        }


def precision_of(lengths: Mapping[str, float]) -> str:
    """Return the smallest precision in which a head guesses about as well as in float32.

    lengths: the acceptance length in each precision, the largest precision first.
    """
    exact = lengths["F32"] - 1
    return [name for name, length in lengths.items() if length - 1 >= _AS_GOOD * exact][-1]
