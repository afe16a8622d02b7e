"""The text in items of tools that are skipped, such as a provider's web search.

Clients send such items back as part of the conversation. A model without the tool can read only
their text. Items without text are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from .fields import is_shallow

ITEMS = frozenset({
    "additional_tools", "apply_patch_call", "apply_patch_call_output", "code_interpreter_call",
    "compaction", "compaction_summary", "compaction_trigger", "computer_call",
    "computer_call_output", "configuration_update", "custom_tool_call", "custom_tool_call_output",
    "file_search_call", "ghost_snapshot",
    "image_generation_call", "local_shell_call", "local_shell_call_output", "mcp_approval_request",
    "mcp_approval_response", "mcp_call", "mcp_list_tools", "program", "program_output",
    "shell_call", "shell_call_output", "tool_search_call", "tool_search_output", "web_search_call",
})  # fmt: skip
"""The types of these items in `/v1/responses`."""
BLOCKS = frozenset({
    "advisor_tool_result", "bash_code_execution_tool_result", "code_execution_tool_result",
    "compaction", "container_upload", "fallback", "mcp_tool_listing", "mcp_tool_result",
    "mcp_tool_use", "search_result", "server_tool_use", "text_editor_code_execution_tool_result",
    "tool_addition", "tool_reference", "tool_removal", "tool_search_tool_result",
    "web_fetch_tool_result", "web_search_tool_result",
})  # fmt: skip
"""The types of these blocks in `/v1/messages`."""

_TEXTS = frozenset({
    "arguments", "code", "command", "commands", "content", "diff", "input", "logs", "output",
    "queries", "query", "stderr", "stdout", "text", "title",
})  # fmt: skip
"""Fields that hold text for the model."""
_AROUND = frozenset({"action", "operation", "outputs", "results", "source"})
"""Fields whose objects may have fields with text."""
_DEEPEST = 16


def as_text(value: Any) -> Any:
    """Return an object as JSON text. A value that is nested too deeply stays as it is, and is
    refused later.
    """
    return json.dumps(value, ensure_ascii=False) if is_shallow(value) else value


def text_in(item: Mapping[str, Any]) -> str:
    """Return the text in an item, one line for each field with text, "" if there is none."""
    return "\n".join(text for text in _texts(item, _DEEPEST) if text.strip())


def _texts(value: Any, depth: int) -> Iterator[str]:
    if not depth:
        return
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, depth - 1)
    elif isinstance(value, Mapping) and value.get("type") != "base64":  # a file
        for key, each in value.items():
            if key in _TEXTS or (key in _AROUND and not isinstance(each, str)):
                yield from _texts(each, depth - 1)
