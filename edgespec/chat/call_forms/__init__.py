"""Forms in which models write calls of tools: one file for each, which registers itself.

docs/how-to/write-a-call-form.md says what one has to do. Other packages name theirs in the
entry-point group `edgespec.chat.call_forms`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ... import registry

if TYPE_CHECKING:
    from ..markers import ReasoningMarkers
    from ..probes import Probe
    from .base import CallForm

    Recognise = Callable[[Probe, ReasoningMarkers | None], CallForm | None]

LEARNED = "template"
"""The form that is learned from what a template writes, for templates of which no other knows."""

known: registry.Registry[registry.Entry] = registry.Registry(
    "call form", __name__, "write-a-call-form.md"
)
names = known.names


def register(name: str, summary: str) -> Callable[[Recognise], Recognise]:
    """Register the decorated function, which returns the form of a template, or None if the
    template writes calls in another one.

    It is given the template, to be asked what it writes, and the markers of reasoning. Raises
    ConfigError for a name that cannot be, or is taken.
    """

    def add(recognise: Recognise) -> Recognise:
        known.add(registry.Entry(name, recognise, summary))
        return recognise

    return add


def form_of(probe: Probe, reasoning: ReasoningMarkers | None) -> CallForm:
    """Return the form in which a template writes calls. Raises NotUnderstood."""
    from .base import NotUnderstood

    others = [name for name in names() if name != LEARNED]
    for name in (*others, LEARNED):
        form: CallForm | None = known.entry(name).make(probe, reasoning)
        if form:
            return form
    raise NotUnderstood("the form in which its chat template writes calls is not understood")
