"""Inspection of a trained head: its kind, its target, its licence and its size."""

from __future__ import annotations

import os

from .. import backends
from ..backends import files
from ..backends.heads import HeadFacts as HeadFacts
from ..errors import ConfigError
from ..loading.models import is_head, model_path


def inspect_head(reference: str | os.PathLike[str]) -> HeadFacts:
    """Return the facts that the files of a head state; nothing is loaded.

    Raises ModelError or a subclass, and ConfigError if the reference is a model.
    """
    path = model_path(reference)
    backend = backends.of(path)
    if not is_head(path):
        raise ConfigError(f"{files.label(path)} is a model and no trained head; use inspect()")
    return backend.head_facts(path)
