"""Measurement of t(n) within a budget."""

from __future__ import annotations

from collections.abc import Sequence

from ..backends.base import FileModel
from ..costs.curves import Curve
from ..costs.measuring import Measurement, fill, timed
from ..errors import Aborted
from .budget import Budget

FEW = (1, 2, 4, 8, 16)  # widths to measure if there is little time
UNSTEADY = 0.3  # times of the same evaluation that differ by more than this share were disturbed
_MEASURING_S = 4.0  # seconds to measure; more if two evaluations of each width take longer


def measured_curve(
    model: FileModel, choices: Sequence[Sequence[int]], budget: Budget, length: int
) -> tuple[Curve, bool] | None:
    """Measure t(n) after `length` tokens, and one token again. Return t(n), and True if both times
    of one token were about equal. Return None if the budget has no time for that.

    choices: lists of widths; the first list that fits the time left is measured.
    """
    left = budget.left
    try:
        fill(model, min(length, model.n_ctx // 2), budget.abort)
        one = min(timed(model, 1, budget.clock, budget.abort) for _ in range(2))
        pilot = next((max(w) for w in choices if one * max(w) < left / 4), max(choices[-1]))
        pilot = min(pilot, model.n_ctx // 2, model.capabilities.max_batch)
        each = (timed(model, pilot, budget.clock, budget.abort) - one) / max(1, pilot - 1)
    except Aborted:
        return None

    def seconds(widths: Sequence[int]) -> float:
        """Estimate the seconds of measuring these widths once, and the widest twice."""
        return sum(max(one, one + each * (n - 1)) for n in (*widths, max(widths)))

    if (widths := next((w for w in choices if seconds(w) < budget.left), None)) is None:
        return None
    measuring_s = min(max(_MEASURING_S, 2 * seconds(widths)), 0.5 * left)
    measurement = Measurement(model, widths, budget_s=measuring_s, clock=budget.clock)
    if not measurement.run(budget.abort):
        return None
    model.truncate(0)
    curve = measurement.curve()
    return curve, abs(one / curve.seconds[0][0] - 1) <= UNSTEADY
