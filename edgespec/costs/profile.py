"""What evaluations cost on this device: t(n), measured, never assumed flat or smooth."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..backends.base import FileModel, Model
from ..backends.files import label
from ..device import cache_folder

logger = logging.getLogger("edgespec.profile")

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32)
QUICK = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
READING = (1, 2, 4, 8, 16, 32, 128)  # of a draft model: it mostly reads one token, or many


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of one evaluation: seconds[i][j] for widths[j] tokens behind lengths[i] cached
    ones. Between measured points linear; beyond the last ones as steep as before them.
    """

    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def __call__(self, n: int, n_past: int = 0) -> float:
        """Seconds for n tokens behind n_past."""
        if len(self.lengths) == 1:
            return _between(self.widths, self.seconds[0], n)
        column = [_between(self.widths, row, n) for row in self.seconds]
        return max(_between(self.lengths, column, n_past), 0.5 * column[0])

    def scaled(self, factor: float) -> Curve:
        """The same shape on a device that takes `factor` times as long."""
        rows = tuple(tuple(factor * s for s in row) for row in self.seconds)
        return Curve(self.lengths, self.widths, rows)


@dataclass(frozen=True, slots=True)
class Profile:
    """A pair on a device. draft None: there is no draft model. overhead: Python's seconds a
    step beside both models. kept_as: fingerprints under which the curves are kept.
    """

    target: Curve
    draft: Curve | None = None
    overhead: float = 0.0005
    kept_as: tuple[dict[str, Any], ...] = ()

    def forget(self) -> None:
        """It turned out wrong: the next load measures anew."""
        for fingerprint in self.kept_as:
            forget(fingerprint)


def folder() -> Path:
    """Where measured curves are kept."""
    return cache_folder("profiles")


def stored(fingerprint: Mapping[str, Any]) -> Curve | None:
    """What was measured of exactly this, if anything readable was."""
    found = kept(fingerprint)
    try:
        lengths, widths, seconds = (found[key] for key in ("lengths", "widths", "seconds"))
        return Curve(tuple(lengths), tuple(widths), tuple(map(tuple, seconds)))
    except (KeyError, TypeError):
        return None


def store(fingerprint: Mapping[str, Any], curve: Curve) -> Path | None:
    """Keep a measured curve; None where nothing can be written."""
    return keep(fingerprint, asdict(curve))


def kept(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """What was kept under exactly this, {} where nothing readable was."""
    try:
        found = json.loads(_path(fingerprint).read_text("utf-8"))
        return found if found["fingerprint"] == dict(fingerprint) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def keep(fingerprint: Mapping[str, Any], values: Mapping[str, Any]) -> Path | None:
    """Write values for JSON into the folder; None where nothing can be written."""
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
    """A curve that turned out wrong: it is measured anew next time."""
    with contextlib.suppress(OSError):
        _path(fingerprint).unlink()


def _path(fingerprint: Mapping[str, Any]) -> Path:
    text = json.dumps(fingerprint, sort_keys=True)
    return folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def curve_of(model: FileModel, widths: Sequence[int] = QUICK) -> Curve:
    """What evaluations of a model cost here, as kept for this device or measured now and kept."""
    fingerprint = model.fingerprint()
    curve = stored(fingerprint)
    if curve is None:
        logger.info("measuring %s on this device", label(model.path))
        curve = measure(model, widths=widths)
        store(fingerprint, curve)
    return curve


def measure(
    model: Model,
    *,
    widths: Sequence[int] = WIDTHS,
    lengths: Sequence[int] = (64,),
    repeats: int = 3,
    budget_s: float = 4.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Curve:
    """t(n) of a model whose cache may be thrown away; ends with an empty cache.

    Widths are measured in turns, so that a device that slows down does so for all of them, and
    the least of at most `repeats` rounds is taken. Of the first length every width is measured
    once whatever it takes; more rounds and lengths only within `budget_s` seconds.
    """
    end = clock() + budget_s
    widths = [w for w in widths if w <= model.n_ctx // 2 and w <= model.capabilities.max_batch]
    rows = []
    lengths = sorted({min(length, model.n_ctx - max(widths)) for length in lengths})
    for i, length in enumerate(lengths):
        if i and clock() > end:
            break
        fill(model, length)
        rows.append(_rising(_rounds(model, widths, repeats, end, clock)))
    model.truncate(0)
    return Curve(tuple(lengths[: len(rows)]), tuple(widths), tuple(rows))


def _rounds(
    model: Model, widths: Sequence[int], repeats: int, end: float, clock: Callable[[], float]
) -> list[float]:
    timed(model, max(widths), clock)  # memory that is touched at first use
    found: list[list[float]] = [[] for _ in widths]
    for i in range(repeats):
        for times, width in zip(found, widths, strict=True):
            if i and clock() > end:
                break
            times.append(timed(model, width, clock))
    return [min(times) for times in found]  # other programs only ever add to a time


def timed(model: Model, width: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one evaluation of `width` tokens; the cache is as before."""
    n_past = model.n_past
    state = None if model.capabilities.truncate else model.checkpoint()
    start = clock()
    model.decode([0] * width, n_logits=min(width, model.capabilities.max_rows))
    seconds = clock() - start
    if state is None:
        model.truncate(n_past)
    else:
        model.restore(state)
    return seconds


def fill(model: Model, length: int) -> None:
    """A cache of `length` tokens that mean nothing."""
    model.truncate(0)
    while model.n_past < length:
        n = min(model.capabilities.max_batch, length - model.n_past)
        model.decode([i % min(50, model.vocab_size) for i in range(n)], n_logits=0)


def _rising(seconds: Sequence[float]) -> tuple[float, ...]:
    """More tokens never take less time: what says otherwise is noise."""
    values = list(seconds)
    for i in range(len(values) - 1, 0, -1):
        values[i - 1] = min(values[i - 1], values[i])
    return tuple(values)


def _between(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    if len(xs) == 1:
        return ys[0] * max(1.0, x / xs[0])
    i = min(max(bisect_right(xs, x), 1), len(xs) - 1)
    x0, x1, y0, y1 = xs[i - 1], xs[i], ys[i - 1], ys[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
