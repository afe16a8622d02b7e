"""The models on this disk: those in our folder, and those in the hub's cache."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import kept_files
from ..backends.files import (
    GRAPHS,
    HEAD,
    SUFFIXES,
    format_of,
    has_folder,
    is_stage,
    label,
    only_graph,
    parts,
    projectors,
    quantisation_of,
    single_files,
    size_of,
    split_parts,
)
from ..errors import ModelNotFound
from . import catalogue, hub_client
from .catalogue import HubSource
from .repositories import Repository, RepositoryFile, choose, is_model
from .storage import models_dir


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model that was fetched or converted.

    reference: the name by which a user loads it. quantisation: "" if neither the catalogue nor the
    file name tells it. size: bytes, with those of its projector. projectors: the files with which
    it can see pictures, the one that is used first.
    """

    reference: str
    path: Path
    quantisation: str
    size: int
    projectors: tuple[Path, ...] = ()

    @property
    def format(self) -> str:
        """The file format and the number format of the weights."""
        name = format_of(self.path).name
        return f"{name} {self.quantisation.removeprefix(f'{name}-')}".rstrip()


def stored() -> list[StoredModel]:
    """Return the complete models on this disk, sorted by reference. A projector counts as a part of
    its models, and is listed by itself only if there is none. No network is used.
    """
    models = all_files()
    parts_of_others = {path for model in models for path in model.projectors}
    return [model for model in models if model.path not in parts_of_others]


def all_files() -> list[StoredModel]:
    """Return the complete models, heads and projectors on this disk, sorted by reference."""
    by_path = {model.path: model for model in (*_own(), *_cached())}
    return sorted(by_path.values(), key=lambda model: model.reference)


def cached_model(repository: Repository) -> Path | None:
    """Return the model of a repository in the hub's cache, the preferred one of several; None if
    there is none.
    """
    models = {
        RepositoryFile(file, quantisation_of(file), size_of(path)): path
        for repo, revisions, file, path in _in_cache()
        if repo == repository.repo and repository.revision in revisions and is_model(file)
    }
    with contextlib.suppress(ModelNotFound):  # none has that tag
        return models[choose(models, repository)] if models else None
    return None


def checkpoint_folder(repository: Repository) -> Path:
    """Return the subfolder of our folder for a repository's checkpoint."""
    at = "" if repository.revision == "main" else f"@{repository.revision}"
    return models_dir() / f"{repository.repo.replace('/', '--')}{at}".replace(":", "_")


def converted(repository: Repository) -> Path | None:
    """Return the graph of the head that was converted from a repository's checkpoint, the newest of
    several; None if there is none.
    """
    if repository.tag:
        return None
    name = checkpoint_folder(repository).name
    made = [
        f
        for f in kept_files.matching(models_dir(), "*-head-*")
        if f.name.startswith(f"{name}-head-")
    ]
    there = [folder for folder in made if os.path.isfile(folder / HEAD)]
    newest = max(there, key=lambda folder: (folder / HEAD).stat().st_mtime, default=None)
    return only_graph(newest) if newest else None


def _own() -> Iterator[StoredModel]:
    """Yield the models in our folder and in the folders in it, such as heads that were trained."""
    folder, names = models_dir(), _names()
    inside = [
        path
        for sub in kept_files.matching(folder, "[!.]*/")
        if not sub.name.endswith(".partial")
        for path in (*single_files(sub), *_graphs(sub))
    ]
    for path in (*single_files(folder), *inside):
        if _is_whole(path):
            name, quantisation = names.get(path.relative_to(folder).as_posix(), ("", ""))
            yield _model(name or str(path), path, quantisation)


def _graphs(folder: Path) -> list[Path]:
    """Return the graphs in a folder. If it holds a head, whose graphs belong together, return only
    one of them.
    """
    graphs = kept_files.matching(folder, *GRAPHS)
    return [only_graph(folder)] if graphs and os.path.isfile(folder / HEAD) else graphs


def _cached() -> Iterator[StoredModel]:
    """Yield the models in the hub's cache."""
    names = _names()
    for repo, revisions, file, path in _in_cache():
        name, quantisation = names.get(f"{repo}/{file}", ("", ""))
        at = "" if "main" in revisions else f"@{min(revisions, key=len)}"
        yield _model((not at and name) or f"hf:{repo}/{file}{at}", path, quantisation)


def _model(name: str, path: Path, quantisation: str) -> StoredModel:
    seen_with = tuple(projectors(path)) if is_model(path.name) or has_folder(path) else ()
    size = sum(map(size_of, (path, *seen_with[:1])))
    return StoredModel(name, path, quantisation or quantisation_of(label(path)), size, seen_with)


def _is_whole(path: Path) -> bool:
    """Return True for a file that is a model, or the first part of a complete split model."""
    if not os.path.isfile(path) or is_stage(path.name):
        return False
    names = split_parts(path.name)
    return not names or (path.name == names[0] and len(parts(path)) == len(names))


def _names() -> dict[str, tuple[str, str]]:
    """Return the name and quantisation of each file in the catalogue, by its path in our folder and
    by its path at the hub.
    """
    by_path: dict[str, tuple[str, str]] = {}
    for entry in catalogue.load().values():
        for file in entry.files:
            name = entry.reference(file)
            places = [file.filename]
            places += [f"{s.repo}/{s.file}" for s in file.sources if isinstance(s, HubSource)]
            by_path |= dict.fromkeys(places, (name, file.quantisation))
    return by_path


def _in_cache() -> Iterator[tuple[str, set[str], str, Path]]:
    """Yield (repository, revisions, name, path) of each complete model in the hub's cache."""
    from huggingface_hub import constants

    for folder in kept_files.matching(Path(constants.HF_HUB_CACHE), "models--*"):
        repo = folder.name.removeprefix("models--").replace("--", "/")
        refs = hub_client.refs(folder)
        for revision in _revisions(folder):
            names = {revision.name, *(ref for ref, at in refs.items() if at == revision.name)}
            for path in kept_files.matching(revision, *(f"**/*{suffix}" for suffix in SUFFIXES)):
                if _is_whole(path):
                    yield repo, names, path.relative_to(revision).as_posix(), path


def _revisions(folder: Path) -> Iterator[Path]:
    """Yield the folder of each revision of a repository in the hub's cache."""
    for snapshots in kept_files.matching(folder, "snapshots"):
        yield from kept_files.matching(snapshots, "[!.]*")
