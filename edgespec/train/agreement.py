"""The acceptance that was simulated in training, compared with the one that was served."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .serving import ServedHead, resampled


@dataclass(frozen=True, slots=True)
class Agreement:
    """Accepted drafted tokens a step, served, as a multiple of what was simulated.

    n_answers: the answers with the same text with and without drafts, which alone are compared: in
    them both count the same places. ratio: over all places of a draft; low, high: its 95% interval
    from a bootstrap over answers (percentiles). by_place: for each place, None where the simulation
    accepted nothing.
    """

    n_answers: int
    ratio: float
    low: float
    high: float
    by_place: tuple[float | None, ...]


def agreement(simulated: Sequence[Sequence[int]], served: ServedHead) -> Agreement | None:
    """Compare what was counted in each answer; None if there is nothing to compare.

    simulated: the number of drafts, and how often the token at each place was accepted.
    """
    both = np.array([simulated, served.answers], float)[:, np.array(served.equal, bool)]
    if not both[..., 1:].sum((1, 2)).all():
        return None
    n = both.shape[1]
    sums = both[:, resampled(n)].sum(2)  # [2, resamples, 1 + places]
    with np.errstate(all="ignore"):
        shares = sums[..., 1:] / sums[..., :1]
        ratios = shares[1].sum(-1) / shares[0].sum(-1)
        places = shares[1, 0] / shares[0, 0]
    low, high = np.percentile(ratios[np.isfinite(ratios)], (2.5, 97.5))
    by_place = tuple(float(each) if np.isfinite(each) else None for each in places)
    return Agreement(n, float(ratios[0]), float(low), float(high), by_place)
