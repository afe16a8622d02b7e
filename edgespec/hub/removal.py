"""Deletion of models that were fetched or converted, and of nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..backends.files import HEAD, SUFFIXES, has_folder, onnx_files, parts, split_parts
from ..errors import ModelNotFound
from . import hub_client
from .references import resolve
from .storage import models_dir
from .store import StoredModel, all_files, stored


def find(reference: str) -> StoredModel:
    """Return the model of a reference or path, if it was fetched or converted.

    Raises ModelNotFound otherwise; the message says what else would work.
    """
    there = stored()
    if named := [model for model in there if model.reference == reference]:
        return _ours(named[0])
    if (path := resolve(reference)) is None:
        others = [m.reference for m in there if m.reference.partition(":")[0] == reference]
        instead = f"; there is {', '.join(others)}" if others else ""
        raise ModelNotFound(f"{reference!r} is not on this disk{instead}")
    for model in all_files():
        if _place(model.path) == _place(path):
            return _ours(model)
    raise _yours(path)


def _ours(model: StoredModel) -> StoredModel:
    """Return a model that lies in our folder or the hub's cache. Raises ModelNotFound if it lies
    elsewhere and only a link there leads to it.
    """
    if model.path.is_relative_to(models_dir()):
        is_ours = Path(_place(model.path)).is_relative_to(os.path.realpath(models_dir()))
    else:
        is_ours = Path(_place(model.path)) in hub_client.own_files(model.path)
    if is_ours:
        return model
    raise _yours(Path(os.path.realpath(model.path)))


def _yours(path: Path) -> ModelNotFound:
    return ModelNotFound(
        f"{path} is neither in {models_dir()} nor in the hub's cache, so it is yours: delete it "
        "yourself"
    )


def _place(path: Path) -> str:
    """Return a file's path with all links in its folder resolved. If the file itself is a link, as
    in the hub's cache, that is not followed.
    """
    return os.path.join(os.path.realpath(path.parent), path.name)


def remove(model: StoredModel) -> int:
    """Delete a model that `find` returned, and return the bytes that this freed.

    In edgespec's own folder, the model's folder is deleted as well, unless another ONNX graph is
    left in it; a head's folder is always deleted. In the hub's cache, the model's files are
    deleted, but not content that another revision shares; its tokenizer and settings are deleted if
    nothing else of the repository is left. A projector, or the embedding of an ONNX model, is
    deleted with the last model that uses it.
    """
    files = _own_files(model)
    if not model.path.is_relative_to(models_dir()):
        freed = sum(map(_unlink, files))
        settings = hub_client.left_alone(model.path) if has_folder(model.path) else []
        return freed + sum(map(_unlink, settings))
    folder = models_dir() / model.path.relative_to(models_dir()).parts[0]
    is_only = onnx_files(folder) == [model.path] or os.path.isfile(folder / HEAD)
    whole = has_folder(model.path) and is_only
    files = [path for path in folder.rglob("*") if os.path.isfile(path)] if whole else files
    freed = sum(path.lstat().st_size for path in files)
    if whole:
        shutil.rmtree(folder)
    else:
        for path in files:
            path.unlink()
    return freed


def deleted_with(model: StoredModel) -> list[Path]:
    """Return the graphs and the projector that are deleted with a model."""
    named = [path for path in _own_files(model) if path.suffix in SUFFIXES]
    return [path for path in named if path != model.path and not split_parts(path.name)]


def _own_files(model: StoredModel) -> list[Path]:
    """Return the files of a model that no other model uses."""
    others = [path for other in stored() if other.path != model.path for path in parts(other.path)]
    seen_with = [part for path in _unused_without(model) for part in parts(path)]
    return [*(path for path in parts(model.path) if path not in others), *seen_with]


def _unused_without(model: StoredModel) -> list[Path]:
    """Return the projectors that no model uses once this one is deleted: its own, if it is no other
    model's, and all near it if no other model is near them.
    """
    others = [other.projectors for other in stored() if other.path != model.path]
    if not any(set(model.projectors) & set(theirs) for theirs in others):
        return list(model.projectors)
    used = {path for theirs in others for path in theirs[:1]}
    return [path for path in model.projectors[:1] if path not in used]


def _unlink(path: Path) -> int:
    """Delete a file of the hub's cache, and its content unless another revision shares it. Return
    the bytes that this freed.
    """
    own, content = hub_client.own_files(path), Path(os.path.realpath(path))
    size = content.stat().st_size if content in own else 0
    path.unlink()
    snapshots = next(folder for folder in path.parents if folder.name == "snapshots")
    if any(os.path.realpath(other) == str(content) for other in snapshots.rglob("*")):
        return 0
    for file in own[1:]:
        file.unlink(missing_ok=True)
    return size
