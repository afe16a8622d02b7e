"""Tool calls of DeepSeek V3.1: the name and a JSON object between control tokens.

The published template ignores tools: the model card (deepseek-ai/DeepSeek-V3.1) says how to put
them into the system message.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..markers import ReasoningMarkers
from ..probes import ARGUMENTS, FIRST, Probe, answer_of, call_of
from . import register
from .base import CallForm, with_instructions

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _NAMED, _CLOSED = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_AFTER = f"""\
IMPORTANT: ALWAYS adhere to this exact format for tool use:
{_BEGIN}{_CALL}tool_call_name{_NAMED}tool_call_arguments{_CLOSED}{{additional_tool_calls}}{_END}

Where:

- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces"""


@dataclass(frozen=True, slots=True)
class DeepSeek(CallForm):
    """The form of DeepSeek V3.1. ignores_tools: True if the template ignores tools."""

    ignores_tools: bool = True

    def instructed(self, messages: list[dict[str, Any]], tools: Sequence[Any]) -> list[Any]:
        """Return the messages, with the tools in the system message if the template omits them."""
        if not self.ignores_tools:
            return messages
        listed = "".join(map(_told, tools))
        before = "## Tools\nYou have access to the following tools:\n\n"
        return with_instructions(messages, f"{before}{listed}{_AFTER}")


def _told(tool: Any) -> str:
    function = tool["function"]
    parameters = json.dumps(function.get("parameters", {}), ensure_ascii=False)
    described = f"Description: {function.get('description', '')}"
    return f"### {function['name']}\n{described}\n\nParameters: {parameters}\n\n"


@register("deepseek_3", "DeepSeek V3.1's names and JSON objects between control tokens")
def deepseek_3(probe: Probe, reasoning: ReasoningMarkers | None) -> CallForm | None:
    """Return the form for a template that writes a call as DeepSeek V3.1 does."""
    if _NAMED not in probe.template:
        return None
    for given in (ARGUMENTS, json.dumps(ARGUMENTS)):
        text = probe.answered(answer_of("", [call_of(FIRST, 0, given)])) or ""
        if f"{_BEGIN}{_CALL}{FIRST}{_NAMED}{{" in text:
            return DeepSeek(
                opening=_CALL,
                after_name=_NAMED,
                closing=_CLOSED,
                begin=_BEGIN,
                end=_END,
                ignores_tools=probe.ignores_tools,
            )
    return None
