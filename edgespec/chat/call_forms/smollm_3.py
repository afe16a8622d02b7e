"""Tool calls of SmolLM3: one marked JSON object a call.

Its template takes the tools under the name `xml_tools`, and writes no calls itself. Some copies of
the template leave the tools out; they are then written into the system message, in the words of the
original (HuggingFaceTB/SmolLM3-3B).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..markers import ReasoningMarkers
from ..probes import Probe
from . import register
from .base import CallForm, with_instructions

_NAMED, _MODE = "named SmolLM, trained by Hugging Face", "Reasoning Mode: "
_BEFORE = """### Tools

You may call one or more functions to assist with the user query.
You are provided with function signatures within <tools></tools> XML tags:

<tools>
"""
_AFTER = """</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class SmolLM(CallForm):
    """The form of SmolLM3. tools_key: the name under which the template takes tools, "" if none."""

    tools_key: str = ""

    def variables(self, tools: Sequence[Any]) -> dict[str, Any]:
        """Return the tools under the name that the template has for them."""
        return {self.tools_key or "tools": tools}

    def instructed(self, messages: list[dict[str, Any]], tools: Sequence[Any]) -> list[Any]:
        """Return the messages, with the tools in the system message if the template omits them."""
        if self.tools_key:
            return messages
        listed = "".join(f"{json.dumps(tool, ensure_ascii=False)}\n" for tool in tools)
        return with_instructions(messages, f"{_BEFORE}{listed}{_AFTER}")


@register("smollm_3", "SmolLM3's marked JSON objects")
def smollm_3(probe: Probe, reasoning: ReasoningMarkers | None) -> CallForm | None:
    """Return the form for a template that names SmolLM and its reasoning mode, and writes no
    calls.
    """
    names = _NAMED in probe.template and _MODE in probe.template  # SmolLM2 has no modes
    if not names or "tool_calls" in probe.template:
        return None
    own = "xml_tools" if "xml_tools" in probe.template else ""
    return SmolLM(
        opening='<tool_call>\n{"name": "',
        after_name='", "arguments": ',
        closing="}\n</tool_call>",
        is_in_template=False,
        tools_key=own if probe.ignores_tools else "tools",
    )
