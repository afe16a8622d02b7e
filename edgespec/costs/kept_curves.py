"""Curves of models, saved on disk. Impossible curves are neither saved nor used."""

from __future__ import annotations

import logging

from ..backends.base import FileModel, Head, share_on_gpu
from ..backends.files import label
from .curves import Curve
from .profiles import BESIDE_OTHERS, store, stored

logger = logging.getLogger("edgespec.profile")


def is_impossible(model: FileModel, curve: Curve) -> bool:
    """Return whether a curve cannot be right, because many tokens take hardly longer than one on a
    CPU. A head's curve is always possible, since a head may guess many tokens at once.
    """
    return curve.is_flat and not isinstance(model, Head) and not share_on_gpu(model.placement)


def kept_curve(model: FileModel, *, quiet: bool = False) -> Curve | None:
    """Return the curve that was saved for a model on this device, None if there is none or it is
    impossible.

    If there is no other, a curve measured while other programs ran is returned, unless `quiet`.
    """
    own = model.fingerprint()
    curve = stored(own) or (None if quiet else stored(own | BESIDE_OTHERS))
    if curve and is_impossible(model, curve):
        logger.warning("the measured times of %s are impossible: measuring anew", label(model.path))
        return None
    return curve


def keep_curve(model: FileModel, curve: Curve, *, quiet: bool = True) -> bool:
    """Save a measured curve; return False if it is impossible or cannot be written.

    quiet: no other program used the CPUs during the measurement.
    """
    if is_impossible(model, curve):
        logger.warning("the measured times of %s are impossible: not kept", label(model.path))
        return False
    return store(model.fingerprint() | ({} if quiet else BESIDE_OTHERS), curve) is not None
