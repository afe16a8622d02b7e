"""Profiles of a device, and the folder in which measurements are saved between runs."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from .. import kept_files
from ..device import cache_folder
from .curves import Curve

logger = logging.getLogger("edgespec.profile")


@dataclass(frozen=True, slots=True)
class Profile:
    """The costs of a target and its draft model on a device.

    target, draft: their curves; draft is None without a draft model. overhead: the seconds of each
    step in addition to both models, spent in Python. tapping: the seconds that the target spends in
    each step on hidden states for a head. growing: the time of each further guess of a head, as a
    share of its first. kept_as: the fingerprints under which the curves are saved on disk. replans:
    the target evaluates one token more slowly directly after several tokens (see `plans_anew`). The
    curve's times of several tokens then include what the next single token loses.
    """

    target: Curve
    draft: Curve | None = None
    overhead: float = 0.0005
    kept_as: tuple[dict[str, Any], ...] = ()
    tapping: float = 0.0
    growing: float = 1.0
    replans: bool = False

    def forget(self) -> None:
        """Delete the saved curves, so that the next load measures anew."""
        for fingerprint in self.kept_as:
            forget(fingerprint)


def folder() -> Path:
    """Return the folder in which measurements are saved."""
    return cache_folder("profiles")


BESIDE_OTHERS = {"beside": "other programs"}  # in the fingerprint if other programs ran as well


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a saved file: values under a fingerprint. created: seconds since 1970."""

    fingerprint: dict[str, Any]
    created: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0


E = TypeVar("E", bound=Entry)
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e6)]


class _CurveEntry(Entry, frozen=True, kw_only=True):
    lengths: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=64)]
    widths: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=256)]
    seconds: tuple[tuple[Seconds, ...], ...]

    def __post_init__(self) -> None:
        shape = [len(self.widths)] * len(self.lengths)
        if list(map(len, self.seconds)) != shape:
            raise ValueError("seconds do not have a row for each length and a value for each width")
        for xs in (self.lengths, self.widths):
            if any(b <= a for a, b in itertools.pairwise(xs)):
                raise ValueError("lengths and widths do not grow")
        if not self.widths[0] or not min(map(min, self.seconds)):
            raise ValueError("a width or a time is 0")


def stored(fingerprint: Mapping[str, Any]) -> Curve | None:
    """Return the curve saved under this fingerprint, or None if none can be read."""
    entry = kept(fingerprint, _CurveEntry)
    return Curve(entry.lengths, entry.widths, entry.seconds) if entry else None


def store(fingerprint: Mapping[str, Any], curve: Curve) -> Path | None:
    """Save a measured curve. Return its file, or None if it cannot be written."""
    return keep(fingerprint, asdict(curve))


def curves() -> Iterator[tuple[dict[str, Any], Curve]]:
    """Yield every saved curve with its fingerprint. Unreadable files are left out."""
    for path in kept_files.matching(folder(), "*.json"):
        with contextlib.suppress(OSError, ValueError):
            entry = kept_files.read_json(path, _CurveEntry)
            yield entry.fingerprint, Curve(entry.lengths, entry.widths, entry.seconds)


def kept(fingerprint: Mapping[str, Any], kind: type[E]) -> E | None:
    """Return the values saved under this fingerprint, or None if none can be read."""

    def read(path: Path) -> E:
        entry = kept_files.read_json(path, kind)
        if entry.fingerprint != dict(fingerprint):
            raise ValueError("it is for another fingerprint")
        return entry

    return kept_files.load(_path(fingerprint), read, "what it held is learned or measured anew")


def keep(fingerprint: Mapping[str, Any], values: Mapping[str, Any]) -> Path | None:
    """Save values as JSON in the folder. Return their file, or None if it cannot be written."""
    path = _path(fingerprint)
    text = json.dumps({"fingerprint": dict(fingerprint), "created": time.time()} | dict(values))
    try:
        kept_files.replace(path, [text.encode()])
    except OSError as error:
        logger.info("the profile cannot be kept in %s: %s", path.parent, error)
        return None
    return path


def forget(fingerprint: Mapping[str, Any]) -> None:
    """Delete the file of this fingerprint, so that the next load measures anew."""
    with contextlib.suppress(OSError):
        _path(fingerprint).unlink()


def forget_all(matches: Callable[[Mapping[str, Any]], bool]) -> int:
    """Delete the files of all fingerprints for which `matches` returns True; return how many."""
    n = 0
    for path in kept_files.matching(folder(), "*.json"):
        with contextlib.suppress(OSError, ValueError):
            if matches(kept_files.read_json(path, Entry).fingerprint):
                path.unlink()
                n += 1
    return n


def _path(fingerprint: Mapping[str, Any]) -> Path:
    text = json.dumps(fingerprint, sort_keys=True)
    return folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
