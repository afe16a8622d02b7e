"""Measure what evaluations of a model cost on this device."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from ..backends.base import FileModel, Model, ThreadLimited
from ..backends.files import label
from .curves import Curve
from .profiles import store, stored

logger = logging.getLogger("edgespec.profile")

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32)
QUICK = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
READING = (1, 2, 4, 8, 16, 32, 128)  # of a draft model: it mostly reads one token, or many


def curve_of(model: FileModel, widths: Sequence[int] = QUICK) -> Curve:
    """Return the costs of a model on this device, as kept on disk, or measured now and kept."""
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
    """Measure t(n), the seconds of evaluations of n tokens. The model's cache is empty afterwards.

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
    """Return the seconds of each width, the least of some rounds."""
    timed(model, max(widths), clock)  # memory that is touched at first use
    found: list[list[float]] = [[] for _ in widths]
    for i in range(repeats):
        for times, width in zip(found, widths, strict=True):
            if i and clock() > end:
                break
            times.append(timed(model, width, clock))
    return [min(times) for times in found]  # other programs only ever add to a time


def timed(model: Model, width: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of one evaluation of `width` tokens; the cache is as before."""
    if isinstance(model, ThreadLimited):
        model.limit_threads(0)  # which other programs may have left behind
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
    """Fill the cache with `length` tokens that mean nothing."""
    model.truncate(0)
    while model.n_past < length:
        n = min(model.capabilities.max_batch, length - model.n_past)
        model.decode([i % min(50, model.vocab_size) for i in range(n)], n_logits=0)


def _rising(seconds: Sequence[float]) -> tuple[float, ...]:
    """Return times that never fall: more tokens take no less time, and what says so is noise."""
    values = list(seconds)
    for i in range(len(values) - 1, 0, -1):
        values[i - 1] = min(values[i - 1], values[i])
    return tuple(values)
