"""Tools that are not strict: only what cannot be followed in their schemas is left out."""

import json

import pytest

from edgespec import ConfigError, SamplingParams
from edgespec.chat import lenient
from edgespec.chat.constraints import AnswerConstraints
from edgespec.chat.format import AnswerFormat
from edgespec.chat.options import AnswerOptions
from edgespec.chat.tools import Tool
from edgespec.constraints import schemas
from edgespec.constraints.compiler import Constraints
from tests.helpers.formats import TEMPLATES, FormTokenizer

pytest.importorskip("llguidance")

EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)@([A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
BROKEN = {
    "look-ahead": ({"type": "string", "pattern": EMAIL, "minLength": 3},
        {"type": "string", "minLength": 3}),
    "a reference back": ({"type": "string", "pattern": r"(a|b)\1"}, {"type": "string"}),
    "a reference elsewhere": ({"$ref": "https://example.com/schema.json"}, {}),
    "a reference to nothing": ({"$ref": "#/$defs/none", "title": "a"}, {"title": "a"}),
    "no type": ({"type": "any", "description": "b"}, {"description": "b"}),
    "no choices": ({"type": "integer", "enum": None}, {"type": "integer"}),
    "no items": ({"type": "array", "items": None, "maxItems": 2}, {"type": "array", "maxItems": 2}),
    "no schema": (None, {}),
    "no names": ({"type": "object", "required": None}, {"type": "object"}),
    "no number": ({"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "integer", "minimum": 5}),
    "inside": (
        {"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "any"}]}},
        {"type": "array", "items": {"anyOf": [{"type": "null"}, {}]}},
    ),
    "names that follow an expression": (
        {"type": "object", "patternProperties": {"^(?!x)": {"type": "integer"}}},
        {"type": "object"},
    ),
}  # fmt: skip
GOOD = {"type": "integer", "minimum": 1, "x-unknown": 3}


def followed(parameters, template="object", strict=False, constraints=None):
    """Return the schema of a tool that a model is held to."""
    form = AnswerFormat.of(TEMPLATES[template], {})
    options = AnswerOptions((Tool("other"), Tool("get", "", parameters, strict)), "get")
    made = constraints or Constraints(FormTokenizer())
    assert AnswerConstraints(made, form).of(SamplingParams(), options, "")
    found = AnswerConstraints(made, form).followed(options)
    assert found.tools[0] == options.tools[0]
    return found.tools[1].parameters


@pytest.mark.parametrize("template", ["object", "parameters"])
@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_followed_is_left_out(name, template):
    broken, rest = BROKEN[name]
    given = {
        "type": "object",
        "properties": {"a": broken, "b": GOOD, "c": broken},
        "required": ["a", "b", "c"],
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    }
    left = given | {"properties": {"a": rest, "b": GOOD, "c": rest}}
    assert followed(given, template) == left


@pytest.mark.parametrize("name", BROKEN)
def test_a_strict_tool_is_refused(name):
    with pytest.raises(ConfigError, match=r"the arguments of the tool get cannot be followed"):
        followed({"properties": {"a": BROKEN[name][0]}, "required": ["a"]}, strict=True)


@pytest.mark.parametrize("template", ["object", "parameters"])
def test_definitions_are_judged_by_themselves(template):
    given = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/outer"}, "b": {"$ref": "#/$defs/broken"}},
        "required": None,
        "$defs": {
            "outer": {"type": "object", "properties": {"c": {"$ref": "#/$defs/broken"}}},
            "broken": {"type": "integer", "multipleOf": "x", "minimum": 2},
        },
    }
    left = {key: value for key, value in given.items() if key != "required"}
    left["$defs"] = given["$defs"] | {"broken": {"type": "integer", "minimum": 2}}
    assert followed(given, template) == left


@pytest.mark.parametrize(
    ("broken", "rest"),
    [
        ({"type": "string", "enum": ["a\n</parameter>\nb"]}, {"type": "string"}),
        ({"$ref": "#/properties/b", "title": "c"}, {"title": "c"}),
    ],
)
def test_what_cannot_be_written_alone_is_left_out(broken, rest):
    given = {"type": "object", "properties": {"a": broken, "b": GOOD}}
    left = given | {"properties": {"a": rest, "b": GOOD}}
    assert followed(given, "parameters") == left
    assert followed(given, "object") == given


def test_the_order_of_arguments_stays():
    names = [f"a{i}" for i in range(9, 0, -1)]
    given = {"properties": {name: {"type": "any"} for name in names}}
    assert list(followed(given)["properties"]) == names


def test_a_schema_that_can_be_followed_is_tried_once():
    tried = []

    def is_wrong(schema):
        tried.append(schema)
        return False

    assert schemas.followed({"properties": {"a": GOOD}}, is_wrong) == {"properties": {"a": GOOD}}
    assert len(tried) == 1


def test_what_takes_too_many_trials_may_be_any_object(monkeypatch):
    monkeypatch.setattr(lenient, "_MOST_TRIALS", 20)
    constraints = Constraints(FormTokenizer())
    given = {"properties": {f"a{i}": {"type": "any"} for i in range(20)}}
    assert followed(given, constraints=constraints) == {"type": "object"}
    small = {"properties": {"a": {"type": "any"}}}
    assert followed(small, constraints=constraints)["properties"] == {"a": {}}


def test_a_reader_reads_what_the_grammar_allows():
    """Where arguments stand without quotes, what is any value now is written as a text."""
    form = AnswerFormat.of(TEMPLATES["parameters"], {})
    tool = Tool("get", "", {"properties": {"a": {"type": "any"}}, "required": ["a"]}, False)
    options = AnswerOptions((tool,), "get")
    constraints = Constraints(FormTokenizer())
    said = "<tool_call>\n<function=get>\n<parameter=a>\nsome text\n</parameter>\n"
    said += "</function>\n</tool_call>"
    matcher = AnswerConstraints(constraints, form).of(SamplingParams(), options, "").matcher()
    matcher.accept([ord(char) for char in said])
    reader = form.reader(AnswerConstraints(constraints, form).followed(options), "")
    reader.feed(said)
    [call] = reader.calls
    assert json.loads(call.arguments) == {"a": "some text"}
