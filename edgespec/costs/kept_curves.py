"""Curves of models as they are kept on disk: none that cannot be is kept or used."""

from __future__ import annotations

import logging

from ..backends.base import FileModel, Head
from ..backends.files import label
from .curves import Curve
from .profiles import store, stored

logger = logging.getLogger("edgespec.profile")


def is_impossible(model: FileModel, curve: Curve) -> bool:
    """Return whether a curve cannot be that of this model: on a CPU, many tokens take longer than
    one. A head may guess many at once.
    """
    return curve.is_flat and not isinstance(model, Head) and not _offloads(model)


def kept_curve(model: FileModel) -> Curve | None:
    """Return the curve that is kept for a model on this device, None for none that can be."""
    curve = stored(model.fingerprint())
    if curve and is_impossible(model, curve):
        logger.warning("the measured times of %s are impossible: measuring anew", label(model.path))
        return None
    return curve


def keep_curve(model: FileModel, curve: Curve) -> bool:
    """Keep a measured curve; return False where it cannot be, or cannot be written."""
    if is_impossible(model, curve):
        logger.warning("the measured times of %s are impossible: not kept", label(model.path))
        return False
    return store(model.fingerprint(), curve) is not None


def _offloads(model: FileModel) -> bool:
    """Return whether another processor than the CPU evaluates a part of a model."""
    layers = model.placement.get("layers", "offloaded 0/")
    provider = model.placement.get("provider", "CPU")
    return provider != "CPU" or not layers.startswith("offloaded 0/")
