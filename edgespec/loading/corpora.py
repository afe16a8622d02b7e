"""Documents to draft from, added for a model that is on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .. import backends
from ..backends import files
from ..corpus import collection
from ..corpus.collection import Made, Progress
from ..corpus.stored import Stored, clear, stored
from .models import Reference, model_path

__all__ = ["Made", "Stored", "add", "clear", "stored"]


def add(
    paths: Sequence[str | os.PathLike[str]],
    model: Reference,
    *,
    progress: Progress = lambda done, total: None,
) -> Made:
    """Add files and folders to draft from with this model, and with all of its vocabulary.

    Raises ConfigError for a path that is not there, for too much text and for none; ModelNotFound
    and the other ModelErrors.
    """
    path = model_path(model)
    with backends.of(path).vocabulary(path) as tokenizer:
        return collection.add(tokenizer, paths, model=files.label(path), progress=progress)
