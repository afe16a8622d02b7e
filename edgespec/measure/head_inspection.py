"""Inspection of a trained head: what it is, whose it is, and what it takes."""

from __future__ import annotations

import os

from .. import backends
from ..backends import files
from ..backends.heads import HeadFacts as HeadFacts
from ..errors import ConfigError
from ..loading.models import is_head, model_path


def inspect_head(reference: str | os.PathLike[str]) -> HeadFacts:
    """Return what the files of a head say; nothing is loaded.

    Raises ModelError and its kinds, and ConfigError for a model.
    """
    path = model_path(reference)
    backend = backends.of(path)
    if not is_head(path):
        raise ConfigError(f"{files.label(path)} is a model and no trained head; use inspect()")
    return backend.head_facts(path)
