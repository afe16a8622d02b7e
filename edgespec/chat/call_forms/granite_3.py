"""Tool calls of Granite 3: a marker and a JSON list.

The template describes this form to the model in English, and writes no calls itself
(ibm-granite/granite-3.3).
"""

from __future__ import annotations

from ..markers import ReasoningMarkers
from ..probes import Probe
from . import register
from .base import CallForm

_MARKER = "<|tool_call|>"


@register("granite_3", "Granite 3's list of JSON objects after a marker")
def granite_3(probe: Probe, reasoning: ReasoningMarkers | None) -> CallForm | None:
    """Return the form for a template that asks for the marker and a JSON list."""
    if f"{_MARKER} followed by a JSON list" not in probe.template:
        return None
    return CallForm(
        opening='{"name": "',
        after_name='", "arguments": ',
        closing="}",
        begin=f"{_MARKER}[",
        between=", ",
        end="]",
        is_in_template=False,
    )
