"""Metadata of a model, from its graph and the files next to it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from ...config import EngineConfig
from .. import files
from ..projectors import NONE, ProjectorFacts
from .companions import n_ctx_train, read
from .families import family_of
from .graph import Graph
from .model import OnnxModel


def inspect_metadata(path: Path) -> dict[str, str]:
    """Return a model's metadata under GGUF's keys, and facts about how the model runs here. This
    loads the weights, because the kernels' results for single tokens have to be measured.
    """
    config = read(path.parent, "config.json")
    model = OnnxModel(path, EngineConfig(n_ctx=64, mmproj=NONE))
    try:
        graph = model.graph
        return {
            "general.architecture": str(config.get("model_type", "unknown"))[:80],
            "general.name": path.parent.name,
            "quantisation": _precision(path, graph),
            "context_length": str(n_ctx_train(path.parent)),
            "vocab_size": str(model.vocab_size),
            "block_count": str(len(graph.past) // 2),
            "attention.head_count_kv": str(graph.heads),
            "attention.key_length": str(graph.head_size),
            "attention.value_length": str(graph.head_size),
            "element_size": str(np.dtype(graph.dtype).itemsize),
            "has_chat_template": str(bool(model.tokenizer.chat_template)),
            "blind": model.blind,
        } | {f"engine.{name}": value for name, value in model.placement.items()}
    finally:
        model.close()


def projector_facts(path: Path) -> ProjectorFacts | None:
    """Return the description of a vision encoder, None for another graph. Raises the errors of
    `family_of`.
    """
    if not files.is_projector(path.name):
        return None
    family = family_of(path.parent, EngineConfig().image_max_tokens)
    size = files.size_of(path)
    return ProjectorFacts(path, family.kind, size, most_tokens=family.most_tokens())


def _precision(path: Path, graph: Graph) -> str:
    """Return the precision that the converter noted. If there is no note, the file's name or the
    graph shows it.
    """
    if noted := read(path.parent, "edgespec.json").get("precision"):
        return str(noted)[:80]
    match = re.search(r"_(q4f16|q4|int8|uint8|fp16|bnb4|quantized)\.onnx$", path.name)
    return match[1] if match else "fp16" if graph.dtype is np.float16 else "unknown"
