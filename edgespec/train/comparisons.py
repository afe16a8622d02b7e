"""Drafts compared by the same answers: simulated and served, and before and after a change."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..backends.base import FileModel
from ..measure.gains import SHORT_CACHE
from .opening import opened
from .planning import curve_of
from .serving import DEPTH, ServedHead, interval, resampled, shares_of

_COPIES, _ROUNDS = 5, 3  # of each model in memory; times that a token of each is timed


@dataclass(frozen=True, slots=True)
class Agreement:
    """Accepted drafted tokens a step, served, as a multiple of what was simulated.

    n_answers: the answers with the same text with and without drafts, which alone are compared: in
    them both count the same places. ratio: over all places of a draft; low, high: its 95% interval
    from a bootstrap over answers (percentiles). by_place, intervals: the ratio and its interval for
    each place, None where the simulation accepted nothing.
    """

    n_answers: int
    ratio: float
    low: float
    high: float
    by_place: tuple[float | None, ...]
    intervals: tuple[tuple[float, float] | None, ...]


def agreement(simulated: Sequence[Sequence[int]], served: ServedHead) -> Agreement | None:
    """Compare what was counted in each answer; None if there is nothing to compare.

    simulated: the number of drafts, and how often the token at each place was accepted.
    """
    both = np.array([simulated, served.answers], float)[:, np.array(served.equal, bool)]
    if not both[..., 1:].sum((1, 2)).all():
        return None
    old, new = map(shares_of, both)
    with np.errstate(all="ignore"):
        ratios, places = new.sum(-1) / old.sum(-1), (new / old).T
    known = [each if np.isfinite(each[0]) else None for each in places]
    return Agreement(
        both.shape[1], float(ratios[0]), *interval(ratios),
        tuple(None if each is None else float(each[0]) for each in known),
        tuple(None if each is None else interval(each) for each in known),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PairedDraft:
    """The gain from changing a draft model.

    before: what was measured with the draft model as it was. difference: the acceptance length
    after the change minus that before it, and difference_low, difference_high: its 95% interval
    from a bootstrap over questions, which were the same (percentiles). token_s_before, token_s:
    the seconds of a drafted token. speed: how many times as fast drafts of DEPTH tokens are after
    the change, from the acceptance lengths and the measured times of target and draft model, and
    speed_low, speed_high: its interval, in which the questions and the timed copies vary.
    """

    before: ServedHead
    difference: float
    difference_low: float
    difference_high: float
    token_s_before: float
    token_s: float
    speed: float
    speed_low: float
    speed_high: float

    @property
    def sentence(self) -> str:
        """The result in one sentence, which may be that there is no gain."""
        if self.speed_low > 1:
            return f"It pays: drafting is {self._speed} times as fast as with the draft before."
        if self.speed_high < 1:
            return f"It does not pay: drafting is {self._speed} times as fast as before."
        return (
            f"No gain was shown: drafting is {self._speed} times as fast as before, "
            "and the interval includes 1."
        )

    @property
    def _speed(self) -> str:
        return f"{self.speed:.3f} ({self.speed_low:.3f}–{self.speed_high:.3f})"


def paired(
    target: Path, before: Path, after: Path, served_before: ServedHead, served: ServedHead
) -> PairedDraft:
    """Compare two draft models that were measured with the same questions."""
    with opened(target) as model:
        check = curve_of(model)(DEPTH + 1, SHORT_CACHE)
    times = _token_times((before, after))
    token_s = np.median(times[:, resampled(times.shape[1], seed=1)], axis=2)
    faster = (check + DEPTH * token_s[0]) / (check + DEPTH * token_s[1])
    old, new = (1 + shares_of(each.answers).sum(-1) for each in (served_before, served))
    differences, speeds = new - old, new / old * faster
    return PairedDraft(
        served_before, float(differences[0]), *interval(differences), float(token_s[0, 0]),
        float(token_s[1, 0]), float(speeds[0]), *interval(speeds),
    )  # fmt: skip


def _token_times(paths: Sequence[Path]) -> npt.NDArray[np.float64]:
    """Measure the seconds of a drafted token of some models in turns, [models, copies].

    One copy of a model in memory can be 8% slower than the next, depending on the memory that it
    got, so each is loaded _COPIES times, in turns as the first and as the last.
    """
    times = np.empty((len(paths), _COPIES, _ROUNDS + 1))
    for copy in range(_COPIES):
        order = range(len(paths))[:: -1 if copy % 2 else 1]
        with contextlib.ExitStack() as stack:
            models = {i: stack.enter_context(opened(paths[i])) for i in order}
            for number in range(_ROUNDS + 1):
                for i, model in models.items():
                    times[i, copy, number] = _token_s(model)
    return np.asarray(np.median(times[..., 1:], axis=2))  # the first round is slower


def _token_s(model: FileModel) -> float:
    """Measure the seconds of one token after a short context."""
    context = [5] * SHORT_CACHE
    model.truncate(0)
    model.decode(context, 0)
    began = time.perf_counter()
    model.decode(context[:1])
    return time.perf_counter() - began
