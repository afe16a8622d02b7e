"""Measurements of what evaluations of a model cost on this device."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence

from ..backends.base import Head, Model, share_on_gpu
from ..backends.features import Blank
from ..errors import Aborted
from ..types import Abort, FinishReason
from .curves import Curve, joined

WIDTHS = (*range(1, 17), 17, 24, 32)
QUICK = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # widths that are measured even beyond the time budget
READING = (*range(1, 9), 16, 32, 128)  # widths of a draft model, which reads few tokens or many
BUDGET_S = 7.5  # a model of 1.5B on two cores is then evaluated once with every width
_LENGTH = 64  # tokens of a short text
LONG = 2048  # tokens: evaluations after such a long text show what each cached token costs
_LEAST_LONG = 512  # tokens: after fewer, the cost of cached tokens is lost in noise
_FILLING_S = 3.0  # most seconds to spend on reading the long text
_PATIENCE_S = 0.1  # seconds before an evaluation is stopped if stopping it empties the cache
_MOVED = 512  # tokens: if the text's length changes by more, a measurement begins anew
_NARROW = 8  # tokens: most evaluations have no more, so these widths are measured first
_ENOUGH, _MOST = 3, 5  # evaluations of each width: 3, or 5 if the least time of 3 was not repeated
_REPEATED = 1.07  # the least time was repeated if the second least is at most 1.07 times as long


def measure(
    model: Model,
    *,
    widths: Sequence[int] = WIDTHS,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
) -> Curve:
    """Measure t(n), the seconds of an evaluation of n tokens after a short text, and return it. The
    model's cache is empty afterwards.
    """
    fill(model, min(_LENGTH, model.n_ctx - max(fitting(model, widths))))
    measurement = Measurement(model, widths, budget_s=budget_s, clock=clock)
    measurement.run()
    model.truncate(0)
    return measurement.curve()


def long_length(model: Model, curve: Curve) -> int:
    """Return the number of cached tokens after which evaluations should be measured as well.

    Return 0 if the context is short, if filling the cache would take too long, or if times after a
    long text are known already. curve: the times measured so far, after fewer tokens.
    """
    if not model.capabilities.truncate or model.n_ctx < 2 * LONG or len(curve.lengths) > 1:
        return 0
    reading_s = curve(curve.widths[-1]) / curve.widths[-1]
    length = min(LONG, int(_FILLING_S / reading_s)) if reading_s else LONG
    return length if length >= max(_LEAST_LONG, 2 * curve.lengths[0]) else 0


def lengthened(
    model: Model,
    curve: Curve,
    abort: Abort = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Curve | None:
    """Measure times after `long_length` tokens and return the curve extended by them. Return None
    if `abort` stopped the measurement or the cache is too full. The cache is left as it was.
    """
    n_past = model.n_past
    try:
        _append(model, long_length(model, curve), abort)
        measurement = Measurement(model, curve.widths, budget_s=1.0, clock=clock)
        if not measurement.run(abort):
            return None
        return joined(curve, measurement.curve())
    except Aborted:
        return None
    finally:
        model.truncate(n_past)


def fitting(model: Model, widths: Sequence[int]) -> list[int]:
    """Return those widths that fit into one call of the model and leave half the context free."""
    return [w for w in widths if w <= model.n_ctx // 2 and w <= model.capabilities.max_batch]


def plans_anew(model: Model) -> bool:
    """Return True if the engine plans evaluations anew whenever their number of tokens changes, as
    engines do on GPUs. Planning takes about as long as an evaluation.
    """
    return share_on_gpu(model.placement) > 0


class Measurement:
    """Measures t(n) after the text in a model's cache, and leaves the cache as it is.

    First the widths in QUICK, and any wider ones, are measured once, however long that takes. More
    evaluations follow until they have taken `budget_s` seconds in all: each width is measured three
    times, or five times if its least time was not repeated. They take turns, as `_rank` says.

    A measurement can be interrupted after any evaluation and continued later, even if the cache
    then holds a different text of about the same length.
    """

    def __init__(
        self,
        model: Model,
        widths: Sequence[int],
        *,
        budget_s: float = BUDGET_S,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model = model
        self.widths = fitting(model, widths)
        self._replans = plans_anew(model)
        self._budget_s = budget_s
        self._clock = clock
        self._touched: bool
        self._spent_s: float
        self._begin()

    def run(self, abort: Abort = lambda: None) -> bool:
        """Measure until everything is known. Return False if `abort` stopped it or the cache is too
        full.
        """
        if not self._touched or abs(self.model.n_past - self._n_past) > _MOVED:
            self._begin()
        if self.model.n_past + max(self.widths) > self.model.n_ctx:
            return False
        with with_states(self.model):
            return self._run(abort)

    def _run(self, abort: Abort) -> bool:
        while width := self._next():
            if abort():
                return False
            try:
                seconds = self._timed(width, abort)
            except Aborted:
                return False
            if self._touched:
                self._times[width].append(seconds)
            self._touched = True
            self._spent_s += seconds
        return True

    def _timed(self, width: int, abort: Abort) -> float:
        """Return the seconds of an evaluation. If the engine plans anew, they include the time by
        which this evaluation delays a following one of one token.
        """
        seconds = timed(self.model, width, self._clock, abort)
        if not self._replans:
            return seconds
        after, steady = (timed(self.model, 1, self._clock, abort) for _ in range(2))
        return steady if width == 1 else seconds + max(0.0, after - steady)

    def curve(self) -> Curve:
        """Return the measured curve, once `run` has returned True."""
        times = {width: sorted(times) for width, times in self._times.items() if times}
        return Curve((self._n_past,), tuple(times), (_believable([*times.values()]),))

    def _next(self) -> int:
        """Return the width to be measured next, 0 if no time is left or all times are known."""
        if not self._touched:
            return max(self.widths)  # once, so that memory is allocated; the time is not counted
        whatever = (w for w in self.widths if w in QUICK or w > max(QUICK))
        if width := next((w for w in whatever if not self._times[w]), 0):
            return width
        if self._spent_s > self._budget_s:
            return 0
        wanted = [width for width in self.widths if self._wants(width)]
        return min(wanted, key=self._rank, default=0)

    def _rank(self, width: int) -> tuple[int, int]:
        """Return the place of a width among those to be measured: narrow ones until their least
        time was repeated, then those that were never measured, then narrow ones once more.
        """
        times = self._times[width]
        rank = 3 if times else 1
        if width <= _NARROW:
            rank = 2 if _is_repeated(sorted(times)) else 0
        return rank, len(times)

    def _wants(self, width: int) -> bool:
        times = self._times[width]
        return len(times) < (_ENOUGH if _is_repeated(sorted(times)) else _MOST)

    def _begin(self) -> None:
        """Begin anew, after the text that is cached now."""
        self._n_past = self.model.n_past
        self._times: dict[int, list[float]] = {width: [] for width in self.widths}
        self._touched, self._spent_s = False, 0.0


def timed(
    model: Model,
    width: int,
    clock: Callable[[], float] = time.perf_counter,
    abort: Abort | None = None,
) -> float:
    """Return the seconds of one evaluation of `width` tokens. The cache is left as it was.

    If the engine cannot truncate, an aborted evaluation empties the cache. So `abort` is then
    obeyed only after 0.1 s, in which most evaluations end by themselves. Raises Aborted.
    """
    model.limit_threads(0)  # a limit may still be set because other programs ran
    n_past, can_truncate = model.n_past, model.capabilities.truncate
    state = None if can_truncate else model.checkpoint()
    start = clock()

    def late() -> FinishReason | None:
        return abort() if abort and clock() - start > _PATIENCE_S else None

    try:
        n_logits = min(width, model.capabilities.max_rows)
        model.decode([0] * width, n_logits, abort if can_truncate else late)
    except BaseException:
        model.truncate(n_past if can_truncate else 0)
        raise
    seconds = clock() - start
    if can_truncate:
        model.truncate(n_past)
    else:
        model.restore(state)
    return seconds


def tapping_s(
    model: Model,
    layers: Sequence[int],
    abort: Abort = lambda: None,
    *,
    repeats: int = 6,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Return how many more seconds one token takes while these layers are tapped for hidden states,
    None if `abort` stopped the measurement. The cache and the taps are left as they were.
    """
    was_tapped = _is_tapped(model)
    least = {}
    try:
        for taps in (tuple(layers), ()):
            model.tap(taps)
            timed(model, 1, clock, abort)  # the first one after a change takes longer
            times = []
            for _ in range(repeats):
                if abort():
                    return None
                times.append(timed(model, 1, clock, abort))
            least[bool(taps)] = min(times)
    except Aborted:
        return None
    finally:
        model.tap(layers if was_tapped else ())
    return max(0.0, least[True] - least[False])


def growing_share(
    head: Head,
    abort: Abort = lambda: None,
    *,
    repeats: int = 6,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Return the time of each further guess of a head, as a share (at most 1) of the time of the
    first. The first takes longer, because the head also reads a token with hidden states for it.
    Return None if `abort` stopped the measurement. The cache is left as it was.
    """
    if head.max_depth == 1:
        return 1.0
    n_past, reading, guessing = head.n_past, [], []
    try:
        with with_states(head):
            for _ in range(repeats):
                if abort():
                    return None
                began = clock()
                head.decode([0], 1, abort)
                read = clock()
                head.grow([0], [-1], abort)
                reading.append(read - began)
                guessing.append(clock() - read)
                head.truncate(n_past)
    except Aborted:
        return None
    finally:
        head.truncate(n_past)
    return min(1.0, min(guessing) / max(min(reading), 1e-9))


def _is_tapped(model: Model) -> bool:
    """Return whether evaluations return hidden states now."""
    n_past, can_truncate = model.n_past, model.capabilities.truncate
    state = None if can_truncate else model.checkpoint()
    tapped = model.decode([0]).hidden is not None
    if can_truncate:
        model.truncate(n_past)
    else:
        model.restore(state)
    return tapped


@contextlib.contextmanager
def with_states(model: Model) -> Iterator[None]:
    """Give a head blank hidden states for all tokens, because reading them is part of its time."""
    blank = Blank(model.features) if isinstance(model, Head) else None
    if not (isinstance(model, Head) and blank and blank.size):
        yield
        return
    features, model.features = model.features, blank
    try:
        yield
    finally:
        model.features = features


def fill(model: Model, length: int, abort: Abort | None = None) -> None:
    """Empty the cache and fill it with `length` arbitrary tokens. Raises Aborted."""
    model.truncate(0)
    _append(model, length, abort)


def _append(model: Model, length: int, abort: Abort | None = None) -> None:
    """Append arbitrary tokens until the cache holds `length`. Raises Aborted."""
    while model.n_past < length:
        if abort and abort():
            raise Aborted("stopped while the cache was filled")
        n = min(model.capabilities.max_batch, length - model.n_past)
        model.decode([i % min(50, model.vocab_size) for i in range(n)], 0, abort)


def _believable(times: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the least time of each width, since other programs can only add to it.

    A wider evaluation may take less time than a narrower one, but a time below that of a smaller
    width is believed only if it was repeated: it may be a lucky measurement. A time above that of a
    larger width is replaced if it was measured several times and never repeated, because other
    programs have disturbed it. If there was time for one measurement, it is believed: if it is too
    long, rows are filled up to the next width (`Costs.target`). Only the first width is never
    filled. times: those of each width, sorted.
    """
    values, highest = [], 0.0
    for each in times:
        if _is_repeated(each):
            highest = max(highest, each[0])
        lucky = each[0] < highest and not _is_repeated(each)
        values.append(min(each[1:], default=highest) if lucky else each[0])
    for i in reversed(range(len(values) - 1)):
        if not _is_repeated(times[i]) and (i == 0 or len(times[i]) > 1):
            values[i] = min(values[i : i + 2])
    return tuple(values)


def _is_repeated(times: Sequence[float]) -> bool:
    """Return whether the second of the sorted times is close to the first, the least one."""
    return len(times) > 1 and times[1] <= _REPEATED * times[0]
