"""A small model that is trained on the target's own answers with the target's distributions
(DistillSpec, arXiv 2310.08461).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...backends import files
from ...convert.conversion import convert
from ...convert.heads.config import license_of, read_config
from ...convert.heads.fitting import target_sizes
from ...engine import Engine
from ...errors import ConfigError
from ..draft_models import checkpoint, draft_model, plan_of_draft, siblings
from ..features import extract_likeliest
from ..formats import ROW
from ..opening import N_CTX, opened
from ..planning import PASS_FLOPS, TRAINED_BYTES, Needs, TrainingPlan
from ..shape import known_of, weights_of_layer
from ..work import Work
from . import register
from .base import Kind, MadeDraft

_FLOAT = 4  # bytes
_PROBABILITIES = "probabilities"  # the stage in which the target reads the answers


@register("distill", "a small model of the same tokenizer")
class Distill(Kind):
    """Trains the last layers of a draft model.

    The options name it: a GGUF, whose weights are dequantised, or the folder of a checkpoint, which
    is written in the types of the GGUF on this disk with which a load of the target would draft, or
    else in 8 bits. By default it is that GGUF.
    """

    name, rate = "distill", 1e-4

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.checkpoint: Path | None = checkpoint(work)
        why = "its weights are trained, which a quantised graph does not have"
        self.start = self._file() if self.checkpoint else draft_model(work, ".gguf", why)

    def begun_with(self) -> dict[str, Any]:
        """Return the identity of the draft model."""
        weights = sorted(self.checkpoint.glob("*.safetensors")) if self.checkpoint else ()
        return {"start": files.identity(weights[0] if weights else self.start)}

    def prepare(self, python: Path) -> None:
        """Write a checkpoint as a file that drafts."""
        if self.checkpoint and not self.start.exists():
            self._write(self.checkpoint, self.start, python)

    def plan(self, engine: Engine) -> TrainingPlan:
        """Measure this device and return the plan."""
        o, work = self.work.options, self.work
        if not self.start.exists():
            raise ConfigError(
                f"the plan measures a draft model, and {self.checkpoint} is a checkpoint that no "
                "engine loads; leave --plan out"
            )
        sizes, known = target_sizes(self.start), known_of(self.start)
        d, longer = sizes.hidden_size, work.longer(engine.tokenizer)
        layer = weights_of_layer(known, d)
        n_layers = min(o.n_layers, sizes.n_layer)
        n_trained, n_output = n_layers * layer, sizes.vocab_size * d
        once = longer * 2 * (sizes.n_layer - n_layers) * layer  # the layers before those trained
        flops = longer * PASS_FLOPS * n_trained + 4 * n_output  # the output is not trained
        needs = Needs(
            int(o.n_tokens * ROW.itemsize + _FLOAT * (longer * o.n_tokens * d + 4 * n_trained)),
            TRAINED_BYTES * n_trained + _FLOAT * (sizes.n_layer * layer + 2 * n_output),
            _PROBABILITIES, flops, once, likeliest=True,
        )  # fmt: skip
        return plan_of_draft(engine, work, self.start, needs)

    def make(self, python: Path) -> MadeDraft:
        """Read the answers with the target, train, and write the draft model."""
        work, of_card = self.work, self.folder / "draft"
        work.progress(_PROBABILITIES)
        with opened(work.path, N_CTX) as model:
            extract_likeliest(model, work.recordings.done, work.folder, work.pauses)
        start = self.checkpoint or self.start
        out = self.folder / f"distilled-{start.name}"
        result = self.train(python, {
            "task": "distill_task", "start": str(start.resolve()),
            "n_layers": work.options.n_layers, "out": str(out.resolve()),
            "name": f"{self._name} for {work.path.stem}",
        })  # fmt: skip
        path = out
        if self.checkpoint or files.has_folder(work.path):
            path = self._file("distilled-")
            self._write(out, path, python)
        of_card.mkdir(exist_ok=True)
        return MadeDraft(
            path.parent if files.has_folder(path) else path, of_card, "Draft model",
            known_of(self.start)["license"], self._facts(result), result["checked"]["counts"],
            self.start,
        )  # fmt: skip

    @property
    def _name(self) -> str:
        return (self.checkpoint or self.start).name.removesuffix(".gguf")

    def _file(self, prefix: str = "") -> Path:
        """Return the path of the draft model as a file that drafts for the target."""
        name = f"{prefix}{self._name}"
        if files.has_folder(self.work.path):
            return self.folder / f"{name}-onnx" / "model.onnx"
        return self.folder / f"{name}.gguf"

    def _write(self, source: Path, path: Path, python: Path) -> None:
        """Write a GGUF as a graph, or a checkpoint as either."""
        work = self.work
        if files.has_folder(path):
            shutil.rmtree(path.parent, ignore_errors=True)
            convert(source, path.parent, python=python, progress=work.progress)
            return
        old = siblings(work, ".gguf")
        job = {
            "folder": str(source.resolve()), "vocabulary": str(work.path),
            "types": str(old[0]) if old else "",
            "license": license_of(source, read_config(source)), "name": source.name,
            "out": str(path.resolve()),
        }  # fmt: skip
        self.run(python, job, "model_file")

    def _facts(self, result: Mapping[str, Any]) -> dict[str, str]:
        """Return what is special about the draft model, for its card."""
        o, matrices = self.work.options, result["types"]
        types = {"old": "in the types of that file", "": "in those of the model before"}
        start = self.checkpoint or self.start
        return {
            "made from": f"{start.name}; its last {o.n_layers} layers were trained",
            "written": f"{types.get(matrices, f'as {matrices}')}; other weights as they were",
            "training": f"{result['n_steps']} steps, best at step {result['best_step']} (0 is the "
            "model as it was)",
        }
