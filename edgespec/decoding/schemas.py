"""JSON schemas of requests: given as such, or as types whose values answers become."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import ConfigError


def text_of(schema: Any) -> str:
    """Return the JSON schema that a request gave, as text. Raises ConfigError for what is none."""
    if isinstance(schema, str):
        try:
            found = json.loads(schema)
        except ValueError as error:
            raise ConfigError(f"schema is no JSON: {error}") from None
    elif isinstance(schema, (Mapping, bool)):
        found = schema
    else:
        found = _closed(_of_type(schema))
    if not isinstance(found, (Mapping, bool)):
        raise ConfigError(f"a schema is a JSON object, got {found!r:.80}")
    try:
        return json.dumps(found)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"schema cannot be written as JSON: {error}") from None


def value_of(schema: Any, text: str) -> Any:
    """Return the value that a complete answer stands for, of the schema's type where it is one.

    None where the type refuses it, by a rule that its schema does not tell.
    """
    try:
        if isinstance(schema, (str, Mapping, bool)):
            return json.loads(text)
        if hasattr(schema, "model_validate_json"):
            return schema.model_validate_json(text)
        return msgspec.json.decode(text, type=schema)
    except (ValueError, msgspec.MsgspecError):
        return None


def _of_type(kind: Any) -> Any:
    if hasattr(kind, "model_json_schema"):  # pydantic's, which is not imported for it
        return kind.model_json_schema()
    try:
        return msgspec.json.schema(kind)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"schema must be a mapping, its text or a type that JSON can hold, got {kind!r:.80}: "
            f"{error}"
        ) from None


def _closed(schema: Any) -> Any:
    """Return a schema of a type whose objects have no other properties than those of the type."""
    if isinstance(schema, Mapping):
        found = {key: _closed(value) for key, value in schema.items()}
        if isinstance(found.get("properties"), Mapping) and found.get("type") == "object":
            found.setdefault("additionalProperties", False)
        return found
    return [_closed(each) for each in schema] if isinstance(schema, list) else schema
