"""Opens models for a training. None of them opens a projector, because nothing is shown to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..backends.base import FileModel
from ..backends.projectors import NONE
from ..config import EngineConfig
from ..engine import Engine
from ..loading.load import load
from ..loading.models import model_path, open_model

N_CTX = 1024  # of the target while it answers; a conversation is no longer


@contextlib.contextmanager
def opened(path: Path, n_ctx: int = 512, **options: Any) -> Iterator[FileModel]:
    """Open a model: a file, or the folder of a graph. options: further fields of EngineConfig."""
    config = EngineConfig(n_ctx=n_ctx, mmproj=NONE, **options)
    with contextlib.closing(open_model(model_path(path), config)) as model:
        yield model


def loaded(target: Path, draft: Path | None, *, n_slots: int = 1, **spec: Any) -> Engine:
    """Load a target with its draft. spec: fields of SpeculativeConfig."""
    return load(
        target, draft, speculative_config=spec, n_slots=n_slots, n_ctx=N_CTX, mmproj=NONE,
        prompt_cache="off",
    )  # fmt: skip
