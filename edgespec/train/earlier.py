"""A head of an earlier training that is trained further."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .. import kept_files
from ..backends import files
from ..convert.heads.tensors import read_safetensors
from ..errors import ConfigError, ModelError
from .shape import Shape

_OF_NO_WEIGHT = ("license", "max_position_embeddings", "draft_vocab_size")


@dataclass(frozen=True, slots=True)
class EarlierHead:
    """A checkpoint that `train_head` wrote.

    path: its model.safetensors. config: its config.json. drafted: the ids of the tokens that it can
    draft, ascending. identity: as `files.identity`, for JSON.
    """

    path: Path
    config: dict[str, Any]
    drafted: list[int]
    identity: list[Any]

    def check(self, shape: Shape) -> None:
        """Raise ConfigError unless it is a head of this shape."""
        for name, wanted in shape.config().items():
            if name not in _OF_NO_WEIGHT and self.config.get(name) != wanted:
                raise ConfigError(
                    f"the head in {self.path.parent} is for another target: its {name} is "
                    f"{self.config.get(name)!s:.40}, and this target needs {wanted}"
                )


def earlier_head(folder: Path) -> EarlierHead:
    """Return the head in the folder `head` of an earlier training. Raises ConfigError if there is
    none.
    """
    path = folder / "model.safetensors"
    try:
        config = kept_files.read_json(folder / "config.json", dict)
        tensors = read_safetensors(path)
    except (OSError, ValueError, ModelError) as error:
        raise ConfigError(
            f"{folder} has no head to train further: {error}; give the folder `head` of an earlier "
            "training"
        ) from None
    if "d2t" not in tensors:
        raise ConfigError(f"{path} has no d2t, which says which tokens the head drafts")
    offsets = tensors["d2t"].array().astype(np.int64)
    drafted = (offsets + np.arange(len(offsets))).tolist()
    return EarlierHead(path, config, drafted, list(files.identity(path)))
