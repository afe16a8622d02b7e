"""Repositories of the hub that hold the checkpoint of a trained head instead of a model.

A checkpoint is saved in our folder as it was published, without code, to be converted for its
target.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import kept_files
from ..backends.files import CHECKPOINTS, SUFFIXES, checkpoint_among, read_json
from ..backends.heads import KINDS
from ..errors import DownloadError, ModelError, ModelNotFound
from . import catalogue, hub_client
from .catalogue import HubSource, ModelFile
from .references import locate
from .repositories import Repository
from .storage import Progress, locked, models_dir, need_space
from .store import checkpoint_folder

CONFIG, _CARD = "config.json", "README.md"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_NAMES = re.compile("|".join(name for kind in KINDS.values() for name in kind.named), re.I)
_KEYS = [key for kind in KINDS.values() for key in kind.keys]


@dataclass(frozen=True, slots=True)
class HeadRepository:
    """A repository with the checkpoint of a trained head. files: the files to fetch, with their
    sizes in bytes.
    """

    repository: Repository
    files: Mapping[str, int]

    @property
    def size(self) -> int:
        """The total bytes to fetch."""
        return sum(self.files.values())

    @property
    def folder(self) -> Path:
        """The folder that the checkpoint is saved in."""
        return checkpoint_folder(self.repository)


def head_repository(reference: str, token: str | None = None) -> HeadRepository | None:
    """Ask the hub what to fetch from a repository that has a checkpoint, but no GGUF and no graph.
    Return None for any other reference.

    Raises ModelNotFound for an incomplete checkpoint, DownloadError if the hub does not answer.
    """
    repository = locate(reference, None)
    if not isinstance(repository, Repository) or repository.tag:
        return None
    sizes = hub_client.sizes(repository.repo, repository.revision, token)
    if any(name.lower().endswith(SUFFIXES) for name in sizes):
        return None
    weights = _weights(sizes)
    if CONFIG not in sizes:
        if not weights:
            return None
        raise ModelNotFound(
            f"{repository.repo} has weights ({weights[0]}) and no {CONFIG}, so nothing says what "
            "they are; give a repository with both"
        )
    if not weights:
        raise ModelNotFound(
            f"{repository.repo} has a {CONFIG} and no weights that can be read (one of "
            f"{', '.join(CHECKPOINTS)}); give a repository with both"
        )
    wanted = [CONFIG, *(name for name in (_CARD,) if name in sizes), *weights]
    return HeadRepository(repository, {name: sizes[name] for name in wanted})


def _weights(sizes: Mapping[str, int]) -> list[str]:
    """Return the names of the files with the weights, found as conversion finds them."""
    name = checkpoint_among([name for name in sizes if "/" not in name])
    shards = sorted(filter(_SHARD.fullmatch, sizes)) if name.endswith(".index.json") else []
    return [name, *shards] if name else []


def checkpoint_on_disk(reference: str) -> Path | None:
    """Return the folder of a head's checkpoint that was fetched, None if there is none."""
    place = locate(reference, None)
    if isinstance(place, Repository) and os.path.isfile(checkpoint_folder(place) / CONFIG):
        return checkpoint_folder(place)
    return None


def pull_head(
    head: HeadRepository, *, progress: Progress | None = None, token: str | None = None
) -> Path:
    """Return the folder of a head's checkpoint, which is fetched and checked if it is not there
    yet. An interrupted download is continued at the next call.

    Raises ModelNotFound for a checkpoint of a model, DownloadError if it cannot be fetched.
    """
    show = progress or (lambda *_: None)
    whole = ModelFile(head.folder.name, "", (HubSource(head.repository.repo, CONFIG),), head.size)
    try:
        with locked(whole, show) as final:
            if os.path.isfile(final / CONFIG):
                return final
            need_space(final.parent, head.size)
            partial = final.with_name(f".{final.name}.fetch")
            _fetch(head, partial, show, token)
            shutil.rmtree(partial / ".cache", ignore_errors=True)  # of the hub's client
            partial.replace(final)
    except OSError as error:
        why = kept_files.unwritten(error, models_dir(), "EDGESPEC_MODELS")
        raise DownloadError(f"{head.repository}: {why}") from error
    return final


def _fetch(head: HeadRepository, folder: Path, progress: Progress, token: str | None) -> None:
    """Fetch the files into a folder, the config first, which is checked."""
    of = head.repository
    for name, size in head.files.items():
        source = HubSource(of.repo, name, of.revision)
        file = ModelFile(name, "", (source,), size or None)
        hub_client.fetch(file, source, progress, token, folder)
        if name == CONFIG:
            try:
                _check_config(of, folder / CONFIG)
            except ModelNotFound:
                shutil.rmtree(folder, ignore_errors=True)
                raise


def _check_config(repository: Repository, path: Path) -> None:
    """Raise ModelNotFound if a config.json is not that of a head."""
    try:
        config = read_json(path)
    except ModelError as error:
        raise ModelNotFound(
            f"{repository.repo} holds no checkpoint of a head: {error}; look at its files"
        ) from None
    if not names_head(config):
        named = config.get("architectures")
        what = str(named[0]) if isinstance(named, list) and named else "nothing that is known"
        raise ModelNotFound(
            f"{repository.repo} holds a model ({what:.80}) and no trained head; pull a repository "
            "of the same model with GGUF files, or convert a folder of it with `edgespec convert`"
        )


def names_head(config: Mapping[str, Any]) -> bool:
    """Return True if a config.json describes a head: it says so, or it has a single layer."""
    named = [config.get("model_type"), config.get("speculators_model_type")]
    architectures = config.get("architectures")
    named += architectures if isinstance(architectures, list) else []
    if any(_NAMES.search(name) for name in named if isinstance(name, str)):
        return True
    return any(key in config for key in _KEYS) or config.get("num_hidden_layers") == 1


def targets_of(reference: str) -> list[str]:
    """Return the names of the catalogue's models that a head of the hub was trained for."""
    place = locate(reference, None)
    if not isinstance(place, Repository):
        return []
    entries = catalogue.load().values()
    return [e.name for e in entries if any(h.repo == place.repo and not h.file for h in e.heads)]
