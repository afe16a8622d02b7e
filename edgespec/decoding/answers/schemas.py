"""Schemas of arguments, as grammars take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .tools import Tool


def arguments_schema(tool: Tool, separators: tuple[str, str]) -> dict[str, Any]:
    """Return the schema of a tool's arguments for llguidance.

    separators: what the model writes between two items, and between a key and its value.
    """
    guidance: dict[str, Any] = {"whitespace_flexible": False}
    guidance |= {"item_separator": separators[0], "key_separator": separators[1]}
    if not tool.strict:
        guidance["lenient"] = True
    schema = _closed(tool.parameters) if tool.strict else dict(tool.parameters)
    return {"type": "object", **schema, "x-guidance": guidance}


def _closed(schema: Any) -> Any:
    """Return a schema whose objects have no other fields than those that it names."""
    if isinstance(schema, Mapping):
        found = {key: _closed(value) for key, value in schema.items()}
        if isinstance(found.get("properties"), Mapping) and found.get("type") == "object":
            found.setdefault("additionalProperties", False)
        return found
    return [_closed(each) for each in schema] if isinstance(schema, list) else schema
