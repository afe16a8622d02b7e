"""Which models of the catalogue to take on this device."""

from __future__ import annotations

from collections.abc import Iterator

from .. import hub
from .findings import Finding


def models_to_take() -> Iterator[Finding]:
    """Yield the models to take here, with what each is good at and what it takes."""
    for reference, description, about in hub.advice(hub.places()):
        yield Finding("ok", "model", f"{reference}: {description} {about}")
