"""Schemas of arguments, as grammars take them and as their readers need them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from .tools import Tool

_UNSEEN = ("pattern", "format")  # of texts that are written without quotes


def arguments_schema(tool: Tool, separators: tuple[str, str]) -> dict[str, Any]:
    """Return the schema of a tool's arguments for llguidance.

    separators: what the model writes between two items, and between a key and its value.
    """
    return {"type": "object", **_given(tool), "x-guidance": _guidance(tool, separators)}


def value_schema(tool: Tool, key: str, separators: tuple[str, str]) -> dict[str, Any]:
    """Return the schema of one argument for llguidance."""
    given = _given(tool)
    found = dict(given["properties"][key])
    found |= {name: given[name] for name in ("$defs", "definitions") if name in given}
    return found | {"x-guidance": _guidance(tool, separators)}


def _given(tool: Tool) -> dict[str, Any]:
    return dict(_closed(tool.parameters) if tool.strict else tool.parameters)


def _guidance(tool: Tool, separators: tuple[str, str]) -> dict[str, Any]:
    guidance: dict[str, Any] = {"whitespace_flexible": False}
    guidance |= {"item_separator": separators[0], "key_separator": separators[1]}
    return guidance if tool.strict else guidance | {"lenient": True}


def _closed(schema: Any) -> Any:
    """Return a schema whose objects have no other fields than those that it names."""
    if isinstance(schema, Mapping):
        found = {key: _closed(value) for key, value in schema.items()}
        if isinstance(found.get("properties"), Mapping) and found.get("type") == "object":
            found.setdefault("additionalProperties", False)
        return found
    return [_closed(each) for each in schema] if isinstance(schema, list) else schema


def properties(tool: Tool) -> dict[str, Any]:
    """Return the schemas of a tool's arguments by their names."""
    found = tool.parameters.get("properties", {})
    return dict(found) if isinstance(found, Mapping) else {}


def is_required(tool: Tool, key: str) -> bool:
    """Return True if every call must give this argument."""
    return key in tool.parameters.get("required", ())


def is_text(tool: Tool, key: str) -> bool:
    """Return True for an argument that may be a text, and so is written without quotes."""
    return _is_text(_resolved(tool, properties(tool).get(key, {})))


def choices_of(tool: Tool, key: str) -> list[str]:
    """Return the only texts that an argument can be, none if it can be others."""
    schema = _resolved(tool, properties(tool)[key])
    found = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return list(found) if all(isinstance(each, str) for each in found) else []


def check_text(tool: Tool, key: str) -> None:
    """Raise ConfigError for a text whose schema cannot be followed where it has no quotes."""
    schema = _resolved(tool, properties(tool)[key])
    unseen = next((name for name in _UNSEEN if name in schema), None)
    if tool.strict and unseen:
        raise ConfigError(
            f"{unseen} of {key} in the tool {tool.name} cannot be followed, because this model "
            "writes texts without quotes; leave it out, or make the tool not strict"
        )


def lengths_of(tool: Tool, key: str) -> tuple[int, int | None]:
    """Return the least and the most characters of a text, None for any number."""
    schema = _resolved(tool, properties(tool)[key])
    return schema.get("minLength", 0), schema.get("maxLength")


def _resolved(tool: Tool, schema: Any) -> Mapping[str, Any]:
    """Return a schema, or the definition of the tool's that it refers to."""
    if not isinstance(schema, Mapping):
        return {}
    for name in ("$defs", "definitions"):
        prefix = f"#/{name}/"
        if str(schema.get("$ref", "")).startswith(prefix):
            found = tool.parameters.get(name, {}).get(schema["$ref"][len(prefix) :], {})
            return found if isinstance(found, Mapping) else {}
    return schema


def _is_text(schema: Mapping[str, Any]) -> bool:
    for name in ("anyOf", "oneOf"):
        branches = schema.get(name)
        if isinstance(branches, list):
            return any(_is_text(each) for each in branches if isinstance(each, Mapping))
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return isinstance(values, list) and all(isinstance(each, str) for each in values)
    kind = schema.get("type", "string")
    return "string" in kind if isinstance(kind, list) else kind == "string"
