"""Facts about the file of the model that a benchmark has measured."""

from __future__ import annotations

import hashlib
from typing import Any

from ..backends.base import FileModel
from ..backends.files import size_of
from ..engine import Engine


def file_of(engine: Engine) -> dict[str, Any]:
    """Return the size and checksum of the model's file, {} if the model is on another machine."""
    if not isinstance(engine.target, FileModel):
        return {}
    path = engine.target.path
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"model_bytes": size_of(path), "model_sha256": digest.hexdigest()}
