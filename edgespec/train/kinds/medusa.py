"""Medusa heads: a residual block for each token ahead."""

from __future__ import annotations

from ..shape import MedusaShape
from . import register
from .heads import HeadKind


@register("medusa", "a block for each token ahead, without a cache")
class Medusa(HeadKind):
    """Makes heads that guess all tokens of a draft at once (arXiv 2401.10774)."""

    name, title, shape_type = "medusa", "Medusa heads", MedusaShape
