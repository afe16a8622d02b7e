"""Tool calls of DeepSeek V3.2 and V4: arguments one by one, each marked as text or JSON (DSML)."""

from __future__ import annotations

from ..markers import ReasoningMarkers
from ..probes import Probe
from . import register
from .base import CallForm
from .pair_arguments import Pairs

_MARK = "｜DSML｜"
_BLOCKS = ("function_calls", "tool_calls")  # of V3.2, of V4


@register("deepseek_dsml", "DeepSeek V3.2's and V4's arguments that are marked as text or JSON")
def deepseek_dsml(probe: Probe, reasoning: ReasoningMarkers | None) -> CallForm | None:
    """Return the form for a template that writes calls in DSML."""
    block = next((name for name in _BLOCKS if f"{name}>" in probe.template), None)
    if _MARK not in probe.template or not block:
        return None
    return CallForm(
        opening=f'<{_MARK}invoke name="',
        after_name='">',
        closing=f"\n</{_MARK}invoke>\n",
        begin=f"<{_MARK}{block}>\n",
        end=f"</{_MARK}{block}>",
        arguments=Pairs(
            opening=f'\n<{_MARK}parameter name="',
            middle='" string="false">',
            closing=f"</{_MARK}parameter>",
            text_middle='" string="true">',
        ),
    )
