"""Objects have only the fields that their schema names, unless it says otherwise."""

import pytest

from edgespec import SamplingParams
from edgespec.constraints import schemas
from edgespec.constraints.compiler import Constraints
from tests.helpers.constrained import TOKENIZER

pytest.importorskip("llguidance")


INT = {"type": "integer"}
A, B = {"type": "object", "properties": {"a": INT}}, {"type": "object", "properties": {"b": INT}}
CLOSED_A, CLOSED_B = (each | {"additionalProperties": False} for each in (A, B))


@pytest.mark.parametrize(("schema", "expected"), [
    (A, CLOSED_A),
    ({"properties": {"a": INT}}, {"properties": {"a": INT}, "additionalProperties": False}),
    (A | {"additionalProperties": True}, A | {"additionalProperties": True}),
    (A | {"type": ["object", "null"]}, CLOSED_A | {"type": ["object", "null"]}),
    (A | {"type": "array", "items": B}, A | {"type": "array", "items": CLOSED_B}),
    ({"type": "object"}, {"type": "object"}),
    ({"type": "object", "properties": {"x": A}},
     {"type": "object", "properties": {"x": CLOSED_A}, "additionalProperties": False}),
    ({"anyOf": [A, B]}, {"anyOf": [CLOSED_A, CLOSED_B]}),
    ({"allOf": [A]}, {"allOf": [CLOSED_A]}),
    ({"allOf": [A, B]}, {"allOf": [A, B]}),
    (A | {"allOf": [B]}, A | {"allOf": [B]}),
    (A | {"anyOf": [B]}, A | {"anyOf": [B]}),
    (A | {"anyOf": [{"required": ["a"]}]}, CLOSED_A | {"anyOf": [{"required": ["a"]}]}),
    (A | {"patternProperties": {"^x": A}}, A | {"patternProperties": {"^x": CLOSED_A}}),
    ({"const": A, "enum": [B], "default": A}, {"const": A, "enum": [B], "default": A}),
    ({"$ref": "#/$defs/a", "$defs": {"a": A}}, {"$ref": "#/$defs/a", "$defs": {"a": CLOSED_A}}),
    ({"allOf": [{"$ref": "#/$defs/a"}, B], "$defs": {"a": A, "b": B}},
     {"allOf": [{"$ref": "#/$defs/a"}, B], "$defs": {"a": A, "b": CLOSED_B}}),
    (B | {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": A}},
     B | {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": A}}),
    (True, True),
], ids=str)  # fmt: skip
def test_objects_have_the_fields_that_are_named(schema, expected):
    assert schemas.closed(schema) == expected


@pytest.mark.parametrize(("given", "is_open"), [
    ({}, False), ({"additional_properties": False}, False), ({"additional_properties": True}, True),
])  # fmt: skip
def test_fields_that_a_schema_leaves_open(given, is_open):
    params = SamplingParams(schema=A, **given)
    matcher = Constraints(TOKENIZER).of(params).matcher()
    matcher.accept(TOKENIZER.encode('{"a":1'))
    assert matcher.allows(TOKENIZER.encode(",")[0]) == is_open
