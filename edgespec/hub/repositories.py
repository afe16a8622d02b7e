"""The choice of a model in a repository of the Hugging Face hub, and the list of its models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..backends.files import (
    has_folder,
    is_stage,
    nearest_projectors,
    quantisation_of,
    split_parts,
)
from ..errors import ModelNotFound
from . import hub_client
from .catalogue import HubSource, ModelFile

PREFERRED = ("Q4_K_M", "Q4_0", "Q5_K_M", "Q8_0")

_NO_MODELS = re.compile(  # projectors, statistics for quantising, heads not supported here
    r"mmproj|imatrix|(?:^|/)dspark-", re.I
)
_HEAD = re.compile(r"(?:^|/)(?:mtp|eagle\d?|dflash)-[^/]*\.gguf$", re.I)  # next to its target


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository, and which of its models is wanted, as `hf:org/repo:TAG@revision` says.

    tag: "" for any model.
    """

    repo: str
    tag: str = ""
    revision: str = "main"

    def __str__(self) -> str:
        return f"hf:{self.repo}" + (f":{self.tag}" if self.tag else "")


@dataclass(frozen=True, slots=True)
class RepositoryFile:
    """A GGUF of a repository: a model or its projector. file: its path, or the path of its first
    part. size: bytes.
    """

    file: str
    quantisation: str
    size: int

    def model_file(self, repository: Repository) -> ModelFile:
        """Return the `ModelFile` that `pull` fetches."""
        source = HubSource(repository.repo, self.file, repository.revision)
        size = None if split_parts(self.file) else self.size
        return ModelFile(self.file.rpartition("/")[2], "", (source,), size)


@dataclass(frozen=True, slots=True)
class Choice:
    """The models of a repository, smallest first, and the one that is taken. heads: the paths of
    trained heads for these models, which are separate files. projector: the file with which the
    taken model sees pictures, None if the repository has none for it.
    """

    repository: Repository
    models: list[RepositoryFile]
    taken: RepositoryFile
    heads: list[str]
    projector: RepositoryFile | None = None

    @property
    def reference(self) -> str:
        """The hf: reference of the taken file."""
        return self.named(self.taken.file)

    @property
    def wanted(self) -> list[str]:
        """The hf: references of the files to fetch. The model comes last: once it is on disk, its
        projector is too.
        """
        return [*([self.named(self.projector.file)] if self.projector else ()), self.reference]

    def named(self, file: str) -> str:
        """Return the hf: reference of a file of the repository."""
        of = self.repository
        at = "" if of.revision == "main" else f"@{of.revision}"
        return f"hf:{of.repo}/{file}{at}"


def chosen(repository: Repository, token: str | None = None) -> Choice:
    """Ask the hub for the models of a repository, and return them with the one that is taken.

    Raises ModelNotFound if there is none, DownloadError if the hub does not answer.
    """
    sizes = hub_client.sizes(repository.repo, repository.revision, token)
    models = _models_of(repository, sizes)
    heads = sorted(name for name in sizes if _HEAD.search(name))
    taken = choose(models, repository)
    return Choice(repository, models, taken, heads, _projector_of(taken, sizes))


def _projector_of(model: RepositoryFile, sizes: Mapping[str, int]) -> RepositoryFile | None:
    for name in nearest_projectors(model.file, sizes):
        return RepositoryFile(name, quantisation_of(name), sizes[name])
    return None


def _models_of(repository: Repository, sizes: Mapping[str, int]) -> list[RepositoryFile]:
    if models := models_in(sizes):
        return models
    if graphs := [name for name in sizes if has_folder(name) and not is_stage(name)][:3]:
        names = ", ".join(f"hf:{repository.repo}/{name}" for name in graphs)
        raise ModelNotFound(f"{repository.repo} has no GGUF file; name an ONNX graph: {names}")
    head = ""
    if "config.json" in sizes:
        head = f"; if it is a trained head, `edgespec pull hf:{repository.repo} --target MODEL` "
        head += "makes one that drafts for MODEL"
    raise ModelNotFound(
        f"{repository.repo} has no GGUF file; look for a repository of the same model whose name "
        f"ends in -GGUF{head}"
    )


def models_in(sizes: Mapping[str, int]) -> list[RepositoryFile]:
    """Return the complete GGUF models among files, smallest first. The parts of a split model count
    as one model; heads are left out.
    """
    models = []
    for name in filter(is_model, sizes):
        parts = split_parts(name) or [name]
        if name == parts[0] and all(part in sizes for part in parts):
            size = sum(sizes[part] for part in parts)
            models.append(RepositoryFile(name, quantisation_of(name), size))
    return sorted(models, key=lambda model: (model.size, model.file))


def is_model(name: str) -> bool:
    """Return True for a GGUF that is a model, not a head or another companion of a model."""
    return name.lower().endswith(".gguf") and not (_NO_MODELS.search(name) or _HEAD.search(name))


def choose(found: Iterable[RepositoryFile], repository: Repository) -> RepositoryFile:
    """Return the model that the repository's tag names, or the preferred one if there is no tag.

    Tags are compared in lower case. Q4 matches any Q4_…, of which the preferred one is returned.
    Raises ModelNotFound with the existing quantisations in its message.
    """
    found = sorted(found, key=_sense)
    tag = repository.tag.lower()
    if tag in ("", "latest"):
        return found[0]
    for fits in (
        lambda model: model.quantisation.lower() == tag,
        lambda model: model.quantisation.lower().startswith(tag),
        lambda model: tag in model.file.lower(),
    ):
        if fitting := [model for model in found if fits(model)]:
            return fitting[0]
    names = ", ".join(dict.fromkeys(model.quantisation or model.file for model in found))
    raise ModelNotFound(f"{repository.repo} has no {repository.tag}; it has: {names}")


def _sense(model: RepositoryFile) -> tuple[int, int]:
    """Return a sort key: first the quantisations in PREFERRED, then models of four bits or more,
    small ones first, then models of fewer bits.
    """
    if model.quantisation in PREFERRED:
        return PREFERRED.index(model.quantisation), model.size
    bits = re.search(r"\d+", model.quantisation)
    return (5, -model.size) if bits and int(bits[0]) < 4 else (4, model.size)
