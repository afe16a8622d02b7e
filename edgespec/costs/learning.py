"""Costs that become known later: measured in pieces, while nobody waits for an answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ..backends.base import FileModel
from ..backends.files import label
from ..device import BUSY, LoadMeter
from ..types import Abort
from .curves import Curve
from .measuring import Measurement
from .online import Costs
from .profiles import Profile, store, stored

logger = logging.getLogger("edgespec.profile")

_SHORT = 1024  # tokens: times behind longer texts say little about those behind short ones
_MEASURING = threading.Lock()  # engines of one process would disturb each other's measurements


class Costed(Protocol):
    """Something with costs. curve: None until they are known."""

    curve: Curve | None

    @property
    def kept_as(self) -> tuple[dict[str, Any], ...]:
        """The fingerprints under which the curve is kept on disk."""

    def run(self, abort: Abort) -> bool:
        """Measure it; False where `abort` has ended it."""


class ModelCurve:
    """t(n) of a model in a file, as kept on disk, or measured and kept."""

    def __init__(self, model: FileModel, widths: Sequence[int]) -> None:
        self.model = model
        self.kept_as = (model.fingerprint(),)
        self.curve: Curve | None = stored(*self.kept_as)
        self._measurement = Measurement(model, widths)
        self._busy = False

    def run(self, abort: Abort) -> bool:
        """Measure it unless it is known; False as `Measurement.run`, which goes on next time.

        What was measured beside other programs, or behind a long text, is used and not kept.
        """
        self.curve = self.curve or stored(*self.kept_as)
        if self.curve:
            return True
        while not _MEASURING.acquire(timeout=0.05):
            if abort():
                return False
        try:
            complete = self._measured(abort)
        finally:
            _MEASURING.release()
        if complete:
            self.curve = self._measurement.curve()
            if self._busy:
                logger.info("what was measured is not kept: other programs use the CPUs as well")
            elif self.curve.lengths[0] > _SHORT:
                logger.info("what was measured behind a long text is not kept")
            else:
                store(*self.kept_as, self.curve)
        return complete

    def _measured(self, abort: Abort) -> bool:
        logger.info("measuring %s on this device", label(self.model.path))
        meter = LoadMeter()
        complete = self._measurement.run(abort)
        load = meter.look()
        self._busy |= load is not None and load.others > BUSY
        return complete


class Learning:
    """Measures the curves that are missing, and makes the costs of evaluations known with them.

    profile: returns the profile by the curves, None as long as too little is known.
    """

    doing = "measuring the model's speed on this device, once"

    def __init__(
        self, curves: Sequence[Costed], profile: Callable[[], Profile | None], costs: Costs
    ) -> None:
        self._curves = curves
        self._profile = profile
        self._costs = costs

    def run(self, abort: Abort) -> bool:
        """Measure what is missing; False where `abort` has ended it: call it again to go on."""
        for curve in self._curves:
            if curve.curve:
                continue
            if not curve.run(abort):
                return False
            if profile := self._profile():
                self._costs.learn(profile)
        return True


def learning(target: Costed, draft: Costed | None) -> tuple[Costs, Learning | None]:
    """Return the costs of two models as far as they are kept, and what measures the rest, if any.

    Prompt lookup begins with the target's costs; a draft model waits for its own.
    """
    curves = [curve for curve in (target, draft) if curve]

    def profile() -> Profile | None:
        if target.curve is None:
            return None
        kept_as = target.kept_as and tuple(key for curve in curves for key in curve.kept_as)
        return Profile(target.curve, draft.curve if draft else None, kept_as=kept_as)

    costs = Costs(profile())
    if all(curve.curve for curve in curves):
        return costs, None
    return costs, Learning(curves, profile, costs)
