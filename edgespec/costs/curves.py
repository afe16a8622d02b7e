"""Curves of the seconds that evaluations take. They are not assumed to be flat or smooth."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

_WIDE, _LEAST_RISE = 16, 1.1  # on a CPU, 16 tokens take at least 1.1 times as long as one
_CALL_S = 0.005  # fixed seconds that a call of a small model may take, however few its tokens


@dataclass(frozen=True, slots=True)
class Curve:
    """The seconds of one evaluation on a device, by the number of its tokens and of cached tokens.

    seconds[i][j] is the time of widths[j] tokens after lengths[i] cached ones. A wider evaluation
    may take less time than a narrower one. Between measured points the curve is linear; beyond the
    last two points it keeps their slope, but never falls.
    """

    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]

    def __call__(self, n: int, n_past: int = 0) -> float:
        """Return the seconds of an evaluation of n tokens after n_past cached ones."""
        if len(self.lengths) == 1:
            return _between(self.widths, self.seconds[0], n)
        column = [_between(self.widths, row, n) for row in self.seconds]
        return max(_between(self.lengths, column, n_past), 0.5 * column[0])

    @property
    def is_flat(self) -> bool:
        """True if many tokens take hardly longer than one. No CPU is like that: something must have
        delayed the measurement of one token.

        Short times are ignored: most of such a time may be a call's fixed cost.
        """
        wide = next((i for i, n in enumerate(self.widths) if n >= _WIDE), None)
        if wide is None or self.widths[0] > 1:
            return False
        return any(row[0] > _CALL_S and row[wide] < _LEAST_RISE * row[0] for row in self.seconds)

    @property
    def guessed(self) -> tuple[tuple[bool, ...], ...]:
        """A table of bools, shaped like `seconds`: True for times that were not measured.

        Such a time equals, to the last digit, the time of the next width, or the time of the same
        width after the next shorter cache. It was copied because the measured time was implausible.
        """
        taken = [[a == b for a, b in itertools.pairwise(row)] + [False] for row in self.seconds]
        for shorter, longer, row in zip(self.seconds, self.seconds[1:], taken[1:], strict=False):
            row[:] = [old or a == b for old, a, b in zip(row, shorter, longer, strict=True)]
        return tuple(map(tuple, taken))

    def scaled(self, factor: float) -> Curve:
        """Return this curve with all times multiplied by `factor`."""
        rows = tuple(tuple(factor * s for s in row) for row in self.seconds)
        return Curve(self.lengths, self.widths, rows)


def least(curves: Sequence[Curve]) -> Curve:
    """Return the curve of the least times in several curves, at the widths that all of them have.

    The curves have the same lengths.
    """
    first, *others = curves
    widths = tuple(w for w in first.widths if all(w in other.widths for other in others))

    def least_s(i: int, width: int) -> float:
        return min(curve.seconds[i][curve.widths.index(width)] for curve in curves)

    seconds = tuple(tuple(least_s(i, w) for w in widths) for i in range(len(first.lengths)))
    return Curve(first.lengths, widths, seconds)


def joined(short: Curve, longer: Curve) -> Curve:
    """Return one curve with the lengths of two. If the time of a width is lower after the longer
    text, it is raised to the time after the short text.

    longer: a curve of one length, at some or all widths of `short`.
    """
    before = tuple(short(width) for width in longer.widths)
    after = tuple(map(max, before, longer.seconds[0]))
    return Curve((*short.lengths, *longer.lengths), longer.widths, (before, after))


def _between(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    """Return the value at x on the line through the two points around x, or the two nearest."""
    if len(xs) == 1:
        return ys[0] * max(1.0, x / xs[0])
    i = min(max(bisect_right(xs, x), 1), len(xs) - 1)
    x0, x1, y0, y1 = xs[i - 1], xs[i], ys[i - 1], ys[i]
    y = y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return max(y, y1) if x > x1 else y
