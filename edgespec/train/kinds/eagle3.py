"""EAGLE-3 heads: one layer of the target's own kind."""

from __future__ import annotations

from pathlib import Path

from ...backends import files
from . import register
from .base import WORKER
from .heads import HeadKind

GGUF_FILE = WORKER.with_name("gguf_file.py")


@register("eagle3", "a head that reads three layers of the target")
class Eagle3(HeadKind):
    """Makes a head of one layer of the target's own kind (arXiv 2503.01840)."""

    name, title = "eagle3", "EAGLE-3 head"

    def export(self, python: Path, precision: str) -> Path:
        """Write the head as a GGUF for a GGUF target, else as ONNX graphs; return its path."""
        work = self.work
        if files.has_folder(work.path):
            return super().export(python, precision)
        path = self.folder / f"eagle3-{work.path.stem}.gguf"
        job = {
            "checkpoint": str(self.checkpoint / "model.safetensors"), "target": str(work.path),
            "sizes": self.shape.sizes(), "rope_base": self.shape.rope_base,
            "layers": self.shape.layers, "n_ctx": self.shape.n_ctx_train, "type": precision,
            "name": f"EAGLE-3 head for {work.path.stem}", "license": self.shape.license,
            "out": str(path),
        }  # fmt: skip
        self.run(python, job, GGUF_FILE)
        return path
