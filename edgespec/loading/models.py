"""Opening the models in files on disk."""

from __future__ import annotations

import os
from pathlib import Path

from .. import backends, hub
from ..backends.base import FileModel
from ..config import EngineConfig
from ..device import set_priority
from ..errors import EngineMissing, ModelNotFound

Reference = str | os.PathLike[str]


def model_path(reference: Reference) -> Path:
    """Return the file of a model that is on disk. Raises ModelNotFound."""
    path = hub.resolve(reference)
    if path is None:
        raise ModelNotFound(
            f"{os.fspath(reference)!r} is not on this disk; fetch it with "
            f"`edgespec pull {os.fspath(reference)}` or edgespec.hub.pull(…)"
        )
    return path


def is_installed(path: Path) -> bool:
    """Return whether the engine for a file is installed."""
    try:
        backends.of(path)
    except EngineMissing:
        return False
    return True


def open_model(path: Path, config: EngineConfig) -> FileModel:
    """Open a file with its engine. Raises EngineMissing, ModelError and its kinds; ConfigError for
    a priority that is not permitted.
    """
    set_priority(config.prio)
    return backends.of(path).open_model(path, config)
