"""Schemas of tool arguments, prepared for grammars and for readers of arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..constraints import schemas
from ..constraints.omissions import DEFINITIONS
from ..constraints.schemas import closed
from ..errors import ConfigError
from .alternatives import Alternatives
from .tools import Tool

_UNSEEN = (  # keywords that unquoted texts cannot follow
    "pattern", "format", "not", "if", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_OF_OTHERS = frozenset((  # with one of these but no type, a schema is not for texts
    "properties", "required", "additionalProperties", "patternProperties", "minProperties",
    "maxProperties", "items", "prefixItems", "minItems", "maxItems", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
))  # fmt: skip
_OF_ALL = (  # keywords about all arguments together, which are written one by one
    "$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependencies", "dependentRequired",
    "dependentSchemas", "minProperties", "maxProperties", "propertyNames",
)  # fmt: skip
_TYPES = {
    str: ("string",), bool: ("boolean",), type(None): ("null",), int: ("integer", "number"),
    float: ("number", "integer"), list: ("array",), dict: ("object",),
}  # fmt: skip
_LISTED: dict[str, list[Any]] = {"null": [None], "boolean": [False, True]}  # all values


def of_tool(tool: Tool, guidance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a tool's arguments for llguidance. guidance: its options for JSON."""
    return _guided({"type": "object", **_given(tool)}, guidance)


def of_argument(tool: Tool, key: str, guidance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of one argument for llguidance. guidance: its options for JSON."""
    given = _given(tool)
    schema = given["properties"][key]
    schema = {} if schema is True else dict(schema)
    schema |= {name: given[name] for name in DEFINITIONS if name in given}
    return _guided(schema, guidance)


def _guided(schema: dict[str, Any], guidance: Mapping[str, Any]) -> dict[str, Any]:
    return schema | {"x-guidance": schemas.guidance(schema) | dict(guidance)}


def _given(tool: Tool) -> dict[str, Any]:
    return dict(closed(tool.parameters) if tool.strict else tool.parameters)


def properties(tool: Tool) -> dict[str, Any]:
    """Return the schemas of a tool's arguments by their names."""
    declared = tool.parameters.get("properties", {})
    return dict(declared) if isinstance(declared, Mapping) else {}


def is_required(tool: Tool, key: str) -> bool:
    """Return True if every call must give this argument."""
    return key in tool.parameters.get("required", ())


# --- arguments that are written one by one: texts and choices are written without quotes ------


def check(tool: Tool, closing: str) -> None:
    """Raise ConfigError, with the place, if some arguments cannot be written one by one.

    closing: the marker that ends an argument.
    """
    check_shape(tool)
    for key in properties(tool):
        if is_text(tool, key):
            lengths_of(tool, key)
        _check_choices(tool, key)
        for choice in choices_of(tool, key):
            if (choice + closing).index(closing) < len(choice):
                why = f"{choice!r:.80} holds the marker {closing!r}, which ends it"
                raise refused(tool, why, _place(key))


def check_shape(tool: Tool) -> None:
    """Raise ConfigError, with the place, if a schema does not say what each argument may be."""
    given = tool.parameters
    for name in ("properties", *DEFINITIONS):
        if not isinstance(given.get(name, {}), Mapping):
            raise refused(tool, f"{name} is an object, got {given[name]!r:.80}", f"/{name}")
    together = next((name for name in _OF_ALL if name in given), None)
    if tool.strict and together:
        why = f"{together!r} is not supported for all arguments together by this model's form"
        raise refused(tool, why, f"/{together}", is_broken=False)
    required = given.get("required", [])
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise refused(tool, f"required is a list of names, got {required!r:.80}", "/required")
    for key in properties(tool):
        if not alternatives(tool, key):
            raise refused(tool, "it allows no value", _place(key))


def _check_choices(tool: Tool, key: str) -> None:
    """Raise ConfigError if the tool is strict and more than a list limits the values of an
    argument.
    """
    listed = [each for each in alternatives(tool, key) if "enum" in each]
    unseen = next((name for name in _UNSEEN for each in listed if name in each), None)
    if tool.strict and unseen and choices_of(tool, key):
        why = f"{unseen} cannot be followed together with enum; list only the texts that it allows"
        raise refused(tool, why, _place(key), is_broken=False)


def refused(tool: Tool, why: str, place: str, *, is_broken: bool = True) -> ConfigError:
    """Return an error that says why arguments cannot be followed, and where in their schema.

    is_broken: True if the schema is invalid or too large, so that it is refused even in a tool that
    is not strict.
    """
    loose = ", or make the tool not strict" if tool.strict and not is_broken else ""
    return ConfigError(
        f"the arguments of the tool {tool.name} cannot be followed: {why}"
        f"{f' (at {place})' if place else ''}; change its schema{loose}"
    )


def is_text(tool: Tool, key: str) -> bool:
    """Return True for an argument that can be any text, and is therefore written without quotes."""
    return any(_is_free(each) for each in alternatives(tool, key))


def choices_of(tool: Tool, key: str) -> dict[str, Any]:
    """Return the only values that an argument allows, by the text that is written for each.

    A text is written without quotes, another value as JSON. The result is empty if the values are
    not listed, or if none of them is a text.
    """
    lists = [_values(each) for each in alternatives(tool, key)]
    values = [value for each in lists for value in each or ()]
    if None in lists or not any(isinstance(value, str) for value in values):
        return {}
    others = {json.dumps(value): value for value in values if not isinstance(value, str)}
    return others | {value: value for value in values if isinstance(value, str)}


def lengths_of(tool: Tool, key: str) -> tuple[int, int | None]:
    """Return the least and the most characters of a text, with None for no maximum.

    Raises ConfigError if the tool is strict and these two lengths do not express all that its
    schema demands of the text.
    """
    every_kind = alternatives(tool, key)
    free = [each for each in every_kind if _is_free(each)]
    chosen = [
        value for each in every_kind for value in _values(each) or () if isinstance(value, str)
    ]
    every = [_lengths(each) for each in free] + [(len(text), len(text)) for text in chosen]
    mosts = [most for _, most in every if most is not None]
    every_one = min(least for least, _ in every), max(mosts) if len(mosts) == len(every) else None
    unseen = next((name for name in _UNSEEN for each in free if name in each), None)
    seen = [_lengths(each) for each in free if not any(name in each for name in _UNSEEN)]
    if tool.strict and every_one not in seen:
        what = unseen or "other lengths in alternatives"
        why = f"{what} of texts cannot be followed, which this model writes without quotes"
        raise refused(tool, why, _place(key), is_broken=False)
    return every_one


def _lengths(schema: Mapping[str, Any]) -> tuple[int, int | None]:
    return schema.get("minLength", 0), schema.get("maxLength")


def _is_free(schema: Mapping[str, Any]) -> bool:
    """Return True if an alternative allows any text, apart from its length."""
    if "enum" in schema:
        return False
    return "string" in schema["type"] if "type" in schema else not _OF_OTHERS & schema.keys()


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    """Return all values that an alternative allows, or None if it does not list them."""
    if "enum" in schema:
        return [value for value in schema["enum"] if _follows(value, schema)]
    return _LISTED.get(" ".join(schema.get("type", ())))


def _follows(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return True if a listed value has the type and length that an alternative asks for."""
    if "type" in schema and not {*_TYPES[type(value)]} & {*schema["type"]}:
        return False
    least, most = _lengths(schema)
    n = len(value) if isinstance(value, str) else least
    return least <= n and (most is None or n <= most)


def alternatives(tool: Tool, key: str) -> list[dict[str, Any]]:
    """Return the alternatives of an argument's schema, with references resolved. A value follows
    one of them.
    """
    try:
        return Alternatives(tool.parameters).of(properties(tool).get(key, {}))
    except ValueError as error:
        raise refused(tool, str(error), _place(key)) from None


def _place(key: str) -> str:
    return f"/properties/{key}"
