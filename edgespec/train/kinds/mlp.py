"""MLP speculators: a small recurrent network."""

from __future__ import annotations

from ..shape import MlpShape
from . import register
from .heads import HeadKind


@register("mlp", "a small network that also reads what it drafts, without a cache")
class Mlp(HeadKind):
    """Makes a speculator in the form of IBM's accelerators (arXiv 2404.19124)."""

    name, title, shape_type = "mlp", "MLP speculator", MlpShape
