"""Schemas that explode, contradict themselves or are broken: refused with the place, and soon.

No time is asserted: what took seconds or hundreds of megabytes before it was bounded is refused.
"""

import pytest

from edgespec import ConfigError, SamplingParams
from edgespec.chat.constraints import AnswerConstraints
from edgespec.chat.format import AnswerFormat
from edgespec.chat.options import AnswerOptions
from edgespec.chat.tools import Tool
from edgespec.constraints.compiler import Constraints
from tests.helpers.formats import TEMPLATES, FormTokenizer

pytest.importorskip("llguidance")

CONSTRAINTS = Constraints(FormTokenizer())


def objects(key_count, depth):
    if not depth:
        return {"type": "string"}
    properties = {f"key{i}": objects(key_count, depth - 1) for i in range(key_count)}
    return {"type": "object", "properties": properties}


def lists(depth):
    return {"type": "array", "items": lists(depth - 1)} if depth else {"type": "string"}


def fields(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


ENDLESS = {"$defs": {"a": fields(a={"$ref": "#/$defs/a"})}, "$ref": "#/$defs/a"}
REFUSED = {
    "lists in lists": (lists(200), r"nested more than 60 levels deep \(at /items/items"),
    "deeper than Python goes": (None, "nested more than 60 levels deep"),
    "a long text": (fields(a={"const": "x" * 5000}), r"5000 .* \(at /properties/a/const\)"),
    "a long choice": (fields(a={"enum": ["x" * 5000]}), r"\(at /properties/a/enum/0\)"),
    "many remainders": (fields(a={"multipleOf": 999_983}), r"999983 .* \(at .*/a/multipleOf\)"),
    "remainders together": (
        {"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "988027 remainders",
    ),
    "large steps": (fields(a={"multipleOf": 1e9, "type": "number"}), r"1e\+9 .* \(at .*/a/mult"),
    "endless steps": ({"type": "integer", "multipleOf": 10**400}, r"1.*e\+400"),
    "many steps": (fields(**{f"a{i}": {"multipleOf": 9973} for i in range(3)}), "29919 remainders"),
    "a keyword that is not supported": (
        fields(a=fields(b={"type": "array", "items": {"type": "string", "not": {}}})),
        r"'not' is not supported; .* \(at /properties/a/properties/b/items\)",
    ),
    "a broken expression": (
        fields(a={"anyOf": [{"type": "null"}, {"type": "string", "pattern": "(["}]}),
        r"unclosed character class.*at /properties/a/anyOf/1",
    ),
    "a missing reference": (fields(b={"$ref": "#/$defs/b"}), "at /properties/b"),
    "a wrong type": (fields(b={"type": "strange"}), "at /properties/b"),
    "a circle of references": (
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, **fields(
            c={"$ref": "#/$defs/a"}
        )},
        "cannot be followed",
    ),
    "itself": ({"$ref": "#"}, "cannot be followed"),
    "an object that never ends": (ENDLESS, "cannot be followed"),
    "no number": (fields(a={"type": "integer", "minimum": 5, "maximum": 4}), "at /properties/a"),
    "alternatives of alternatives": (
        {"allOf": [{"anyOf": [fields(**{f"a{i}": {"const": j}}) for j in range(3)]}
                   for i in range(12)]},
        "too large",
    ),
}  # fmt: skip
FOLLOWED = {
    "a recursion": {
        "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}}},
        "$ref": "#/$defs/a",
    },
    "many objects": objects(6, 4),
    "thousands of fields that may be left out": objects(2000, 1),
    "thousands of choices": {"enum": [f"choice {i}" for i in range(8000)]},
    "references of references": {
        "$defs": {
            **{
                f"a{i}": {"properties": {k: {"$ref": f"#/$defs/a{i + 1}"} for k in "ab"}}
                for i in range(40)
            },
            "a40": {"type": "string"},
        },
        "$ref": "#/$defs/a0",
    },
    "long lists and texts": {"type": "array", "items": {"maxLength": 10**6}, "maxItems": 10**6},
    "small steps": {"type": "number", "multipleOf": 0.001},
    "large steps": {"type": "number", "multipleOf": 1e4, "minimum": 0, "maximum": 1e12},
}


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_is_refused_with_its_place(name):
    schema, reason = REFUSED[name]
    schema = nested(5000) if schema is None else schema
    with pytest.raises(ConfigError, match=reason):
        CONSTRAINTS.of(SamplingParams(schema=schema))


@pytest.mark.parametrize("name", FOLLOWED)
def test_a_schema_within_the_bounds_is_followed(name):
    assert CONSTRAINTS.of(SamplingParams(schema=FOLLOWED[name])).matcher().mask().any()


def of_tools(template, *schemas, strict=True):
    tools = [Tool("good", "", fields(a={"type": "integer"}))]
    tools += [Tool(f"bad{i}", "", schema, strict) for i, schema in enumerate(schemas)]
    made = AnswerFormat.of(TEMPLATES[template], {})
    return AnswerConstraints(CONSTRAINTS, made).of(
        SamplingParams(), AnswerOptions(tuple(tools)), ""
    )


@pytest.mark.parametrize("template", ["object", "parameters"])
@pytest.mark.parametrize(
    "schema",
    [
        nested(5000),
        {"const": "x" * 5000},
        {"multipleOf": 999_983, "type": "integer"},
        {"type": "array", "items": {"type": "string", "not": {}}},
        {"type": "array", "items": {"type": "string", "pattern": "(["}},
        {"$ref": "#/$defs/none"},
        {"type": "strange"},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"$ref": "#/$defs/endless"},
    ],
)
def test_a_tool_is_refused_by_its_name(schema, template):
    schema = fields(what=schema) | {"$defs": {"endless": fields(a={"$ref": "#/$defs/endless"})}}
    with pytest.raises(ConfigError, match=r"bad0 .*what"):
        of_tools(template, schema)


def test_the_place_in_a_tool_is_told():
    broken = fields(a=fields(b={"type": "string", "not": {}}))
    with pytest.raises(
        ConfigError,
        match=r"the tool bad0 cannot be followed: 'not' is not supported; .* "
        r"\(at /properties/a/properties/b\); .* make the tool not strict",
    ):
        of_tools("object", broken)
    assert of_tools("object", broken, strict=False)


def test_tools_that_are_too_large_together_are_refused():
    schema = {"enum": [f"choice {i}" for i in range(9000)]}
    with pytest.raises(ConfigError, match=r"it has \d+ bytes"):
        of_tools("object", *[fields(a=schema) for _ in range(5)])


def test_a_schema_that_is_no_json_is_refused():
    for schema in ({"a": object()}, {"a": {1, 2}}):
        with pytest.raises(ConfigError, match="cannot be written as JSON"):
            Tool("a", "", schema)
    circle: dict = {"type": "object"}
    circle["properties"] = {"a": circle}
    with pytest.raises(ConfigError, match="nested more than"):
        Tool("a", "", circle)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"regex": "(a|b)*&("}, "regex cannot be followed"),
        ({"regex": "(?=a)b"}, "look-ahead and look-behind are not supported in a pattern"),
        ({"grammar": "start: start"}, "grammar cannot be followed"),
        ({"grammar": 'start: "a" missing'}, "missing"),
    ],
)
def test_other_forms_that_cannot_be(given, reason):
    with pytest.raises(ConfigError, match=reason):
        CONSTRAINTS.of(SamplingParams(**given))
