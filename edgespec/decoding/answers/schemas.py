"""Schemas of arguments, as grammars take them and as their readers need them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import ConfigError
from ..schemas import closed
from .markers import ToolMarkers
from .tools import Tool

_UNSEEN = ("pattern", "format")  # of texts that are written without quotes


def embedded(tool: Tool, markers: ToolMarkers) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schemas that stand in the grammar of a tool, each with its place."""
    if not markers.pairs:
        yield "", arguments_schema(tool, markers)
        return
    for key in properties(tool):
        if not is_text(tool, key):
            yield f"/properties/{key}", value_schema(tool, key, markers)


def arguments_schema(tool: Tool, markers: ToolMarkers) -> dict[str, Any]:
    """Return the schema of a tool's arguments for llguidance, with the model's separators."""
    return {"type": "object", **_given(tool), "x-guidance": _guidance(tool, markers)}


def value_schema(tool: Tool, key: str, markers: ToolMarkers) -> dict[str, Any]:
    """Return the schema of one argument for llguidance."""
    given = _given(tool)
    found = dict(given["properties"][key])
    found |= {name: given[name] for name in ("$defs", "definitions") if name in given}
    return found | {"x-guidance": _guidance(tool, markers)}


def _given(tool: Tool) -> dict[str, Any]:
    return dict(closed(tool.parameters) if tool.strict else tool.parameters)


def _guidance(tool: Tool, markers: ToolMarkers) -> dict[str, Any]:
    guidance: dict[str, Any] = {
        "whitespace_flexible": False,
        "item_separator": markers.item_separator,
        "key_separator": markers.key_separator,
    }
    return guidance if tool.strict else guidance | {"lenient": True}


def properties(tool: Tool) -> dict[str, Any]:
    """Return the schemas of a tool's arguments by their names."""
    found = tool.parameters.get("properties", {})
    return dict(found) if isinstance(found, Mapping) else {}


def is_required(tool: Tool, key: str) -> bool:
    """Return True if every call must give this argument."""
    return key in tool.parameters.get("required", ())


def is_text(tool: Tool, key: str) -> bool:
    """Return True for an argument that may be a text, and so is written without quotes."""
    return _is_text(_resolved(tool, key))


def choices_of(tool: Tool, key: str) -> list[str]:
    """Return the only texts that an argument can be, none if it can be others."""
    schema = _resolved(tool, key)
    found = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return list(found) if all(isinstance(each, str) for each in found) else []


def check_text(tool: Tool, key: str) -> None:
    """Raise ConfigError for a text whose schema cannot be followed where it has no quotes."""
    schema = _resolved(tool, key)
    unseen = next((name for name in _UNSEEN if name in schema), None)
    if tool.strict and unseen:
        raise ConfigError(
            f"{unseen} of {key} in the tool {tool.name} cannot be followed, because this model "
            "writes texts without quotes; leave it out, or make the tool not strict"
        )


def lengths_of(tool: Tool, key: str) -> tuple[int, int | None]:
    """Return the least and the most characters of a text, None for any number."""
    schema = _resolved(tool, key)
    return schema.get("minLength", 0), schema.get("maxLength")


def _resolved(tool: Tool, key: str) -> Mapping[str, Any]:
    """Return the schema of an argument, or the definition that it refers to."""
    schema = properties(tool).get(key, {})
    if not isinstance(schema, Mapping):
        return {}
    reference = schema.get("$ref")
    if reference is None:
        return schema
    for name in ("$defs", "definitions"):
        found = tool.parameters.get(name, {}).get(str(reference).removeprefix(f"#/{name}/"))
        if isinstance(found, Mapping):
            return found
    raise ConfigError(
        f"the tool {tool.name} refers to {reference!r:.80} at /properties/{key}; only what stands "
        "in its $defs can be followed"
    )


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
