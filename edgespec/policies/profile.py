"""What evaluations cost on this device: t(n), measured, never assumed flat or smooth."""

from __future__ import annotations

import statistics
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..interfaces import Model

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 17, 24, 32)


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
    step beside both models. created: Unix time.
    """

    target: Curve
    draft: Curve | None = None
    overhead: float = 0.0005
    created: float = 0.0


def measure(
    model: Model,
    *,
    widths: Sequence[int] = WIDTHS,
    lengths: Sequence[int] = (64,),
    repeats: int = 3,
    budget_s: float = 4.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Curve:
    """t(n) of a model whose cache may be thrown away. Widths are interleaved, medians of
    `repeats` are taken; what does not fit into `budget_s` seconds is left out, the widest and
    the longest first. Ends with an empty cache.
    """
    began = clock()
    widths = [w for w in widths if w <= min(model.capabilities.max_rows, model.n_ctx // 2)]
    table: dict[int, dict[int, list[float]]] = {}
    for length in lengths:
        if table and clock() - began > budget_s / 2:
            break
        table[length] = _measure_at(model, length, widths, repeats, began + budget_s, clock)
    model.truncate(0)
    kept = [w for w in widths if all(w in row for row in table.values())]
    rows = tuple(_rising([statistics.median(row[w]) for w in kept]) for row in table.values())
    return Curve(tuple(table), tuple(kept), rows)


def _measure_at(
    model: Model, length: int, widths: Sequence[int], repeats: int, end: float,
    clock: Callable[[], float],
) -> dict[int, list[float]]:  # fmt: skip
    length = min(length, model.n_ctx - max(widths) - 1)
    _fill(model, length)
    found: dict[int, list[float]] = {}
    for i in range(repeats + 1):  # the first round warms up what is built at first use
        for width in widths:
            if clock() > end and len(found) >= 2 and i:
                return found
            start = clock()
            model.decode([i + 1] * width, n_logits=width)
            seconds = clock() - start
            model.truncate(length)
            if i or width > 1:
                found.setdefault(width, []).append(seconds)
            if clock() > end and len(found) >= 4:
                break
    return found


def _fill(model: Model, length: int) -> None:
    model.truncate(0)
    while model.n_past < length:
        n = min(model.capabilities.max_batch, length - model.n_past)
        model.decode([1 + i % 50 for i in range(n)], n_logits=0)


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
