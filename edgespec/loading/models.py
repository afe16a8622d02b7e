"""Opening the files of models on disk."""

from __future__ import annotations

import os
from pathlib import Path

from .. import backends, hub, named_files
from ..backends import files
from ..backends.base import FileModel
from ..config import EngineConfig
from ..device import set_priority
from ..errors import ConfigError, EngineMissing, ModelError, ModelNotFound
from . import library

Reference = str | os.PathLike[str]


def model_path(reference: Reference) -> Path:
    """Return the path of a model's file. Raises ModelNotFound if it is not on this disk."""
    path = hub.resolve(reference)
    if path is None:
        raise ModelNotFound(
            f"{os.fspath(reference)!r} is not on this disk; fetch it with "
            f"`edgespec pull {os.fspath(reference)}` or edgespec.hub.pull(…)"
        )
    return path


def target_path(reference: Reference) -> Path:
    """Return the path of the file of a model that is to answer. Raises ModelNotFound if it is not
    on this disk, and ConfigError for a trained head and for a draft model with fewer tokens.
    """
    path = model_path(reference)
    refuse_head(path)
    if files.has_folder(path) and files.find(path.parent, files.DRAFTED_IDS):
        raise ConfigError(
            f"{files.label(path)} is a draft model that knows only some tokens: name the model "
            "that it drafts for (-m), and this one as its draft (-md, or draft=… in Python)"
        )
    return path


def served_name(reference: str) -> str:
    """Return the name under which to serve a model: the reference itself, or for a path the file
    name without its suffix. A model that has a folder of its own is named after the folder.
    """
    path = Path(os.path.abspath(named_files.expanded(reference)))
    if not path.exists():
        return reference
    if files.has_folder(path):  # every graph is called model.onnx
        path = files.folders_of(path)[-1]
    return path.name if path.is_dir() else path.stem


def is_installed(path: Path) -> bool:
    """Return whether the engine for a file is installed."""
    try:
        backends.of(path)
    except EngineMissing:
        return False
    return True


def open_model(path: Path, config: EngineConfig) -> FileModel:
    """Open a model's file with its engine. Raises EngineMissing, ModelError and its subclasses;
    ConfigError for a priority that is not permitted, for a trained head or a projector, and for a
    model that the library of this process must not evaluate.
    """
    if files.is_projector(path.name):
        refuse_projector(path)
    refuse_head(path)
    library.check(path, config)
    set_priority(config.prio)
    model = backends.of(path).open_model(path, config)
    if not config.mmproj and (why := missing_projector(path)):
        model.why_blind = f"{files.label(path)} reads text alone: {why}"
    return model


def missing_projector(path: Path) -> str:
    """Return a sentence that says what fetches the projector of a model of the catalogue, "" for a
    model that has one and for other models.
    """
    if lacks := hub.missing_projector(path):
        name, eyes = lacks
        return f"its projector {eyes.filename} is missing; fetch it with `edgespec pull {name}`"
    return ""


def is_head(path: Path) -> bool:
    """Return True if a file is a trained head. Raises EngineMissing, ModelError and subclasses."""
    return backends.of(path).is_head(path)


def has_own_head(path: Path) -> bool:
    """Return True if a model's file also contains a head for the model; the head then has the same
    path. Returns False if the file cannot be read: opening it raises the error. Raises
    EngineMissing.
    """
    backend = backends.of(path)
    try:
        return backend.has_own_head(path)
    except ModelError:
        return False


def is_projector(path: Path) -> bool:
    """Return whether a file is a projector, with which a model sees. Raises ModelError or a
    subclass, and ConfigError for one that only hears.
    """
    return backends.of(path).projector_facts(path) is not None


def refuse_projector(path: Path) -> None:
    """Raise ConfigError if a file is a projector: a model is needed here."""
    if is_projector(path):
        raise ConfigError(
            f"{files.label(path)} is a projector, with which a model sees pictures: name that "
            "model (-m); the projector is found in its folder, or named as mmproj"
        )


def refuse_head(path: Path) -> None:
    """Raise ConfigError if a file is a trained head: a model is needed here."""
    if is_head(path):
        raise ConfigError(
            f"{files.label(path)} is a trained head, which only drafts for the model that it was "
            "made for: name that model (-m), and the head as its draft (-md, or draft=… in Python)"
        )
