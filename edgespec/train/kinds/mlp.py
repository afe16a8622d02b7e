"""MLP speculators: a small recurrent network."""

from __future__ import annotations

import functools

from ..shape import MlpShape, Shape, shape_for
from . import register
from .heads import HeadKind


@register("mlp", "a small network that also reads what it drafts, without a cache")
class Mlp(HeadKind):
    """Makes a speculator in the form of IBM's accelerators (arXiv 2404.19124)."""

    name = network = "mlp"
    title = "MLP speculator"

    def new_shape(self, n_drafted: int) -> Shape:
        """Return the shape of a head that can draft at most so many different tokens."""
        make = functools.partial(MlpShape, n_ahead=self.work.options.depth)
        return shape_for(self.work.path, n_drafted, make)
