"""The draft models and heads on this disk that may draft for a target, and which of them is taken.

Headers alone are read. One is loaded: memory is scarce.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .. import backends, hub, kept_files
from ..backends import files
from ..backends.heads import HeadFacts
from ..config import EngineConfig
from ..costs.profiles import Entry, keep, kept
from ..decoding.kept import draft_gain
from ..errors import EdgeSpecError
from ..hub.repositories import quantisation_of
from .models import Reference, has_own_head, is_head, is_installed

logger = logging.getLogger("edgespec.loading")

Role = Literal["head", "mtp", "sibling"]

PRIORS: Mapping[Role, float] = {"head": 1.3, "mtp": 1.2, "sibling": 1.1}
"""The gain that is expected of what was never measured: it only says what is tried first."""

LEAST_GAIN = 1.02  # less is no gain
ENOUGH = 8  # answers: fewer say little
FORGOTTEN_S = 30 * 86400.0  # after which what did not gain is tried again
_CPU_SHARE = 5  # on CPUs what reads more than a fifth of the target's bytes hardly pays
_SIDECAR = re.compile(r"(mtp|eagle\d?|dflash)-(.+)\.gguf", re.I)


@dataclass(frozen=True, slots=True)
class Companion:
    """Something on this disk that may draft for a target. read_size: bytes that a guess reads."""

    path: Path
    role: Role
    read_size: int


def found(reference: Reference, path: Path) -> list[Companion]:
    """Return what may draft for a target: heads, MTP layers, draft models, each best first.

    reference: the target as the user named it. What cannot be read is left out.
    """
    own = [path] if has_own_head(path) else []
    each_head = itertools.chain(own, _heads(reference, path))
    heads = [companion for each in each_head if (companion := _fitting(each, path))]
    heads.sort(key=lambda companion: companion.role == "mtp")
    siblings = [
        Companion(each, "sibling", files.size_of(each)) for each in _siblings(reference, path)
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

    gains: what was measured, by path; the others stand at the prior of their role. most_bytes: that
    a guess may read. needed: one is asked for, so none is left out.
    """

    def worth(companion: Companion) -> float:
        return gains.get(companion.path, PRIORS[companion.role])

    worthy = [
        each
        for each in candidates
        if needed or (each.read_size <= most_bytes and worth(each) >= LEAST_GAIN)
    ]
    return sorted(worthy, key=worth, reverse=True)


def best(
    reference: Reference, path: Path, config: EngineConfig, *, needed: bool = False
) -> list[Path]:
    """Return the files that may draft for a target with these settings, best first.

    needed: as in `ranked`.
    """
    candidates = found(reference, path)
    gains, most = measured(path, candidates), _most_bytes(path, config)
    return [each.path for each in ranked(candidates, gains, most, needed=needed)]


def measured(target: Path, candidates: Iterable[Companion]) -> dict[Path, float]:
    """Return the measured gains of companions over plain decoding, by path; none of one that was
    measured for a few answers only, or did not gain long ago.
    """
    gains = {}
    for each in candidates:
        gain, age_s = draft_gain(target, each.path)
        is_old = gain.value < LEAST_GAIN and age_s > FORGOTTEN_S
        if gain.answers >= ENOUGH and not is_old:
            gains[each.path] = gain.value
    return gains


def suggestion(reference: Reference, path: Path, config: EngineConfig) -> str:
    """Return the reference of a head or draft model that the catalogue knows for a target, "" where
    there is none or one is on this disk.
    """
    entry = _entry(reference)
    if entry is None or found(reference, path):
        return ""
    most, sizes = _most_bytes(path, config), {d: hub.entry(d).file().size for d in entry.drafts}
    small = [draft for draft, size in sizes.items() if size is not None and size <= most]
    return next(iter([*(head.reference for head in entry.heads), *small]), "")


def is_new(reference: Reference, suggested: str) -> bool:
    """Return True the first time that a suggestion is made for a target on this device."""
    key = {"kind": "suggested", "model": os.fspath(reference), "companion": suggested}
    if kept(key, Entry):
        return False
    keep(key, {})
    return True


def _most_bytes(path: Path, config: EngineConfig) -> float:
    """Return the bytes that a guess may read: any number on a GPU, a share of the target's on CPUs,
    where time goes with bytes.
    """
    if backends.of(path).gpus(config):
        return float("inf")
    return files.size_of(path) / _CPU_SHARE


def _entry(reference: Reference) -> hub.Entry | None:
    """Return the entry of the catalogue that a reference names."""
    return hub.entries().get(os.fspath(reference).partition(":")[0].lower())


def entry_of(reference: Reference, path: Path) -> hub.Entry | None:
    """Return the entry that a reference names, or one with a file of that name."""
    entries = hub.entries().values()
    same = (e for e in entries if any(file.filename == files.label(path) for file in e.files))
    return _entry(reference) or next(same, None)


def _heads(reference: Reference, path: Path) -> Iterator[Path]:
    """Yield files that are heads by their names or places, the catalogue's first."""
    entry = entry_of(reference, path)
    for head in entry.heads if entry else ():
        if head.file and (there := hub.resolve(head.reference)):
            yield there
    for folder in dict.fromkeys((hub.models_dir(), files.folder_of_neighbours(path))):
        for note in kept_files.matching(folder, f"*/{files.HEAD}"):
            if files.onnx_files(note.parent):
                graph = files.only_graph(note.parent)
                if _is_for(graph, entry, path):
                    yield graph
    if not files.has_folder(path):
        yield from _sidecars(path)


def _sidecars(path: Path) -> list[Path]:
    """Return the heads beside a GGUF in files of their own, those of its name first."""
    beside = {other: match for other in kept_files.matching(path.parent, "*.gguf")
              if (match := _SIDECAR.fullmatch(other.name))}  # fmt: skip
    name = _plain(path.stem)
    return sorted(beside, key=lambda other: (_plain(beside[other][2]) != name, other.name))


def _plain(stem: str) -> str:
    """Return the name of a file without its quantisation, in lower case."""
    quantisation = quantisation_of(f"{stem}.gguf")
    return stem.lower().removesuffix(quantisation.lower()).rstrip("-._")


def _is_for(graph: Path, entry: hub.Entry | None, path: Path) -> bool:
    """Return True if a converted head was made for a target: it notes its name, or comes from a
    checkpoint that the catalogue knows for it.
    """
    facts = _facts(graph)
    if facts is None:
        return False
    if facts.target:
        return facts.target in (files.label(path), entry.name if entry else "")
    repos = [head.repo for head in entry.heads] if entry else []
    return any(facts.source in (repo.replace("/", "--"), repo.rpartition("/")[2]) for repo in repos)


def _facts(path: Path) -> HeadFacts | None:
    """Return what a file says of a head; None where it is none, or cannot be read."""
    try:
        backend = backends.of(path)
        if is_head(path) or has_own_head(path):
            return backend.head_facts(path)
    except (EdgeSpecError, OSError) as error:
        logger.info("%s is not drafted with: %s", path, error)
    return None


def _fitting(path: Path, target: Path) -> Companion | None:
    """Return a head if its sizes are those of the target."""
    facts = _facts(path)
    backend = backends.of(target)
    if facts is None:
        return None
    if why := facts.misfit(backend.target_sizes(target)):
        logger.info("%s is not drafted with: it %s", path, why)
        return None
    return Companion(path, "mtp" if facts.kind == "mtp" else "head", facts.read_size)


def _siblings(reference: Reference, path: Path) -> list[Path]:
    """Return the files on disk of the draft models that the catalogue suggests for a model."""
    entry = _entry(reference)
    suggested = entry.drafts if entry else ()
    return [there for draft in suggested if (there := _file_like(path, draft))]


def _file_like(path: Path, name: str) -> Path | None:
    """Return the file of a catalogue model that is on disk, None if there is none.

    One in the same format as `path` is preferred: two engines in one process take more memory.
    """
    listed = hub.entry(name).files
    all_files = [hub.resolve(name, quantisation=file.quantisation) for file in listed]
    there = [file for file in all_files if file and is_installed(file)]
    alike = (file for file in there if backends.name_of(file) == backends.name_of(path))
    return next(alike, there[0] if there else None)
