"""Conversion of TOML or JSON values to msgspec Structs, with edgespec's own error messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from .config import did_you_mean
from .errors import ConfigError
from .kept_files import one_line

T = TypeVar("T")


class Mismatch(ValueError):
    """An error for a TOML or JSON value that does not fit its schema.

    path: the place of the value, such as "files[0].size"; "" for the whole document. problem:
    "unknown" (a field that the schema does not have), "missing" (a field that it needs) or "value"
    (a wrong value). expected, found: descriptions of the allowed and of the given value, or "".
    hint: advice on what to write instead, or "".
    """

    def __init__(
        self, path: str, problem: str, expected: str = "", found: str = "", hint: str = ""
    ) -> None:
        self.path, self.problem = path, problem
        self.expected, self.found, self.hint = expected, found, hint
        said = {"unknown": f"unknown field {path!r}", "missing": f"the field {path!r} is missing"}
        message = said.get(problem) or f"{path} {expected}".removeprefix(" ")
        ending = (f", got {found}" if found else "") + (f"; {hint}" if hint else "")
        super().__init__(message + ending)


def convert(values: Any, kind: type[T], where: str, error: type[Exception] = ConfigError) -> T:
    """Convert parsed TOML or JSON to a `kind`; raise `error` if the values do not fit.

    kind: a msgspec Struct with forbid_unknown_fields; a field's `Meta(extra={"reason": …})` becomes
    the hint of a Mismatch. where: the source of the values, which begins the message of the error.
    error: the type of the exception; a Mismatch is its cause.
    """
    try:
        return checked(values, kind)
    except Mismatch as mismatch:
        raise error(f"{where}: {mismatch}") from mismatch


def checked(values: Any, kind: type[T]) -> T:
    """Convert parsed TOML or JSON to a `kind`; raise Mismatch if the values do not fit."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise _mismatch(str(error), values, kind) from None


def _mismatch(message: str, values: Any, kind: Any) -> Mismatch:
    """Translate msgspec's error message, which ends with the path of the wrong value."""
    pattern = r"(?s)(.*?)(?: - at (`key` in )?`\$\.?([^`]*)`)?"
    text, in_key, path = re.fullmatch(pattern, message).groups("")  # type: ignore[union-attr]
    types, value, seen = [msgspec.inspect.type_info(kind)], values, True
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", path):
        types = [inner for outer in types for inner in _inside(outer, name, value)]
        seen = seen and index != "..."
        value = value[int(index) if index else name] if seen else None
    if match := re.fullmatch("Object (contains unknown|missing required) field `(.*)`", text, re.S):
        name = f"{path}.{match[2]}" if path else match[2]
        if match[1].startswith("missing"):
            return Mismatch(name, "missing")
        known = [field.encode_name for outer in types for field in _fields(outer, value)]
        return Mismatch(name, "unknown", hint=did_you_mean(match[2], known))
    found = _shown(value) if seen and not in_key else ""
    reasons = [extra["reason"] for t in types if (extra := getattr(t, "extra", None))]
    if text.startswith("Invalid "):
        allowed = [v for t in types for one in _flat(t) for v in getattr(one, "values", ())]
        expected = "must be " + " or ".join(map(_shown, allowed))
    elif text.startswith("Expected "):
        wanted, _, got = text.removeprefix("Expected ").partition(", got ")
        expected, found = f"must be {_in_words(wanted)}", found or _in_words(got)
        if "of length" in wanted and isinstance(value, (str, list, tuple, dict)):
            found = f"one of length {len(value)}"
    else:  # the message comes from a __post_init__
        return Mismatch(f"{path}:" if path else "", "value", text)
    path = f"a key of {path}" if in_key else path
    return Mismatch(path, "value", expected, found, hint="; ".join(reasons))


def _flat(kind: Any) -> Iterator[Any]:
    """Yield the member types of a union, or the type itself if it is no union."""
    if isinstance(kind, msgspec.inspect.Metadata):
        yield from _flat(kind.type)
    elif isinstance(kind, msgspec.inspect.UnionType):
        for member in kind.types:
            yield from _flat(member)
    else:
        yield kind


def _fields(kind: Any, value: Any) -> Iterator[Any]:
    """Yield the fields of the Struct that `value` is meant to be."""
    for one in _flat(kind):
        if isinstance(one, msgspec.inspect.StructType) and (
            None in (one.tag_field, value) or value.get(one.tag_field) == one.tag
        ):
            yield from one.fields


def _inside(kind: Any, name: str, value: Any) -> Iterator[Any]:
    """Yield the types of the field `name` of a type, and the types of its items."""
    yield from (field.type for field in _fields(kind, value) if field.encode_name == name)
    for one in _flat(kind):
        if name and name == getattr(one, "tag_field", None):
            yield msgspec.inspect.LiteralType((one.tag,))
        yield from (getattr(one, k) for k in ("item_type", "value_type") if hasattr(one, k))


_WORDS = {
    "str": "text", "bool": "true or false", "int": "a whole number", "float": "a number",
    "array": "a list", "object": "an object",
}  # fmt: skip
_BOUNDS = {">=": "at least", ">": "above", "<=": "at most", "<": "below"}


def _in_words(expected: str) -> str:
    """Describe a type that msgspec writes as "`int | null`" or "`float` >= 0.0"."""
    kinds, _, rule = expected.lstrip("`").partition("`")
    names = [name for name in kinds.split(" | ") if name != "null"] or ["null"]
    words = " or ".join(_WORDS.get(name, name) for name in names)
    if bound := re.fullmatch(r"( of length)? (>=|>|<=|<) (.+)", rule):
        limit = f"{_BOUNDS[bound[2]]} {bound[3].removesuffix('.0')}"
        return f"{words} of length {limit}" if bound[1] else limit
    return words + rule.replace("matching regex", "that matches")


def _shown(value: Any) -> str:
    """Return a value as shortened JSON; return "a list" for a list, "an object" for an object."""
    if isinstance(value, (list, tuple, dict)):
        return "an object" if isinstance(value, dict) else "a list"
    text = one_line(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= 80 else text[:77] + "…"
