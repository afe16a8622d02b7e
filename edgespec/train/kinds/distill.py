"""A small model that is trained on the target's own answers with the target's distributions
(DistillSpec, arXiv 2310.08461).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...backends import files
from ...config import EngineConfig
from ...convert import tools
from ...convert.conversion import convert
from ...convert.heads.fitting import target_sizes
from ...engine import Engine
from ...loading.models import open_model
from ..answers import N_CTX
from ..draft_models import PROBABILITIES, draft_model, make_plan
from ..likeliest import N_LIKELIEST, ROW, extract_likeliest
from ..planning import LONGER, PASS_FLOPS, TRAINED_BYTES, TrainingPlan, matrix_flops
from ..shape import of_gguf
from ..work import Work
from . import register
from .base import Kind, MadeDraft

_FLOAT = 4  # bytes


@register("distill", "a small model of the same tokenizer")
class Distill(Kind):
    """Trains the last layers of a draft model.

    The options name it, a GGUF, whose weights are dequantised. By default it is the GGUF on this
    disk with which a load of the target would draft.
    """

    name, rate = "distill", 1e-4

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        self.start: Path = draft_model(
            work, ".gguf", "its weights are trained, which a quantised graph does not have"
        )
        self._known = of_gguf(self.start)

    def begun_with(self) -> dict[str, Any]:
        """Return the identity of the draft model."""
        return {"start": files.identity(self.start)}

    def plan(self, engine: Engine) -> TrainingPlan:
        """Measure this device and return the plan."""
        o, work = self.work.options, self.work
        work.progress("measuring what this device needs and takes")
        sizes = target_sizes(self.start)
        d, n = sizes.hidden_size, LONGER * o.n_tokens
        attention = 2 * self._known["n_heads"] + 2 * self._known["n_kv_heads"]
        layer = d * self._known["head_dim"] * attention + 3 * d * self._known["feed_forward"]
        n_trained, n_output = min(o.n_layers, sizes.n_layer) * layer, sizes.vocab_size * d
        flops = PASS_FLOPS * n_trained * n + 4 * n_output * o.n_tokens  # the output is not trained
        flops = o.passes * flops + 2 * sizes.n_layer * layer * n
        training = 60 * o.minutes or flops / matrix_flops()
        disk = o.n_tokens * ROW.itemsize + _FLOAT * (n * d + 4 * n_trained)
        memory = TRAINED_BYTES * n_trained + _FLOAT * (sizes.n_layer * layer + 2 * n_output)
        stages = {PROBABILITIES: 0.0, "training": training}
        return make_plan(engine, work, self.start, stages, int(disk), memory)

    def make(self, python: Path) -> MadeDraft:
        """Read the answers with the target, train, and write the draft model."""
        work, checkpoint = self.work, self.folder / "draft"
        work.progress(PROBABILITIES)
        with contextlib.closing(open_model(work.path, EngineConfig(n_ctx=N_CTX))) as model:
            extract_likeliest(model, work.recordings.done, work.folder, work.pauses)
        out = self.folder / f"distilled-{self.start.stem}.gguf"
        result = self.train(python, self.loop_options() | {
            "task": "distill_task", "evaluate_start": True, "likeliest": str(work.folder.resolve()),
            "n_likeliest": N_LIKELIEST, "start": str(self.start.resolve()),
            "n_layers": work.options.n_layers, "converter": str(tools.WORKER),
            "out": str(out.resolve()), "name": f"{self.start.stem} for {work.path.stem}",
        })  # fmt: skip
        path = self._converted(out, python) if files.has_folder(work.path) else out
        checkpoint.mkdir(exist_ok=True)
        return MadeDraft(
            path, checkpoint, "Draft model", self._known["license"], self._facts(result),
            result["checked"]["acceptance"], self.start,
        )  # fmt: skip

    def _converted(self, gguf: Path, python: Path) -> Path:
        """Return the folder of the draft model as an ONNX graph, for a target that is one."""
        folder = self.folder / "onnx"
        shutil.rmtree(folder, ignore_errors=True)
        return convert(gguf, folder, python=python, progress=self.work.progress).path

    def _facts(self, result: Mapping[str, Any]) -> dict[str, str]:
        """Return what is special about the draft model, for its card."""
        o, matrices = self.work.options, result["types"]
        types = "in the types of that file" if matrices == "old" else f"as {matrices}"
        return {
            "made from": f"{self.start.name}; its last {o.n_layers} layers were trained",
            "written": f"{types}; the other weights as they were",
            "training": f"{result['n_steps']} steps, best at step {result['best_step']} (0 is the "
            "model as it was)",
        }
