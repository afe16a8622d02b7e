"""Curves of cost: the seconds of an evaluation, never assumed to be flat or smooth."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

_WIDE, _LEAST_RISE = 16, 1.1  # tokens that take at least so many times as long as one on a CPU
_CALL_S = 0.005  # that calls of small models may take without a token


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of one evaluation on a device, by its tokens and by the cached ones before them.

    seconds[i][j] is what widths[j] tokens take after lengths[i] cached ones: a wider evaluation may
    take less time. Between measured points it is linear; beyond the last ones it is as steep as
    before them, and never falls.
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
        """Return True if many tokens take hardly longer than one, as on no CPU: what measured one
        of them was held up by something else.

        Short times say nothing: most of them may be what each call costs, whatever it evaluates.
        """
        wide = next((i for i, n in enumerate(self.widths) if n >= _WIDE), None)
        if wide is None or self.widths[0] > 1:
            return False
        return any(row[0] > _CALL_S and row[wide] < _LEAST_RISE * row[0] for row in self.seconds)

    @property
    def guessed(self) -> tuple[tuple[bool, ...], ...]:
        """True for each time that equals that of the next width, or of the next shorter cache, to
        the last digit: it was copied from there, because the measured one was implausible.
        """
        taken = [[a == b for a, b in itertools.pairwise(row)] + [False] for row in self.seconds]
        for shorter, longer, row in zip(self.seconds, self.seconds[1:], taken[1:], strict=False):
            row[:] = [old or a == b for old, a, b in zip(row, shorter, longer, strict=True)]
        return tuple(map(tuple, taken))

    def scaled(self, factor: float) -> Curve:
        """Return the curve of a device that takes `factor` times as long."""
        rows = tuple(tuple(factor * s for s in row) for row in self.seconds)
        return Curve(self.lengths, self.widths, rows)


def least(curves: Sequence[Curve]) -> Curve:
    """Return the least times of curves over the same lengths, at widths that all of them have."""
    first, *others = curves
    widths = tuple(w for w in first.widths if all(w in other.widths for other in others))

    def least_s(i: int, width: int) -> float:
        return min(curve.seconds[i][curve.widths.index(width)] for curve in curves)

    seconds = tuple(tuple(least_s(i, w) for w in widths) for i in range(len(first.lengths)))
    return Curve(first.lengths, widths, seconds)


def joined(short: Curve, longer: Curve) -> Curve:
    """Return a curve of two lengths: more tokens before them take no less time.

    longer: of one length, with some of the widths of the shorter one, or all.
    """
    before = tuple(short(width) for width in longer.widths)
    after = tuple(map(max, before, longer.seconds[0]))
    return Curve((*short.lengths, *longer.lengths), longer.widths, (before, after))


def _between(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    """Return the value at x of the line through the two points around it, or nearest to it."""
    if len(xs) == 1:
        return ys[0] * max(1.0, x / xs[0])
    i = min(max(bisect_right(xs, x), 1), len(xs) - 1)
    x0, x1, y0, y1 = xs[i - 1], xs[i], ys[i - 1], ys[i]
    y = y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return max(y, y1) if x > x1 else y
