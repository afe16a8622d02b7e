"""Forms in which models write tool calls. Each form is one file, which registers itself.

docs/how-to/write-a-call-form.md says what a form must do. Other packages name their forms in the
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
"""The name of the form that is learned from a template. It is tried after all others."""

known: registry.Registry[registry.Entry] = registry.Registry(
    "call form", __name__, "write-a-call-form.md"
)
names = known.names


def register(name: str, summary: str) -> Callable[[Recognise], Recognise]:
    """Register the decorated function, which returns the call form of a template, or None if the
    template writes calls in a different form.

    The function gets a Probe (it renders test conversations with the template) and the markers of
    reasoning. Raises ConfigError if the name is invalid or taken.
    """

    def add(recognise: Recognise) -> Recognise:
        known.add(registry.Entry(name, recognise, summary))
        return recognise

    return add


def known_form(probe: Probe, reasoning: ReasoningMarkers | None) -> CallForm | None:
    """Return the form of a template that one of the files knows, or None if none knows it."""
    others = (name for name in names() if name != LEARNED)
    forms = (known.entry(name).make(probe, reasoning) for name in others)
    return next(filter(None, forms), None)


def learned_form(probe: Probe, reasoning: ReasoningMarkers | None) -> CallForm:
    """Return the form that is learned from a template. Raises NotUnderstood if there is none."""
    from .base import NotUnderstood

    form: CallForm | None = known.entry(LEARNED).make(probe, reasoning)
    if not form:
        raise NotUnderstood("the form in which its chat template writes calls is not understood")
    return form
