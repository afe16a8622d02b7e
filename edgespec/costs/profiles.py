"""Profiles of a device, and the folder in which measurements are kept between runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..device import cache_folder
from .curves import Curve

logger = logging.getLogger("edgespec.profile")


@dataclass(frozen=True, slots=True)
class Profile:
    """The costs of a target and its draft model on a device.

    draft: None without a draft model. overhead: Python's seconds a step beside both models.
    tapping: the target's seconds a step for the hidden states that a head reads. growing: what a
    guess of a head behind another takes, as a share of the first. kept_as: the fingerprints under
    which the curves are kept on disk.
    """

    target: Curve
    draft: Curve | None = None
    overhead: float = 0.0005
    kept_as: tuple[dict[str, Any], ...] = ()
    tapping: float = 0.0
    growing: float = 1.0

    def forget(self) -> None:
        """Delete the kept curves, so that the next load measures anew."""
        for fingerprint in self.kept_as:
            forget(fingerprint)


def folder() -> Path:
    """Return the folder in which measurements are kept."""
    return cache_folder("profiles")


def stored(fingerprint: Mapping[str, Any]) -> Curve | None:
    """Return the curve that was kept under this fingerprint, or None if there is none to read."""
    found = kept(fingerprint)
    try:
        lengths, widths, seconds = (found[key] for key in ("lengths", "widths", "seconds"))
        return Curve(tuple(lengths), tuple(widths), tuple(map(tuple, seconds)))
    except (KeyError, TypeError):
        return None


def store(fingerprint: Mapping[str, Any], curve: Curve) -> Path | None:
    """Keep a measured curve. Return its file, or None if nothing can be written."""
    return keep(fingerprint, asdict(curve))


def kept(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values kept under this fingerprint, or {} if there are none to read."""
    path = _path(fingerprint)
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if found["fingerprint"] == dict(fingerprint):
            return found
    except OSError:
        return {}
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    logger.warning("%s is damaged; what it held is learned or measured anew", path)
    return {}


def keep(fingerprint: Mapping[str, Any], values: Mapping[str, Any]) -> Path | None:
    """Keep values for JSON in the folder. Return their file, or None if nothing can be written."""
    path = _path(fingerprint)
    text = json.dumps({"fingerprint": dict(fingerprint), "created": time.time()} | dict(values))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        partial.write_text(text, "utf-8")
        partial.replace(path)
    except OSError as error:
        logger.info("the profile cannot be kept in %s: %s", path.parent, error)
        return None
    return path


def forget(fingerprint: Mapping[str, Any]) -> None:
    """Delete what was kept under this fingerprint: the next load measures anew."""
    with contextlib.suppress(OSError):
        _path(fingerprint).unlink()


def forget_all(matches: Callable[[Mapping[str, Any]], bool]) -> None:
    """Delete all that was kept under fingerprints that `matches` returns True for."""
    for path in folder().glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            if matches(json.loads(path.read_text("utf-8"))["fingerprint"]):
                path.unlink()


def _path(fingerprint: Mapping[str, Any]) -> Path:
    text = json.dumps(fingerprint, sort_keys=True)
    return folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
