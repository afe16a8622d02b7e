"""MLP speculators (arXiv 2404.19124), in the format of IBM's accelerators."""

from __future__ import annotations

from pathlib import Path

from ...errors import ModelError
from .checkpoint import HeadCheckpoint, take, with_vocabulary
from .config import Config
from .tensors import Tensor, Tensors


def recognises(tensors: Tensors, config: Config) -> bool:
    """Return True for the tensors of an MLP speculator."""
    return {"proj.0.weight", "emb.0.weight"} <= tensors.keys()


def read(path: Path, tensors: Tensors, config: Config) -> HeadCheckpoint:
    """Return the description of an MLP speculator. Raises ModelError.

    Weights that several depths share are listed for each depth.
    """
    if min(config.n_predict, config.inner_dim, config.emb_dim) < 1:
        raise ModelError(
            f"{path}: its config.json says no n_predict, emb_dim or inner_dim; put the "
            "speculator's own config.json beside it"
        )
    inner, vocab_size = config.inner_dim, config.vocab_size or tensors["emb.0.weight"].shape[0]
    n_rows = tensors["d2t"].shape[0] if "d2t" in tensors else vocab_size
    weights: dict[str, Tensor | None] = {}
    for i in range(config.n_predict):
        width = inner if i else config.emb_dim
        shapes = {
            "emb.weight": (vocab_size, inner), "head.weight": (n_rows, inner),
            "ln.weight": (inner,), "ln.bias": (inner,), "proj.weight": (inner, width),
        }  # fmt: skip
        for name, shape in shapes.items():
            part, kind = name.split(".")
            first = min(i, 1) if part == "proj" else 0  # the first reads the target's states
            own = f"{part}.{i}.{kind}"
            source = f"{part}.{first}.{kind}" if config.tie_weights and own not in tensors else own
            weights[own] = take(path, tensors, source, *shape)
    head = HeadCheckpoint(
        path, "mlp_speculator", {name: each for name, each in weights.items() if each},
        config.emb_dim, vocab_size, borrows=(), n_heads=config.n_predict, inner_size=inner,
        tied=config.tie_weights, scale_input=config.scale_input,
    )  # fmt: skip
    return with_vocabulary(head, tensors)
