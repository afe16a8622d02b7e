"""Curves of models as they are kept on disk: none that cannot be is kept or used."""

from __future__ import annotations

import logging

from ..backends.base import FileModel, Head, share_on_gpu
from ..backends.files import label
from .curves import Curve
from .profiles import BESIDE_OTHERS, store, stored

logger = logging.getLogger("edgespec.profile")


def is_impossible(model: FileModel, curve: Curve) -> bool:
    """Return whether a curve cannot be that of this model: on a CPU, many tokens take longer than
    one. A head may guess many at once.
    """
    return curve.is_flat and not isinstance(model, Head) and not share_on_gpu(model.placement)


def kept_curve(model: FileModel, *, quiet: bool = False) -> Curve | None:
    """Return the curve that is kept for a model on this device, None for none that can be.

    One that was measured beside other programs is taken where there is no other, unless `quiet`.
    """
    own = model.fingerprint()
    curve = stored(own) or (None if quiet else stored(own | BESIDE_OTHERS))
    if curve and is_impossible(model, curve):
        logger.warning("the measured times of %s are impossible: measuring anew", label(model.path))
        return None
    return curve


def keep_curve(model: FileModel, curve: Curve, *, quiet: bool = True) -> bool:
    """Keep a measured curve; return False where it cannot be, or cannot be written.

    quiet: no other program used the CPUs meanwhile.
    """
    if is_impossible(model, curve):
        logger.warning("the measured times of %s are impossible: not kept", label(model.path))
        return False
    return store(model.fingerprint() | ({} if quiet else BESIDE_OTHERS), curve) is not None
