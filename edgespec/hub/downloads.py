"""Downloads of models that are not on disk yet. Only complete, checked files are kept."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path

from msgspec.structs import replace

from .. import kept_files
from ..backends.files import EMBEDDING, VISION, is_decoder, projectors, stage
from ..errors import DownloadError, ModelNotFound
from . import hub_client, wheels
from .catalogue import HubSource, ModelFile, WheelSource
from .references import accept_another_version, locate, on_disk
from .repositories import Choice, Repository, chosen
from .storage import Progress, models_dir

log = logging.getLogger(__name__)

_Failures = list[tuple[HubSource | WheelSource, Exception]]


def pull(
    reference: str | os.PathLike[str],
    *,
    quantisation: str | None = None,
    progress: Progress | None = None,
    offline: bool = False,
    token: str | None = None,
    revision: str | None = None,
) -> Path:
    """Return the path of a model's file. If it is not on disk yet, fetch and check it first.

    A model comes with its projector, if the catalogue or the repository has one for it. A model of
    the catalogue that is on disk without one gets it, and so does an ONNX decoder that lacks the
    graphs next to it. The sources of a file are tried in order. progress: called from this thread,
    or from threads of the hub's client. offline: use no network. token, revision: used for the hub.
    Raises ModelNotFound for an unknown name or hub file, and DownloadError with the reason of each
    source if none worked.
    """
    file = locate(reference, quantisation)
    if isinstance(file, Path):
        return file
    if revision is not None:
        file = _at_revision(file, str(reference), revision)
    if (path := on_disk(file)) is not None:
        if offline or isinstance(file, Repository):
            return path
        return _completed(path, file, progress, token)
    if offline:
        return _instead(file, _offline(file, str(reference)))
    if isinstance(file, Repository):
        choice = chosen(file, token)
        for companion in choice.wanted[:-1]:
            pull(companion, progress=progress, token=token)
        file = choice.taken.model_file(file)
    elif file.projector and on_disk(file.projector) is None:
        _fetched(file.projector, progress, token)  # first: `resolve` asks for the model alone
    return _fetched(file, progress, token)


def _completed(path: Path, file: ModelFile, progress: Progress | None, token: str | None) -> Path:
    """Fetch what a model on disk lacks: its projector, or graphs next to its decoder. Return its
    path, which is another one if the hub has another revision by now.
    """
    has_graphs = all(stage(path, each) for each in (EMBEDDING, VISION))
    try:
        if file.projector and not projectors(path):
            folder = models_dir() if path.is_relative_to(models_dir()) else None
            _fetched(file.projector, progress, token, folder)
            return on_disk(file) or _fetched(file, progress, token)
        if is_decoder(path.name) and not has_graphs:
            return _fetched(file, progress, token)
    except DownloadError as error:
        log.warning("%s is used as it is; what it lacks was not fetched: %s", path, error)
    return path


def _fetched(
    file: ModelFile, progress: Progress | None, token: str | None, folder: Path | None = None
) -> Path:
    """Fetch a file from the first of its sources that works. Raises the errors of `pull`.

    folder: where to put it if it comes from the hub, None for the hub's cache.
    """
    failures: _Failures = []
    for source in file.sources:
        try:
            if isinstance(source, HubSource):
                return hub_client.fetch(file, source, progress or _silent, token, folder)
            return wheels.fetch(file, source, progress or _silent)
        except (ModelNotFound, DownloadError) as error:
            failures.append((source, error))
        except OSError as error:
            failures.append((source, DownloadError(_unwritten(source, error))))
        log.info("%s: %s", *failures[-1])
    return _instead(file, _all_failed(file, failures))


def _instead(file: ModelFile | Repository, error: Exception) -> Path:
    """Return a file on this disk that has the same name as the one that cannot be fetched. Raises
    `error` if there is none, or if the sources were reached but do not have the file.
    """
    may = isinstance(file, ModelFile) and isinstance(error, DownloadError)
    path = accept_another_version(file) if may else None  # type: ignore[arg-type]
    if path is None:
        raise error
    why = str(error).partition(". ")[0]
    log.warning("%s is used, though it differs from the catalogue's file: %s", path, why)
    return path


def need_folder(reference: str | os.PathLike[str]) -> None:
    """Raise DownloadError if `pull` would have to fetch a file and could not write it to any of its
    folders. It is meant to be called before a download is announced.
    """
    file = locate(reference, None)
    if isinstance(file, Path):
        return
    refusals = set()
    for source in file.sources if isinstance(file, ModelFile) else (None,):
        to_own = isinstance(source, WheelSource)
        folder = models_dir() if to_own else hub_client.cache_folder()
        refusals.add(kept_files.refusal_ahead(folder, "EDGESPEC_MODELS" if to_own else "HF_HOME"))
    if "" not in refusals:
        raise DownloadError(f"{reference} cannot be fetched: {'; '.join(sorted(refusals))}")


def _unwritten(source: HubSource | WheelSource, error: OSError) -> str:
    """Return the message for a fetched file that could not be written, with a remedy."""
    if isinstance(source, HubSource):
        return hub_client.unwritten(error)
    return kept_files.unwritten(error, models_dir(), "EDGESPEC_MODELS")


def choices(reference: str) -> Choice | None:
    """Ask the hub for the models of the repository that a reference names, and return them with the
    one that `pull` would take. Return None if the reference names no repository. Raises the
    errors of `pull`.
    """
    place = locate(reference, None)
    return chosen(place) if isinstance(place, Repository) else None


def _offline(file: ModelFile | Repository, reference: str) -> DownloadError:
    """Return the error for a file that is missing while offline."""
    other = ""
    if isinstance(file, ModelFile):
        other = f", or {_otherwise(file)}"
    name = str(file) if isinstance(file, Repository) else file.filename
    return DownloadError(
        f"{name} is not on this device and fetching is off (offline). Pull {reference!r} once "
        f"with a network{other}"
    )


def _silent(description: str, done: int, total: int | None) -> None:
    pass


def _at_revision(
    file: ModelFile | Repository, reference: str, revision: str
) -> ModelFile | Repository:
    """Return the file with its hub sources only, at the given revision."""
    if isinstance(file, Repository):
        return dataclasses.replace(file, revision=revision)
    hub = [source for source in file.sources if isinstance(source, HubSource)]
    if not hub:
        raise DownloadError(
            f"{reference!r} has no hub source, so there is no revision {revision!r} of it; "
            "leave the revision out"
        )
    if any(source.revision != revision for source in hub):
        # The catalogue's size and hash belong to a different revision, and so does a copy in our
        # own folder. An empty quantisation keeps `on_disk` from looking there.
        file = replace(file, quantisation="", size=None, sha256=None)
    if file.projector:
        file = replace(file, projector=_at_revision(file.projector, reference, revision))
    return replace(file, sources=tuple(replace(source, revision=revision) for source in hub))


def _all_failed(file: ModelFile, failures: _Failures) -> Exception:
    """Return the error for a file that no source delivered, with the reason of each source."""
    if len(failures) == 1:
        source, error = failures[0]
        is_hub = isinstance(source, HubSource)
        may_copy = is_hub and file.quantisation and isinstance(error, DownloadError)
        hint = f"; or {_otherwise(file)}" if file.has_folder or may_copy else ""
        what = str(source) if is_hub else f"{file.filename} from {source}"
        return type(error)(f"{what}: {error}{hint}")
    lines = "".join(f"\n  {source}: {error}" for source, error in failures)
    message = (
        f"{file.filename} could not be fetched; tried {len(failures)} sources:{lines}"
        f"\nMend one of these, or {_otherwise(file)}"
    )
    nowhere = all(isinstance(error, ModelNotFound) for _, error in failures)
    return ModelNotFound(message) if nowhere else DownloadError(message)


def _otherwise(file: ModelFile) -> str:
    """Return advice on how to get a file without a download."""
    if file.has_folder:
        return "make it from another file of the model with `edgespec convert`"
    return f"copy the file into {models_dir()}"
