"""The doctor's advice on models of the catalogue for this device."""

from __future__ import annotations

from collections.abc import Iterator

from .. import hub
from .findings import Finding


def models_to_take() -> Iterator[Finding]:
    """Yield a finding for each model to use here: what it is good at, and what it needs."""
    for reference, description, about in hub.advice(hub.places()):
        yield Finding("ok", "model", f"{reference}: {description} {about}")
