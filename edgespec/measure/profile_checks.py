"""Checks of what a model's evaluations cost: the saved profile, and the cost of wide ones."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .. import backends
from ..backends import files
from ..backends.base import FileModel
from ..costs.curves import Curve
from ..costs.kept_curves import is_impossible, kept_curve
from ..costs.measuring import QUICK, fill, timed
from ..errors import Aborted
from .budget import Budget
from .curve import FEW, measured_curve
from .findings import VERDICT, Finding
from .gains import SHORT_CACHE, break_even, conditions, verdict
from .inspection import ModelInfo

STALE = 0.25  # a profile that is wrong by more than this share is stale
STEEP = 0.5  # each further token of an evaluation should cost at most this share of the first
_CHEAPLY_WIDENED = ("F16", "BF16", "F32", "Q8_0")


def check_profile(
    model: FileModel, widths: Sequence[int], budget: Budget, tune: str
) -> tuple[Finding, Curve | None]:
    """Return (finding, t(n)). The finding says whether the saved profile exists and is right.

    t(n) is measured now if the saved one is missing or wrong; it is None if there is no time for
    that. tune: the command that tunes the model and its draft.
    """
    name, kept = files.label(model.path), kept_curve(model)
    try:
        now = _token_s(model, budget)
    except Aborted:
        text = f"{name}: there was no time to measure it; a longer --budget may have"
        return Finding("note", "profile", text), kept
    if kept is None:
        text = f"{name}: nothing is kept for these settings; a token takes {1e3 * now:.1f} ms now"
        remedy = f"run {tune}; until then costs are measured after the first answer"
        return Finding("note", "profile", text, remedy), _measured(model, widths, budget)
    then = kept(1, SHORT_CACHE)
    text = f"{name}: a token took {1e3 * then:.1f} ms then, {1e3 * now:.1f} ms now"
    if abs(now / then - 1) > STALE:
        remedy = f"run {tune} while nothing else is running"
        finding = Finding("problem", "profile", f"stale: {text}", remedy)
        return finding, _measured(model, widths, budget)
    return Finding("ok", "profile", f"fresh: {text}"), kept


def _token_s(model: FileModel, budget: Budget) -> float:
    """Return the median seconds of one token. Raises Aborted."""
    fill(model, min(SHORT_CACHE, model.n_ctx // 2), budget.abort)
    times = [timed(model, 1, budget.clock, budget.abort) for _ in range(6)]
    return statistics.median(times[1:])


def _measured(model: FileModel, widths: Sequence[int], budget: Budget) -> Curve | None:
    measured = measured_curve(model, [widths, QUICK, FEW], budget, SHORT_CACHE)
    return None if measured is None or is_impossible(model, measured[0]) else measured[0]


def check_verdict(curve: Curve | None) -> Finding:
    """Return the finding that says in one sentence whether speculation is faster here."""
    if curve is None:
        text = "Whether speculation pays here could not be measured in time."
        return Finding("note", VERDICT, text, "give a longer --budget, or stop other programs")
    pays, text = verdict(curve)
    return Finding("ok" if pays else "note", VERDICT, text)


def check_widening(curve: Curve, info: ModelInfo, model: FileModel) -> Finding:
    """Return a finding that says whether drafts without a cost, such as lookup's, can help."""
    if break_even(curve) is None:
        text = "even drafts that are always right and cost nothing lose here"
        remedy = _cheaper_widening(info, model) or "leave speculation out: --spec-type none"
        return Finding("problem", "lookup", text, remedy)
    ratio = curve(5, SHORT_CACHE) / curve(1, SHORT_CACHE)
    text = f"5 tokens at once take {ratio:.1f} times one: prompt lookup {conditions(curve)}"
    if ratio <= 1 + 4 * STEEP:
        return Finding("ok", "lookup", text)
    text = f"t(n) is steep, so only nearly certain drafts pay: {text}"
    return Finding("note", "lookup", text, _cheaper_widening(info, model))


def _cheaper_widening(info: ModelInfo, model: FileModel) -> str:
    """Return advice on how to make wide evaluations cheaper, "" if there is none."""
    if info.quantisation in _CHEAPLY_WIDENED or "layers" in model.placement:
        return ""
    if backends.name_of(model.path) != "llama_cpp":
        return ""
    return (
        f"on a CPU a Q8_0 or F16 file of the same model widens more cheaply than "
        f"{info.quantisation}, though a single token then takes longer"
    )
