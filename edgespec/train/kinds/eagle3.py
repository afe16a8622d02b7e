"""EAGLE-3 heads: one layer of the target's own kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...backends import files
from ..formats import WEIGHTS
from . import register
from .heads import HeadKind


@register("eagle3", "a head that reads three layers of the target")
class Eagle3(HeadKind):
    """Makes a head of one layer of the target's own kind (arXiv 2503.01840)."""

    name, title = "eagle3", "EAGLE-3 head"

    @property
    def reads(self) -> str:
        """The states of the target that the head reads, in words."""
        return f"the inputs of the layers {', '.join(map(str, self.shape.layers))}"

    @property
    def is_graph(self) -> bool:
        """True if the head is written as ONNX graphs, as for a target that is one."""
        return files.has_folder(self.work.path)

    def export(self, python: Path, precision: str) -> Path:
        """Write the head as a GGUF for a GGUF target, else as ONNX graphs; return its path."""
        work, shape = self.work, self.shape
        if self.is_graph:
            return super().export(python, precision)
        path = self.folder / f"eagle3-{work.path.stem}.gguf"
        job = {
            "checkpoint": str(self.checkpoint / WEIGHTS), "target": str(work.path),
            "sizes": shape.sizes._asdict(), "layers": shape.layers, "n_ctx": shape.n_ctx_train,
            "type": precision, "name": f"EAGLE-3 head for {work.path.stem}",
            "license": shape.license, "out": str(path),
        }  # fmt: skip
        self.run(python, job, "gguf_file")
        return path

    def config(self) -> dict[str, Any]:
        """Return the config.json of a checkpoint, with SafeAILab's fields."""
        shape, sizes = self.shape, self.shape.sizes
        return super().config() | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "target_hidden_size": sizes.hidden_size,
            "target_num_hidden_layers": shape.target.n_layer,
            "num_hidden_layers": 1,
            "num_attention_heads": sizes.n_heads,
            "num_key_value_heads": sizes.n_kv_heads,
            "head_dim": sizes.head_dim,
            "intermediate_size": sizes.feed_forward,
            "hidden_act": "silu",
            "rms_norm_eps": sizes.eps,
            "rope_theta": sizes.rope_base,
            "max_position_embeddings": shape.n_ctx_train,
            "tie_word_embeddings": False,
        }
