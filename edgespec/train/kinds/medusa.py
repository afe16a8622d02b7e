"""Medusa heads: a residual block for each token ahead."""

from __future__ import annotations

import functools

from ..shape import MedusaShape, Shape, shape_for
from . import register
from .heads import HeadKind


@register("medusa", "a block for each token ahead, without a cache")
class Medusa(HeadKind):
    """Makes heads that guess all tokens of a draft at once (arXiv 2401.10774)."""

    name = network = "medusa"
    title = "Medusa heads"

    def new_shape(self, n_drafted: int) -> Shape:
        """Return the shape of a head that can draft at most so many different tokens."""
        make = functools.partial(MedusaShape, n_ahead=self.work.options.depth)
        return shape_for(self.work.path, n_drafted, make)
