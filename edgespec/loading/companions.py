"""Companions: the draft models and heads on this disk that can draft for a target, and the choice.

Only the headers of their files are read. Only one companion is loaded, because memory is scarce.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from .. import backends, hub, kept_files
from ..backends import files
from ..backends.heads import HeadFacts
from ..config import EngineConfig
from ..costs.profiles import Entry, keep, kept
from ..decoding.kept import draft_gain
from ..errors import EdgeSpecError
from ..hub.ladder import CPU_SHARE
from .models import Reference, has_own_head, is_head, is_installed
from .trained import NOTE as TRAINED
from .trained import trained_for

logger = logging.getLogger("edgespec.loading")

Role = Literal["head", "mtp", "sibling"]

PRIORS: Mapping[Role, float] = {"head": 1.3, "mtp": 1.2, "sibling": 1.1}
"""The gain expected of a companion that was never measured; it decides which is tried first."""

LEAST_GAIN = 1.02  # a smaller speedup does not count as a gain
ENOUGH = 8  # answers after which a measured gain counts
FORGOTTEN_S = 30 * 86400.0  # after this time, a companion without gain is tried again
_SIDECAR = re.compile(r"(mtp|eagle\d?|dflash)-(.+)\.gguf", re.I)


@dataclass(frozen=True, slots=True)
class Companion:
    """A head or draft model on this disk that can draft for a target. read_size: the bytes that it
    reads for each guess. trained_gain: its speedup as measured when it was trained here, else 0.
    """

    path: Path
    role: Role
    read_size: int
    trained_gain: float = 0.0


def found(reference: Reference, path: Path) -> list[Companion]:
    """Return a target's companions: heads, then MTP layers, then draft models, each best first.

    reference: the target as the user named it. Files that cannot be read are left out.
    """
    own, trained = [path] if has_own_head(path) else [], trained_for(path)
    each_head = itertools.chain(own, trained, _heads(reference, path))
    heads = [
        replace(companion, trained_gain=trained.get(each, 0.0))
        for each in each_head
        if (companion := _fitting(each, path))
    ]
    heads.sort(key=lambda companion: companion.role == "mtp")
    models = itertools.chain(filter(_is_model, trained), _siblings(reference, path))
    siblings = [
        Companion(each, "sibling", files.size_of(each), trained.get(each, 0.0)) for each in models
    ]
    return [*dict.fromkeys(heads), *siblings]


def ranked(
    candidates: Iterable[Companion],
    gains: Mapping[Path, float],
    most_bytes: float,
    *,
    needed: bool = False,
) -> list[Companion]:
    """Return the companions that are worth loading, best first.

    gains: the measured gains by path; all others get the prior of their role. most_bytes: most
    bytes that a guess may read, unless training has shown that the companion gains time. needed:
    True if the user asked for one, so none is left out.
    """

    def worth(companion: Companion) -> float:
        return gains.get(companion.path, PRIORS[companion.role])

    worthy = [
        each
        for each in candidates
        if needed
        or (
            worth(each) >= LEAST_GAIN
            and (each.read_size <= most_bytes or each.trained_gain >= LEAST_GAIN)
        )
    ]
    return sorted(worthy, key=worth, reverse=True)


def best(
    reference: Reference, path: Path, config: EngineConfig, *, needed: bool = False
) -> list[Path]:
    """Return the files of companions worth loading for a target with these settings, best first.

    needed: as in `ranked`.
    """
    candidates = found(reference, path)
    gains, most = measured(path, candidates), _most_bytes(path, config)
    return [each.path for each in ranked(candidates, gains, most, needed=needed)]


def measured(target: Path, candidates: Iterable[Companion]) -> dict[Path, float]:
    """Return the measured gains of companions over plain decoding, by path.

    A companion is left out if it was measured in fewer than ENOUGH answers, or if it had no gain
    when it was measured last, longer ago than FORGOTTEN_S.
    """
    gains = {}
    for each in candidates:
        gain, age_s = draft_gain(target, each.path)
        is_old = gain.value < LEAST_GAIN and age_s > FORGOTTEN_S
        if gain.answers >= ENOUGH and not is_old:
            gains[each.path] = gain.value
    return gains


def suggestion(reference: Reference, path: Path, config: EngineConfig) -> str:
    """Return the reference of a head or draft model that the catalogue suggests for a target; "" if
    there is none, or if a companion is already on this disk.
    """
    entry = _entry(reference)
    if entry is None or found(reference, path):
        return ""
    most, sizes = _most_bytes(path, config), {d: hub.entry(d).file().size for d in entry.drafts}
    small = [draft for draft, size in sizes.items() if size is not None and size <= most]
    return next(iter([*(head.reference for head in entry.heads), *small]), "")


def is_new(reference: Reference, suggested: str) -> bool:
    """Return True the first time that this suggestion is made for a target on this device."""
    key = {"kind": "suggested", "model": os.fspath(reference), "companion": suggested}
    if kept(key, Entry):
        return False
    keep(key, {})
    return True


def _most_bytes(path: Path, config: EngineConfig) -> float:
    """Return the most bytes that a guess may read: infinity on a GPU; on CPUs, where time is
    proportional to bytes, a fifth of the target's size.
    """
    if backends.of(path).gpus(config):
        return float("inf")
    return files.size_of(path) / CPU_SHARE


def _entry(reference: Reference) -> hub.Entry | None:
    """Return the catalogue entry that a reference names, None if it names none."""
    return hub.entries().get(os.fspath(reference).partition(":")[0].lower())


def entry_of(reference: Reference, path: Path) -> hub.Entry | None:
    """Return the catalogue entry that a reference names, or one that lists a file of the same name
    as `path`; None if there is neither.
    """
    entries = hub.entries().values()
    same = (e for e in entries if any(file.filename == files.label(path) for file in e.files))
    return _entry(reference) or next(same, None)


def fills_in(reference: Reference, path: Path) -> bool:
    """Return True if the catalogue says that a model was trained to fill in the middle of texts.
    A file of the same size as one of the catalogue's counts as that file.
    """
    size, entry = files.size_of(path), entry_of(reference, path)
    same = (e for e in hub.entries().values() if any(file.size == size for file in e.files))
    entry = entry or next(same, None)
    return bool(entry and entry.fills_in)


def _heads(reference: Reference, path: Path) -> Iterator[Path]:
    """Yield the files that look like heads by name or folder, those of the catalogue first."""
    entry = entry_of(reference, path)
    for head in entry.heads if entry else ():
        if head.file and (there := hub.resolve(head.reference)):
            yield there
    for folder in dict.fromkeys((hub.models_dir(), files.folder_of_neighbours(path))):
        for note in kept_files.matching(folder, f"*/{files.HEAD}"):
            if files.onnx_files(note.parent) and not (note.parent / TRAINED).exists():
                graph = files.only_graph(note.parent)
                if _is_for(graph, entry, path):
                    yield graph
    if not files.has_folder(path):
        yield from _sidecars(path)


def _sidecars(path: Path) -> list[Path]:
    """Return the head files in the folder of a GGUF, those named after it first."""
    beside = {other: match for other in kept_files.matching(path.parent, "*.gguf")
              if (match := _SIDECAR.fullmatch(other.name))}  # fmt: skip
    name = _plain(path.stem)
    return sorted(beside, key=lambda other: (_plain(beside[other][2]) != name, other.name))


def _plain(stem: str) -> str:
    """Return the name of a file in lower case and without its quantisation."""
    quantisation = files.quantisation_of(f"{stem}.gguf")
    return stem.lower().removesuffix(quantisation.lower()).rstrip("-._")


def _is_for(graph: Path, entry: hub.Entry | None, path: Path) -> bool:
    """Return True if a converted head was made for a target: the head names this target, or names
    none and comes from a checkpoint that the catalogue lists for the target.
    """
    facts = _facts(graph)
    if facts is None:
        return False
    if facts.target:
        return facts.target in (files.label(path), entry.name if entry else "")
    repos = [head.repo for head in entry.heads] if entry else []
    return any(facts.source in (repo.replace("/", "--"), repo.rpartition("/")[2]) for repo in repos)


def _facts(path: Path) -> HeadFacts | None:
    """Return the facts about the head in a file; None if it has no head or cannot be read."""
    try:
        backend = backends.of(path)
        if is_head(path) or has_own_head(path):
            return backend.head_facts(path)
    except (EdgeSpecError, OSError) as error:
        logger.info("%s is not drafted with: %s", path, error)
    return None


def _is_model(path: Path) -> bool:
    """Return True if a file that was trained here is a draft model."""
    try:
        return not is_head(path)
    except (EdgeSpecError, OSError) as error:
        logger.info("%s is not drafted with: %s", path, error)
        return False


def _fitting(path: Path, target: Path) -> Companion | None:
    """Return the head in a file as a Companion, None if its sizes do not fit the target."""
    facts = _facts(path)
    backend = backends.of(target)
    if facts is None:
        return None
    if why := facts.misfit(backend.target_sizes(target)):
        logger.info("%s is not drafted with: it %s", path, why)
        return None
    return Companion(path, "mtp" if facts.kind == "mtp" else "head", facts.read_size)


def _siblings(reference: Reference, path: Path) -> list[Path]:
    """Return the draft models that the catalogue suggests for a model and that are on this disk."""
    entry = _entry(reference)
    suggested = entry.drafts if entry else ()
    return [there for draft in suggested if (there := _file_like(path, draft))]


def _file_like(path: Path, name: str) -> Path | None:
    """Return a file of a catalogue model that is on this disk, None if there is none.

    A file in the same format as `path` is preferred: two engines in one process take more memory.
    """
    listed = hub.entry(name).files
    all_files = [hub.resolve(name, quantisation=file.quantisation) for file in listed]
    there = [file for file in all_files if file and is_installed(file)]
    alike = (file for file in there if backends.name_of(file) == backends.name_of(path))
    return next(alike, there[0] if there else None)
