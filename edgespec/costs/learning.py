"""Costs that are measured while the engine is in use, in pieces between the answers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ..backends.base import FileHead, FileModel, share_on_gpu
from ..backends.files import label
from ..device import BUSY, Load, LoadMeter
from ..types import Abort
from .curves import Curve
from .kept_curves import keep_curve, kept_curve
from .measuring import (
    Measurement,
    growing_share,
    lengthened,
    long_length,
    plans_anew,
    tapping_s,
)  # fmt: skip
from .online import Costs
from .profiles import Entry, Profile, Seconds, keep, kept

logger = logging.getLogger("edgespec.profile")

_SHORT = 1024  # tokens: times after longer texts say little about those after short ones
_MEASURING = threading.Lock()  # engines of one process would disturb each other's measurements


class Measured(Protocol):
    """A quantity that is measured once."""

    @property
    def complete(self) -> bool:
        """True once there is nothing left to measure."""

    @property
    def kept_as(self) -> tuple[dict[str, Any], ...]:
        """The fingerprints under which the results are saved on disk."""

    def run(self, abort: Abort) -> bool:
        """Measure it, or a part of what is left. Return False if `abort` ended the measurement."""


class Costed(Measured, Protocol):
    """A model whose costs are measured. curve: t(n), None until it is known. replans: as in
    `Profile`.
    """

    curve: Curve | None
    replans: bool


class ModelCurve:
    """The t(n) of a model in a file: read from disk, or else measured and saved.

    A saved curve that was measured while other programs ran is used until it is measured anew.

    lengthens: also measure after a long context of arbitrary tokens.
    """

    def __init__(self, model: FileModel, widths: Sequence[int], *, lengthens: bool = False) -> None:
        self.model, self.replans = model, plans_anew(model)
        self._lengthens = lengthens
        self.kept_as = (model.fingerprint(),)
        self.curve: Curve | None = kept_curve(model)
        self._is_passing = bool(self.curve and not kept_curve(model, quiet=True))
        self._measurement = Measurement(model, widths)
        self._busy = False

    def run(self, abort: Abort) -> bool:
        """Measure the curve if it is not known, else its times after a long text. Return False if
        `abort` ended the measurement; the next call continues it.

        A measured curve is used but not saved if other programs ran, if the text before it was
        long, or if the curve is impossible on a CPU.
        """
        wanted = self.curve is None or self._is_passing
        kept = kept_curve(self.model, quiet=self._is_passing) if wanted else None
        self.curve = kept or self.curve
        if kept or self.complete:
            return True
        while not _MEASURING.acquire(timeout=0.05):
            if abort():
                return False
        try:
            measured = self._measured(abort)
        finally:
            _MEASURING.release()
        if measured:
            self.curve, self._is_passing = measured, False
            if self._busy:
                logger.info("what was measured is not kept: other programs use the CPUs as well")
            elif self.curve.lengths[0] > _SHORT:
                logger.info("what was measured after a long text is not kept")
            else:
                keep_curve(self.model, self.curve)
        return measured is not None

    @property
    def complete(self) -> bool:
        """True once the curve is known, with times after a long text if they are to be measured."""
        known = None if self._is_passing else self.curve
        return bool(known and not (self._lengthens and long_length(self.model, known)))

    def _measured(self, abort: Abort) -> Curve | None:
        """Measure the curve, or extend the known one by times after a long text. Return the result,
        None if `abort` ended the measurement.
        """
        logger.info("measuring %s on this device", label(self.model.path))
        meter = LoadMeter()
        if self.curve and not self._is_passing:
            curve = lengthened(self.model, self.curve, abort)
        else:
            curve = self._measurement.curve() if self._measurement.run(abort) else None
        load = meter.look()
        self._busy |= _is_disturbed(self.model, load)
        return curve


def _is_disturbed(model: FileModel, load: Load | None) -> bool:
    """Return whether other programs slowed a model down: never if it runs on the GPU alone."""
    return load is not None and load.others > BUSY and share_on_gpu(model.placement) < 1


class _HeadEntry(Entry, frozen=True, kw_only=True):
    tapping: Seconds | None = None
    growing: Seconds | None = None


class HeadTimes:
    """Times of a head in addition to its t(n), read from disk or measured.

    tapping: the seconds that the target spends on hidden states in each step. growing: the time of
    each further guess of the head, as a share of the time of its first. Times measured while other
    programs ran are not saved.
    """

    def __init__(self, target: FileModel, head: FileHead) -> None:
        self._target, self._head = target, head
        key = target.fingerprint() | {"kind": "head", "head": head.fingerprint()}
        self.kept_as = (key,)
        entry = kept(key, _HeadEntry)
        self.tapping = entry.tapping if entry else None
        self.growing = entry.growing if entry else None

    @property
    def complete(self) -> bool:
        """True once both times are known."""
        return self.tapping is not None and self.growing is not None

    def run(self, abort: Abort) -> bool:
        """Measure both times. Return False if `abort` ended the measurement."""
        with _MEASURING:
            meter = LoadMeter()
            self.tapping = tapping_s(self._target, self._head.layers, abort)
            self.growing = growing_share(self._head, abort)
            load = meter.look()
        if self.complete and not _is_disturbed(self._target, load):
            keep(*self.kept_as, {"tapping": self.tapping, "growing": self.growing})
        return self.complete


class Learning:
    """Measures the curves that are missing, and updates the costs of evaluations with them.

    profile: returns the profile made of the curves, None as long as too little is known.
    """

    doing = "measuring the model's speed on this device, once"

    def __init__(
        self, curves: Sequence[Measured], profile: Callable[[], Profile | None], costs: Costs
    ) -> None:
        self._curves = curves
        self._profile = profile
        self._costs = costs

    @property
    def urgent(self) -> bool:
        """True while a model has no known costs at all, so that nothing is drafted with it yet."""
        return any(getattr(curve, "curve", curve) is None for curve in self._curves)

    def run(self, abort: Abort) -> bool:
        """Measure what is missing. Return False if `abort` ended it; the next call goes on."""
        for curve in self._curves:
            while not curve.complete:
                if not curve.run(abort):
                    return False
                if profile := self._profile():
                    self._costs.learn(profile)
        return True


def learning(
    target: Costed, draft: Costed | None, head: HeadTimes | None = None
) -> tuple[Costs, Learning | None]:
    """Return the saved costs of two models, and a `Learning` that measures the missing ones, None
    if no costs are missing.

    Prompt lookup drafts as soon as the target's costs are known. A draft model drafts only once its
    own costs are known as well. head: the head's further times if the draft is a head.
    """
    curves: list[Measured] = [curve for curve in (target, draft, head) if curve]

    def profile() -> Profile | None:
        if target.curve is None:
            return None
        kept_as = target.kept_as and tuple(key for curve in curves for key in curve.kept_as)
        drafting = draft.curve if draft else None
        both = Profile(target.curve, drafting, kept_as=kept_as, replans=target.replans)
        if head is None or head.tapping is None or head.growing is None:
            return both
        return replace(both, tapping=head.tapping, growing=head.growing)

    costs = Costs(profile())
    if all(curve.complete for curve in curves):
        return costs, None
    return costs, Learning(curves, profile, costs)
