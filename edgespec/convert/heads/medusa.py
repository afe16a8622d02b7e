"""Medusa heads (arXiv 2401.10774): residual blocks and an output matrix for each token ahead."""

from __future__ import annotations

import re
from pathlib import Path

from ...errors import ModelError
from .checkpoint import HeadCheckpoint, take, with_vocabulary
from .config import Config
from .tensors import Tensor, Tensors


def recognises(tensors: Tensors, config: Config) -> bool:
    """Return True for the tensors of Medusa heads."""
    return any(re.fullmatch(r"\d+\.0\.linear\.weight", name) for name in tensors)


def read(path: Path, tensors: Tensors, config: Config) -> HeadCheckpoint:
    """Return the description of Medusa heads. Raises ModelError.

    The number of heads is counted in the tensors, because configs often give a different one.
    """
    blocks = [re.fullmatch(r"(\d+)\.(\d+)\.linear\.weight", name) for name in tensors]
    places = [(int(match[1]), int(match[2])) for match in blocks if match]
    n_heads, n_blocks = (max(each) + 1 for each in zip(*places, strict=True))
    if n_heads * n_blocks != len(places):
        raise ModelError(
            f"{path} has {len(places)} residual blocks, expected {n_blocks} in each of {n_heads} "
            "heads; fetch the checkpoint again"
        )
    hidden, n_rows = (_rows(path, tensors, f"0.{name}") for name in ("0.linear", n_blocks))
    vocab_size = config.vocab_size if "d2t" in tensors else n_rows
    weights: dict[str, Tensor | None] = {}
    for i in range(n_heads):
        for j in range(n_blocks):
            name = f"{i}.{j}.linear"
            weights[f"{name}.weight"] = take(path, tensors, f"{name}.weight", hidden, hidden)
            weights[f"{name}.bias"] = take(path, tensors, f"{name}.bias", hidden)
        name = f"{i}.{n_blocks}.weight"
        weights[f"{i}.lm_head.weight"] = take(path, tensors, name, n_rows, hidden)
    head = HeadCheckpoint(
        path, "medusa", {name: each for name, each in weights.items() if each}, hidden,
        vocab_size, borrows=(), n_heads=n_heads, n_blocks=n_blocks,
    )  # fmt: skip
    return with_vocabulary(head, tensors)


def _rows(path: Path, tensors: Tensors, name: str) -> int:
    tensor = take(path, tensors, f"{name}.weight", None, None)
    return tensor.shape[0] if tensor else 0
