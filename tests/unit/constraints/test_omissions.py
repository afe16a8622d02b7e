"""Keywords that the grammar of an answer leaves out: what is said, and what is checked later."""

import enum
import ipaddress
import json
from pathlib import Path
from re import Pattern
from typing import Literal, Optional

import pytest

from edgespec import ConfigError
from edgespec.constraints import schemas
from edgespec.constraints.omissions import followed, keeps
from tests.unit.constraints.test_escapes import said

pytest.importorskip("llguidance")
pydantic = pytest.importorskip("pydantic")


class Colour(enum.Enum):
    red = "red"
    blue = "blue"


def model(kind, **field):
    return pydantic.create_model("Answer", x=(kind, pydantic.Field(**field)))


ANNOTATED = {
    "Path": (Path, "a/b"),
    "SecretStr": (pydantic.SecretStr, "xyz"),
    "bytes": (bytes, "xyz"),
    "Pattern": (Pattern, "a+"),
    "IPvAnyAddress": (pydantic.IPvAnyAddress, "::1"),
    "IPv4Network": (ipaddress.IPv4Network, "10.0.0.0/8"),
    "PostgresDsn": (pydantic.PostgresDsn, "postgres://u@h:5432/d"),
    "Base64Str": (pydantic.Base64Str, "aGk="),
    "a list of Path": (list[Path], ["a", "b"]),
    "an optional Path": (Optional[Path], None),  # noqa: UP045
}


@pytest.mark.parametrize("name", ANNOTATED)
def test_formats_that_are_not_known_are_said_in_a_note(name):
    kind, value = ANNOTATED[name]
    typed = model(kind)
    answer = said(json.dumps({"x": value}, separators=(",", ":")), schema=typed)
    assert answer.parsed == typed(x=value)
    (note,) = answer.notes
    assert note.startswith("the format ")
    assert "is not enforced (at /properties/x" in note


def test_known_formats_are_enforced_without_a_note():
    answer = said('"10.0.0.1"', schema={"type": "string", "format": "ipv4"})
    assert (answer.parsed, answer.notes) == ("10.0.0.1", ())
    assert said('"strange"', schema={"type": "string", "format": "ipv4"}).text != '"strange"'
    assert not said("5", schema={"type": "integer", "format": "int64"}).notes


@pytest.mark.parametrize(("text", "value"), [("[1,2]", {1, 2}), ("[1,1]", None), ("[]", set())])
@pytest.mark.parametrize("kind", [set[int], frozenset[int], "pydantic", "schema"])
def test_sets_are_checked_before_they_are_parsed(kind, text, value):
    if kind == "pydantic":
        found = said(f'{{"x":{text}}}', schema=model(set[int]))
        found_value = found.parsed and found.parsed.x
    else:
        schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
        found = said(text, schema=schema if kind == "schema" else kind)
        found_value = found.parsed
    assert text in found.text
    assert found_value == (value if kind != "schema" or value is None else [*value])
    assert "uniqueItems is not enforced" in found.notes[0]


SET = {"type": "array", "uniqueItems": True}


@pytest.mark.parametrize(("schema", "kept", "broken"), [
    (SET, [1, "1", None, True, [1], {"a": 1}], [1, 1.0]),
    (SET, [[1, True], [1, 1]], [[1, {"a": 2, "b": 3}], [1, {"b": 3, "a": 2}]]),
    (SET | {"uniqueItems": False}, [1, 1], None),
    ({"properties": {"a": SET}}, {"a": [1], "b": [1, 1]}, {"a": [1, 1]}),
    ({"additionalProperties": SET, "properties": {"b": {}}}, {"b": [1, 1]}, {"a": [1, 1]}),
    ({"patternProperties": {"^a": SET}}, {"b": [1, 1]}, {"ab": [1, 1]}),
    ({"items": SET}, [[1], [1]], [[2], [1, 1]]),
    ({"prefixItems": [{}, SET]}, [[1, 1], [1]], [[], [1, 1]]),
    ({"prefixItems": [{}], "items": SET}, [[1, 1], [1]], [[], [1, 1]]),
    ({"allOf": [{}, SET]}, [1], [1, 1]),
    ({"anyOf": [{"type": "null"}, SET]}, None, [1, 1]),
    ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/s"}], "$defs": {"s": SET}}, "a", [1, 1]),
    ({"oneOf": [{"properties": {"k": {"const": "a"}, "x": SET}, "required": ["k", "x"]},
                {"properties": {"k": {"const": "b"}, "x": {}}, "required": ["k", "x"]}]},
     {"k": "b", "x": [1, 1]}, {"k": "a", "x": [1, 1]}),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": SET}}, [1], [1, 1]),
    ({"type": "number", "maximum": 1e20}, 1e20, 1e21),
    ({"type": "number", "exclusiveMinimum": -1e20}, 0, -1e20),
    ({"type": "number", "maximum": 1e308}, 1e308, float("inf")),
], ids=str)  # fmt: skip
def test_what_is_checked_afterwards(schema, kept, broken):
    assert keeps(schema, kept)
    assert broken is None or not keeps(schema, broken)


@pytest.mark.parametrize("bounds", [
    {"maximum": 1e20}, {"maximum": 10**20}, {"minimum": -1e20}, {"exclusiveMaximum": 1e308},
    {"minimum": -1e308, "maximum": 1e308},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_bounds_that_no_value_reaches_are_dropped(kind, bounds):
    answer = said("5", schema={"type": kind, **bounds})
    assert answer.parsed == 5
    assert [note.partition(" ")[0] for note in answer.notes] == list(bounds)


def test_bounds_that_exclude_every_value_are_refused():
    with pytest.raises(ConfigError, match="minimum is 1e\\+20, and may be"):
        said("5", schema={"type": "integer", "minimum": 1e20})


@pytest.mark.parametrize("kind", [dict[Literal["red", "blue"], int], dict[Colour, int]], ids=str)
def test_names_of_a_list(kind):
    schema = pydantic.TypeAdapter(kind).json_schema()
    for value in ({"red": 1}, {"red": 1, "blue": 2}, {}):
        answer = said(json.dumps(value, separators=(",", ":")), schema=schema)
        assert (answer.parsed, answer.notes) == (value, ())
    assert "green" not in said('{"green":1}', schema=schema, max_tokens=40).text
    typed = model(kind)
    assert said('{"x":{"blue":2}}', schema=typed).parsed == typed(x={"blue": 2})


def test_names_with_properties_of_their_own():
    schema = {
        "type": "object", "properties": {"a": {"type": "null"}, "z": {}},
        "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"},
    }  # fmt: skip
    left, notes = followed(schema)
    assert left["properties"] == {"a": {"type": "null"}, "b": {"type": "integer"}}
    assert (left["additionalProperties"], "propertyNames" in left, notes) == (False, False, ())


@pytest.mark.parametrize("schema", [
    {"type": "object", "propertyNames": {"maxLength": 3}},
    {"not": {"type": "string"}},
    {"type": "array", "contains": {}},
    {"type": "array", "uniqueItems": "yes"},
    {"type": "string", "pattern": "(?=a)"},
], ids=str)  # fmt: skip
def test_everything_else_is_refused_by_its_name(schema):
    with pytest.raises(ConfigError, match="cannot be followed"):
        said("{}", schema=schema)


def test_values_of_enum_and_const_stay_as_they_are():
    value = {"format": "path", "uniqueItems": True}
    schema = {"enum": [value], "properties": {"format": {"const": value}, "uniqueItems": {}}}
    assert followed(schema) == (schema, ())
    assert schemas.value_of({"const": value}, json.dumps(value)) == value
