"""Deterministic drafts: a draft model's likeliest tokens, matched with the target's own draw."""

from __future__ import annotations

from . import register
from .base import AcceptanceRule


@register("deterministic", "the draft's likeliest tokens, where the target draws the same")
class Deterministic(AcceptanceRule):
    """Lets draft models propose their likeliest tokens instead of drawing them."""
