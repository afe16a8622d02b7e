"""Keywords of JSON schemas that the grammar of an answer leaves out, and notes that say so.

They are annotations of a value rather than rules for writing it: uniqueItems, formats that are not
known, and bounds beyond all numbers of the grammar. Where it is possible, the value of an answer is
checked for them afterwards. `propertyNames` with a list of names is written as `properties`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from .keywords import FORMATS

DEFINITIONS = ("$defs", "definitions")
"""The keywords under which a schema defines schemas that other parts refer to."""

NAMED = ("properties", "patternProperties", *DEFINITIONS)
"""The keywords with schemas by names."""

LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
"""The keywords with lists of schemas."""

SINGLE = ("items", "additionalProperties")
"""The keywords with one schema."""

LARGEST = (1 << 63) - 1024  # llguidance cuts limits to 64 bits, and overflows its stack at -2^63
SIGNS = {"minimum": 1, "exclusiveMinimum": 1, "maximum": -1, "exclusiveMaximum": -1}
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,), "boolean": (bool,), "null": (type(None),), "array": (list,),
    "object": (dict,), "integer": (int, float), "number": (int, float),
}  # fmt: skip

Path = tuple[str, ...]


def place_at(path: Path) -> str:
    """Return the place of a part in a schema, for errors and notes."""
    return "/" + "/".join(key if len(key) <= 60 else f"{key[:60]}…" for key in path)


def followed(schema: Any) -> tuple[Any, tuple[str, ...]]:
    """Return a schema as the grammar of answers follows it, and a note for each keyword that it
    leaves out.
    """
    notes: list[str] = []

    def change(part: dict[str, Any], path: Path) -> dict[str, Any]:
        for keyword, why in _left_out(part):
            del part[keyword]
            if why:
                notes.append(f"{why} (at {place_at(path)})")
        return _with_listed_names(part, schema)

    return rewritten(schema, change), tuple(notes)


def rewritten(
    schema: Any, change: Callable[[dict[str, Any], Path], dict[str, Any]], path: Path = ()
) -> Any:
    """Return a copy of a schema in which `change` has replaced each subschema, the innermost first.

    change: is called with a copy of a subschema and its place. Values of other keywords, such as
    enum and const, stay as they are.
    """
    if not isinstance(schema, Mapping):
        return schema
    result = dict(schema)
    for key, value in schema.items():
        if key in NAMED and isinstance(value, Mapping):
            result[key] = {
                name: rewritten(part, change, (*path, key, name)) for name, part in value.items()
            }
        elif key in (*LISTED, "items") and isinstance(value, list):
            result[key] = [
                rewritten(part, change, (*path, key, str(i))) for i, part in enumerate(value)
            ]
        elif key in (*SINGLE, "propertyNames"):
            result[key] = rewritten(value, change, (*path, key))
    return change(result, path)


def _left_out(part: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the keywords of a subschema that are left out, each with its note ("" for none)."""
    left_out = []
    if isinstance(unique := part.get("uniqueItems"), bool):
        left_out.append(("uniqueItems", "uniqueItems is not enforced" if unique else ""))
    form = part.get("format")
    if isinstance(form, str) and form not in FORMATS:
        kinds = part.get("type", "string")
        is_text = "string" in (kinds if isinstance(kinds, list) else [kinds])
        left_out.append(("format", f"the format {form:.40} is not enforced" if is_text else ""))
    for name, sign in SIGNS.items():
        bound: Any = part.get(name)
        if _is_number(bound) and sign * bound < -LARGEST:
            shown = Decimal(bound).normalize()
            left_out.append((name, f"{name} {shown:.6g} is not enforced"))
    return left_out


def _with_listed_names(part: dict[str, Any], schema: Any) -> dict[str, Any]:
    """Return a subschema with properties in place of propertyNames that lists all names."""
    rule = part.get("propertyNames")
    names, own = _listed(rule, schema), part.get("properties", {})
    if rule in ({}, True, {"type": "string"}):
        del part["propertyNames"]
    elif names is not None and not part.get("patternProperties") and isinstance(own, Mapping):
        del part["propertyNames"]
        other = part.get("additionalProperties", {})
        allowed = {name: own.get(name, other) for name in names}
        part |= {"properties": allowed, "additionalProperties": False}
    return part


def _listed(rule: Any, schema: Any) -> list[str] | None:
    """Return the names that a rule for names lists, None if it does not list them."""
    for _ in range(10):  # references to references
        if not isinstance(rule, Mapping) or "$ref" not in rule:
            break
        rule = _referred(rule["$ref"], schema)
    if not isinstance(rule, Mapping):
        return None
    names = [rule["const"]] if "const" in rule else rule.get("enum")
    others = rule.keys() - {"enum", "const", "type", "title", "description"}
    if others or not isinstance(names, list):
        return None
    return [name for name in names if isinstance(name, str)]


def _referred(reference: Any, schema: Any) -> Any:
    """Return the part of a schema that a reference such as #/$defs/NAME names, None if none."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    for key in filter(None, reference[1:].split("/")):
        key = key.replace("~1", "/").replace("~0", "~")
        schema = schema.get(key) if isinstance(schema, Mapping) else None
    return schema


# --- checking the value of an answer for what its grammar left out --------------------------------


def keeps(schema: Any, value: Any, whole: Any = None) -> bool:
    """Return True if a value that follows the grammar of a schema also keeps to its uniqueItems and
    to its bounds.

    whole: the schema that contains the definitions; None if that is `schema`.
    """
    whole = schema if whole is None else whole
    if not isinstance(schema, Mapping):
        return True
    is_set = isinstance(value, list) and schema.get("uniqueItems") is True
    if is_set and len({*map(_frozen, value)}) < len(value):
        return False
    if _is_number(value) and not _is_within(schema, value):
        return False
    if not all(keeps(part, inner, whole) for part, inner in _inner(schema, value)):
        return False
    if "$ref" in schema and not keeps(_referred(schema["$ref"], whole), value, whole):
        return False
    if not all(keeps(part, value, whole) for part in schema.get("allOf", ())):
        return False
    return all(
        any(_may_be(part, value, whole) and keeps(part, value, whole) for part in schema[name])
        for name in ("anyOf", "oneOf")
        if name in schema
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_within(schema: Mapping[str, Any], value: float) -> bool:
    bounds = [(name, schema[name]) for name in SIGNS if _is_number(schema.get(name))]
    return not any(
        SIGNS[name] * value < SIGNS[name] * bound
        or (value == bound and name.startswith("exclusive"))
        for name, bound in bounds
    )


def _inner(schema: Mapping[str, Any], value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the items and fields of a value, each with a subschema that it follows."""
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        yield from zip(first, value, strict=False)
        yield from ((schema.get("items"), item) for item in value[len(first) :])
    elif isinstance(value, dict):
        named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for key, item in value.items():
            parts = [named[key]] if key in named else []
            with contextlib.suppress(re.error):
                parts += [part for pattern, part in patterns.items() if re.search(pattern, key)]
            yield from ((part, item) for part in parts or [schema.get("additionalProperties")])


def _may_be(schema: Any, value: Any, whole: Any) -> bool:
    """Return True if a value may follow an alternative, as far as types and constants tell."""
    if not isinstance(schema, Mapping):
        return schema is not False
    if "$ref" in schema and not _may_be(_referred(schema["$ref"], whole), value, whole):
        return False
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds and not any(_is_of(value, kind) for kind in kinds):
        return False
    constants = [schema["const"]] if "const" in schema else schema.get("enum", [value])
    if _frozen(value) not in map(_frozen, constants):
        return False
    if not isinstance(value, dict):
        return True
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if not {*schema.get("required", ())} <= value.keys():
        return False
    if is_closed and not value.keys() <= {*schema.get("properties", ())}:
        return False
    return all(_may_be(part, inner, whole) for part, inner in _inner(schema, value))


def _is_of(value: Any, kind: str) -> bool:
    is_bool = isinstance(value, bool)
    return isinstance(value, _KINDS.get(kind, ())) and (kind == "boolean") == is_bool


def _frozen(value: Any) -> Any:
    """Return a value that can be hashed, equal for values that are equal in JSON."""
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return frozenset((key, _frozen(item)) for key, item in value.items())
    return isinstance(value, bool), value
