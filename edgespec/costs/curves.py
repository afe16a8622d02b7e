"""Curves of cost: the seconds of an evaluation, never assumed to be flat or smooth."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of one evaluation on a device, by its tokens and by the cached ones before them.

    seconds[i][j] is what widths[j] tokens take behind lengths[i] cached ones. Between measured
    points it is linear; beyond the last ones it is as steep as before them.
    """

    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def __call__(self, n: int, n_past: int = 0) -> float:
        """Return the seconds of an evaluation of n tokens behind n_past cached ones."""
        if len(self.lengths) == 1:
            return _between(self.widths, self.seconds[0], n)
        column = [_between(self.widths, row, n) for row in self.seconds]
        return max(_between(self.lengths, column, n_past), 0.5 * column[0])

    def scaled(self, factor: float) -> Curve:
        """Return the curve of a device that takes `factor` times as long."""
        rows = tuple(tuple(factor * s for s in row) for row in self.seconds)
        return Curve(self.lengths, self.widths, rows)


def _between(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    """Return the value at x of the line through the two points around it, or nearest to it."""
    if len(xs) == 1:
        return ys[0] * max(1.0, x / xs[0])
    i = min(max(bisect_right(xs, x), 1), len(xs) - 1)
    x0, x1, y0, y1 = xs[i - 1], xs[i], ys[i - 1], ys[i]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
