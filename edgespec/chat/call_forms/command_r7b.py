"""Answers of Command R7B and Command A: each part is between markers, calls are a JSON list.

The parts are thinking (also a plan before calls), an action with calls, and a response
(CohereForAI/c4ai-command-r7b-12-2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..markers import INDEX, ContentMarkers, ReasoningMarkers
from ..probes import Probe
from . import register
from .base import CallForm, with_one_text


@dataclass(frozen=True, slots=True)
class Command(CallForm):
    """The form of Command R7B."""

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message as the template takes it: one with a call has a single text."""
        if message.get("tool_calls"):
            message = {"reasoning_content": "", **message}
        return with_one_text(message, "reasoning_content")


@register("command_r7b", "Command R7B's list of JSON objects in an action")
def command_r7b(probe: Probe, reasoning: ReasoningMarkers | None) -> CallForm | None:
    """Return the form for a template with actions whose calls have numbers."""
    if "<|START_ACTION|>" not in probe.template or '"tool_call_id": "' not in probe.template:
        return None
    kind = "RESPONSE" if "<|START_RESPONSE|>" in probe.template else "TEXT"
    return Command(
        opening=f'{{"tool_call_id": "{INDEX}", "tool_name": "',
        after_name='", "parameters": ',
        closing="}",
        begin="<|START_ACTION|>[\n    ",
        between=",\n    ",
        end="\n]<|END_ACTION|>",
        reasoning=ReasoningMarkers("<|START_THINKING|>", "<|END_THINKING|>"),
        content=ContentMarkers(f"<|START_{kind}|>", f"<|END_{kind}|>"),
    )
