"""JSON schemas of requests, given as schemas or as Python types that answers are converted to."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from ..config import SamplingParams
from ..errors import ConfigError
from .grammars import MOST_AT_ONCE, MOST_TEXT
from .omissions import DEFINITIONS, LARGEST, LISTED, NAMED, SIGNS, SINGLE, keeps, place_at

_DEEPEST = 60  # levels of a schema; llguidance reads about twice as many
_MOST_REMAINDERS = 10_000  # remainders of all multipleOf for one value, with a range or without
_MOST_IN_ALL = 20_000  # remainders of all multipleOf, summed: each takes 10 µs and 1 KB to compile
_MOST_PATTERNS = 8192  # characters of all patterns: 4,000 times `.*` took 1.8 s and 300 MB
_MOST_TRIALS = 200  # parts that are tried to find the one that cannot be followed
_LOOSE = re.compile(r"\A(?!\^)|\.|\[\^|\\[DPSWps]|(?<!\$)\Z")  # may match control characters
_OF_FIELDS = (  # keywords that say which fields an object may have
    "properties", "patternProperties", "propertyNames", "unevaluatedProperties", "$ref", "allOf",
    "anyOf", "oneOf", "if", "dependentSchemas",
)  # fmt: skip
_COUNTED, _MOST_COUNTED = re.compile(r"[{,](\d+)(?=[,}])"), 20  # repetitions in a pattern
_CONTROLS = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # JSON has no short escapes for these
_ASKS_FOR_CONTROLS = re.compile(rf"{_CONTROLS.pattern}|\\(?:c|v|0|x[017]|u00[017])")


def text_of(schema: Any, what: str = "schema", *, is_open: bool = True) -> str:
    """Return a request's JSON schema as text. Raises ConfigError if it cannot be used.

    schema: a JSON object or boolean, the text of one, or a Python type; types have no fields but
    their own. what: its name in errors. is_open: False to allow no other fields in the objects of
    other schemas either.
    """
    if isinstance(schema, str):
        try:
            parsed = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{what} is no JSON: {error}") from None
    elif isinstance(schema, (Mapping, bool)):
        parsed = schema
    else:
        parsed = closed(_of_type(schema))
    if not isinstance(parsed, (Mapping, bool)):
        raise ConfigError(f"a schema is a JSON object, got {parsed!r:.80}")
    check_bounds(parsed, what)
    parsed = parsed if is_open else closed(parsed)
    try:
        return json.dumps(parsed, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{what} cannot be written as JSON: {error}") from None


def guidance(schema: Any) -> dict[str, Any]:
    r"""Return the options that llguidance gets with a schema: how its JSON is written.

    There are no blanks, and every character may be written as \uXXXX. Where a text has a pattern,
    however, llguidance allows this for control characters only. A model that wants to write \u00e9
    could then only go on with one of these, so \u is not allowed in such a schema, except if it
    asks for control characters, or repeats something so often in a pattern that llguidance would
    run out of its limits in the middle of an answer.
    """
    options: dict[str, Any] = {
        "whitespace_flexible": False,
        "json_allow_general_unicode_escapes": True,
    }
    patterns: list[str] = []
    texts: list[str] = []
    for value, path in _values(schema):
        if isinstance(value, str):
            (patterns if path[-1:] == ("pattern",) else texts).append(value)
        elif path[-1:] == ("patternProperties",) and isinstance(value, Mapping):
            patterns += map(str, value)
    asked = any(map(_CONTROLS.search, texts)) or any(map(_ASKS_FOR_CONTROLS.search, patterns))
    is_large = any(int(n) > _MOST_COUNTED for each in patterns for n in _COUNTED.findall(each))
    if any(map(_LOOSE.search, patterns)) and not asked and not is_large:
        options["json_allowed_escapes"] = 'nrbtf\\"'
    return options


def value_of(schema: Any, text: str) -> Any:
    """Return the value of a complete answer: an instance of `schema` if that is a type, else JSON.

    It is None if the type refuses the value by a rule that is not in the schema, or if the value
    does not follow a keyword that the grammar left out. It is also None if the value is nested too
    deeply for Python.
    """
    try:
        value = json.loads(text)
        if not keeps(json.loads(text_of(schema)), value):
            return None
        if isinstance(schema, (str, Mapping, bool)):
            return value
        if hasattr(schema, "model_validate_json"):
            return schema.model_validate_json(text)
        return msgspec.json.decode(text, type=schema)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None


def _of_type(kind: Any) -> Any:
    if hasattr(kind, "model_json_schema"):  # a pydantic model; pydantic need not be imported
        return kind.model_json_schema()
    try:
        return msgspec.json.schema(kind)
    except (TypeError, ValueError) as error:
        why = str(error).partition(" requires either:")[0]  # the rest is advice on using msgspec
        raise ConfigError(
            "schema must be a mapping, its text or a type that JSON can hold, got "
            f"{kind!r:.80}: {why}"
        ) from None


def closed(schema: Any) -> Any:
    """Return a copy of a schema in which objects have no fields but those that it names, where it
    does not say whether they may.

    An object stays open if several schemas together say which fields it has.
    """
    joined: set[str] = set()  # references to schemas that describe only a part of an object
    while True:
        n = len(joined)
        result = _closed(schema, "#", joined, is_whole=True)
        if len(joined) == n:
            return result


def _closed(schema: Any, place: str, joined: set[str], *, is_whole: bool) -> Any:
    """Return a closed copy of the schema at a place; add the references that it joins to `joined`.

    is_whole: False if the schema describes only a part of an object.
    """
    if isinstance(schema, list):
        each = enumerate(schema)
        return [_closed(part, f"{place}/{i}", joined, is_whole=is_whole) for i, part in each]
    if not isinstance(schema, Mapping):
        return schema
    is_whole = is_whole and place not in joined
    fields = [key for key in _OF_FIELDS if key in schema and not _only_requires(schema[key])]
    is_joined = len(fields) > 1 or (fields == ["allOf"] and len(schema["allOf"]) > 1)
    if isinstance(schema.get("$ref"), str) and (is_joined or not is_whole):
        joined.add(schema["$ref"])
    result = dict(schema)
    for key, value in schema.items():
        inner = f"{place}/{key}"
        if key in NAMED and isinstance(value, Mapping):
            result[key] = {
                name: _closed(part, f"{inner}/{name}", joined, is_whole=True)
                for name, part in value.items()
            }
        elif key in ("anyOf", "oneOf", "allOf"):
            result[key] = _closed(value, inner, joined, is_whole=is_whole and not is_joined)
        elif key in (*LISTED, *SINGLE):
            result[key] = _closed(value, inner, joined, is_whole=True)
    kinds = schema.get("type", "object")
    may_be_object = "object" in (kinds if isinstance(kinds, list) else [kinds])
    if is_whole and fields == ["properties"] and may_be_object:
        result.setdefault("additionalProperties", False)
    return result


def _only_requires(parts: Any) -> bool:
    """Return True for a list of schemas that only say which fields there must be."""
    return isinstance(parts, list) and all(
        isinstance(part, Mapping) and part.keys() <= {"required", "title"} for part in parts
    )


def check_bounds(schema: Any, what: str) -> None:
    """Raise ConfigError, with the place, for a schema that would take too long or too much memory.

    what: the schema's name in the message.
    """
    in_patterns, at_once, multiples = 0, 0, []
    for value, path in _values(schema):
        if len(path) > _DEEPEST:
            raise ConfigError(
                f"{what} cannot be followed: it is nested more than {_DEEPEST} levels deep (at "
                f"{place_at(path[:6])}…); make it flatter"
            )
        if isinstance(value, str) and len(value) > MOST_TEXT and {*path[-2:]} & {"const", "enum"}:
            raise ConfigError(
                f"{what} cannot be followed: a text has {len(value)} characters, and may have "
                f"{MOST_TEXT} (at {place_at(path)})"
            )
        in_patterns += _pattern_length(value, path)
        if in_patterns > _MOST_PATTERNS:
            raise ConfigError(
                f"{what} cannot be followed: its patterns have more than {_MOST_PATTERNS} "
                f"characters (at {place_at(path[:6])}); use enum for lists of words"
            )
        if path[-1:] == ("allOf",) and isinstance(value, list) and len(value) > 1:
            at_once += len(value)
        sign = SIGNS.get(path[-1], 0) if path and isinstance(value, (int, float)) else 0
        if sign and sign * value > LARGEST:
            end = "most" if sign > 0 else "least"
            raise ConfigError(
                f"{what} cannot be followed: {path[-1]} is {Decimal(value).normalize():.6g}, and "
                f"may be {sign * LARGEST} at {end} (at {place_at(path)})"
            )
        if path[-1:] == ("multipleOf",):
            multiples.append((value, path))
    if in_patterns and at_once > MOST_AT_ONCE:
        raise ConfigError(
            f"{what} cannot be followed: its allOf have {at_once} schemas, and may have "
            f"{MOST_AT_ONCE} where there are patterns; join them"
        )
    _check_multiples(multiples, what)


def _check_multiples(multiples: list[tuple[Any, tuple[str, ...]]], what: str) -> None:
    """Raise ConfigError, with the place, if one value's multipleOf make too many remainders."""
    together: dict[tuple[str, ...], int] = {}
    for value, path in sorted(multiples, key=lambda multiple: len(_applies_to(multiple[1]))):
        place = _applies_to(path)
        made = math.lcm(together.get(place, together.get((), 1)), _remainders(value) or 1)
        together[place] = made
        if made > _MOST_REMAINDERS:
            raise ConfigError(
                f"{what} cannot be followed: multipleOf {Decimal(value).normalize():.6g} makes "
                f"{Decimal(made).normalize():.6g} remainders with the others, and may "
                f"make {_MOST_REMAINDERS} (at {place_at(path)})"
            )
    _check_sum([value for value, _ in multiples], what)


def check_remainders(schema: Any, what: str = "the tools") -> None:
    """Raise ConfigError if compiling all multipleOf in the schemas would take too long."""
    _check_sum([value for value, path in _values(schema) if path[-1:] == ("multipleOf",)], what)


def _check_sum(multiples: list[Any], what: str) -> None:
    in_all = sum(map(_remainders, multiples))
    if in_all > _MOST_IN_ALL:
        raise ConfigError(
            f"{what} cannot be followed: all multipleOf make {in_all} remainders when they are "
            f"added up, and may make {_MOST_IN_ALL}"
        )


def _applies_to(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the place of the values that the keyword at `path` applies to.

    It is () if they may be anywhere.
    """
    if {*path} & {*DEFINITIONS, "patternProperties", "additionalProperties", "if", "then", "else"}:
        return ()
    return tuple(key for key in path[:-1] if key not in LISTED and not key.isdecimal())


def _values(schema: Any) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield the schema and all values in it, each with its place."""
    todo: list[tuple[Any, tuple[str, ...]]] = [(schema, ())]
    while todo:
        value, path = todo.pop()
        yield value, path
        items: Any = value.items() if isinstance(value, Mapping) else ()
        items = enumerate(value) if isinstance(value, list) else items
        todo += [(item, (*path, str(key))) for key, item in items]


def _pattern_length(value: Any, path: tuple[str, ...]) -> int:
    if path[-1:] == ("pattern",) and isinstance(value, str):
        return len(value)
    return len(path[-1]) if path[-2:-1] == ("patternProperties",) else 0


def _remainders(value: Any) -> int:
    """Return how many remainders a multipleOf makes, 0 if it is not a number.

    The number of remainders is the multipleOf without its decimal point.
    """
    if isinstance(value, float) and math.isfinite(value):
        value = Decimal(repr(value)).normalize()
        value = value.scaleb(-min(int(value.as_tuple().exponent), 0))
    return abs(int(value)) if isinstance(value, (int, Decimal)) else 0


def place_of(schema: Any, is_wrong: Callable[[Any], bool]) -> str:
    """Return the place of the innermost part of a schema that is wrong by itself.

    It is "" if only the schema as a whole is wrong. is_wrong: returns True if a schema is wrong. At
    most 200 parts are tried.
    """
    trials = iter(range(_MOST_TRIALS))

    def fails(part: Any) -> bool:
        return next(trials, None) is not None and is_wrong(_with_definitions(part, schema))

    path: tuple[str, ...] = ()
    inner: tuple[tuple[str, ...], Any] | None = ((), schema)
    while inner:
        path += inner[0]
        inner = next((each for each in _parts(inner[1]) if fails(each[1])), None)
    return place_at(path) if path else ""


def _parts(schema: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the direct subschemas of a schema, each with its place; leave out True and False."""
    yield from ((place, part) for place, part in _all_parts(schema) if isinstance(part, Mapping))


def _all_parts(schema: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in schema.items() if isinstance(schema, Mapping) else ():
        if key in NAMED:
            yield from (((key, name), part) for name, part in _items(value))
        elif key in LISTED:
            parts = value if isinstance(value, list) else ()
            yield from (((key, str(i)), part) for i, part in enumerate(parts))
        elif key in SINGLE:
            yield (key,), value


def _items(value: Any) -> Any:
    return value.items() if isinstance(value, Mapping) else ()


def _with_definitions(part: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    return {**{key: schema[key] for key in DEFINITIONS if key in schema}, **part}


def parsed(params: SamplingParams, text: str) -> Any:
    """Return the value of a complete answer, None for a request without a schema.

    It is an instance of the schema if the schema is a type, else a JSON value.
    """
    return None if params.schema is None else value_of(params.schema, text)
