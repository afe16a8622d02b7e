"""Tool calls of LFM2 and LFM2.5: a list of calls in Python between two markers.

The templates of LFM2 only list the tools; some of LFM2.5 also write the calls of earlier answers
(docs.liquid.ai, tool use).
"""

from __future__ import annotations

from ..markers import ReasoningMarkers
from ..probes import Probe
from . import register
from .base import CallForm
from .keyword_arguments import Keywords

_BEGIN = "<|tool_call_start|>["


@register("lfm_2", "LFM2's list of calls in Python between two markers")
def lfm_2(probe: Probe, reasoning: ReasoningMarkers | None) -> CallForm | None:
    """Return the form for a template that lists tools as LFM2's does, and writes no JSON calls."""
    if "List of tools: " not in probe.template or '{"name": "' in probe.template:
        return None
    return CallForm(
        opening="",
        after_name="(",
        closing=")",
        begin=_BEGIN,
        between=", ",
        end="]<|tool_call_end|>",
        arguments=Keywords(),
        is_in_template=_BEGIN in probe.template,
    )
