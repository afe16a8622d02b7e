"""The kinds of drafts that can be trained. Each has its own file and registers itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ... import registry
from ..opening import opened

if TYPE_CHECKING:
    from ..work import Work
    from .base import Kind

Made = TypeVar("Made", bound="Kind")

known: registry.Registry[registry.Entry] = registry.Registry("kind", __name__, "train.md", ["auto"])
names = known.names


def register(name: str, summary: str) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Register the decorated function, which makes a kind of this name for a `Work`.

    summary: what its drafts are, in a few words. Raises ConfigError for an invalid name, or one
    that another kind has.
    """

    def add(make: Callable[..., Made]) -> Callable[..., Made]:
        known.add(registry.Entry(name, make, summary))
        return make

    return add


def make(work: Work) -> Kind:
    """Make the kind that the options of a training name. Raises ConfigError for an unknown name."""
    from .base import Kind

    name = work.options.kind
    entry = known.entry(_automatic(work.path) if name == "auto" else name)
    made: Kind = known.make(entry, work, {}, Kind)
    return made


def _automatic(target: Path) -> str:
    """Return the kind for a target: a head where the target gives hidden states."""
    with opened(target) as model:
        return "eagle3" if model.capabilities.hidden_states else "distill"
