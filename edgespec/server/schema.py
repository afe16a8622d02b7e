"""JSON Schema, as much of it as the parameters use: one description for checks and documents."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from .errors import ApiError, bad_value

Schema = Mapping[str, Any]

_IS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "string": ("text", lambda v: isinstance(v, str)),
    "boolean": ("true or false", lambda v: isinstance(v, bool)),
    "integer": ("a whole number", lambda v: isinstance(v, int) and not isinstance(v, bool)),
    "number": ("a number", lambda v: isinstance(v, (int, float)) and not isinstance(v, bool)),
    "array": ("a list", lambda v: isinstance(v, list)),
    "object": ("an object", lambda v: isinstance(v, dict)),
    "null": ("null", lambda v: v is None),
}


def parse(body: bytes) -> dict[str, Any]:
    """A JSON object. Raises ApiError for anything else, and for text that is no Unicode."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_not_json)
        json.dumps(value, ensure_ascii=False).encode("utf-8")  # half surrogates are no text
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise bad_value(None, f"the body is not valid Unicode: {error.reason}") from None
    except RecursionError:
        raise bad_value(None, "the body is nested too deeply") from None
    except ValueError as error:
        raise bad_value(None, f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad_value(None, f"the body must be a JSON object, got {_shown(value)}")
    return value


def check(value: Any, schema: Schema, where: str) -> None:
    """Raise ApiError naming the place where `value` is not what `schema` says."""
    if "anyOf" in schema:
        return _check_any(value, schema["anyOf"], where)
    kind = schema.get("type")
    if kind is not None and not _IS[kind][1](value):
        _refuse(where, f"must be {_IS[kind][0]}", value)
    if "enum" in schema and not any(value is v or value == v for v in schema["enum"]):
        allowed = " or ".join(json.dumps(v) for v in schema["enum"])
        reason = schema.get("x-reason")
        _refuse(where, f"must be {allowed}{f' ({reason})' if reason else ''}", value)
    _BY_KIND.get(kind or "", _check_nothing)(value, schema, where)


def _check_any(value: Any, schemas: list[Schema], where: str) -> None:
    """One of several; the complaint is that of the one that was most likely meant."""
    complaints = []
    for schema in schemas:
        try:
            return check(value, schema, where)
        except ApiError as error:
            complaints.append((error.param != where, _IS[schema["type"]][1](value), error))
    nearest = max(complaints, key=lambda complaint: complaint[:2])
    if not nearest[1]:
        _refuse(where, f"must be {' or '.join(_named(s) for s in schemas)}", value)
    raise nearest[2]


def _named(schema: Schema) -> str:
    name = _IS[schema["type"]][0]
    return f"{name} ({schema['title']})" if "title" in schema else name


def _check_nothing(value: Any, schema: Schema, where: str) -> None:
    pass


def _check_number(value: float, schema: Schema, where: str) -> None:
    if not math.isfinite(value):
        _refuse(where, "must be finite", value)
    low, high, above = (schema.get(k) for k in ("minimum", "maximum", "exclusiveMinimum"))
    if low is not None and value < low:
        _refuse(where, f"must be at least {low}", value)
    if above is not None and value <= above:
        _refuse(where, f"must be above {above}", value)
    if high is not None and value > high:
        _refuse(where, f"must be at most {high}", value)


def _check_text(value: str, schema: Schema, where: str) -> None:
    if len(value) < schema.get("minLength", 0):
        _refuse(where, "must not be empty", value)


def _check_list(value: list[Any], schema: Schema, where: str) -> None:
    low, high = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if not low <= len(value) <= high:
        bounds = "be empty" if high == 0 else f"hold {low} to {high} items"
        reason = schema.get("x-reason", f"it has {len(value)}")
        raise bad_value(where, f"{where} must {bounds}: {reason}")
    if "items" in schema:
        for i, item in enumerate(value):
            check(item, schema["items"], f"{where}[{i}]")


def _check_object(value: dict[str, Any], schema: Schema, where: str) -> None:
    known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    names = schema.get("propertyNames")
    for name, item in value.items():
        inside = f"{where}.{name}"
        if name not in known and others is False:
            raise bad_value(
                inside,
                f"unknown field {inside!r:.120}; known: {', '.join(known)}",
                "unknown_parameter",
            )
        if names and not re.fullmatch(names["pattern"], name):
            raise bad_value(where, f"{where} has the key {name!r:.60}, but {names['title']}")
        if item is not None or name not in known:
            check(item, known.get(name, others), inside)
    for name in schema.get("required", ()):
        if value.get(name) is None:
            raise bad_value(f"{where}.{name}", f"{where}.{name} is missing", "missing_parameter")


_BY_KIND: dict[str, Callable[[Any, Schema, str], None]] = {
    "number": _check_number,
    "integer": _check_number,
    "string": _check_text,
    "array": _check_list,
    "object": _check_object,
}


def _refuse(where: str, expected: str, value: Any) -> NoReturn:
    raise bad_value(where, f"{where} {expected}, got {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"{_IS['array' if isinstance(value, list) else 'object'][0]}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"


def _not_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
