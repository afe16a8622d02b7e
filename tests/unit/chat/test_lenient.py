"""Tools that are not strict: only what cannot be followed in their schemas is left out."""

import json

import pytest

from edgespec import ConfigError, SamplingParams
from edgespec.chat.constraints import AnswerConstraints
from edgespec.chat.format import AnswerFormat
from edgespec.chat.lenient import LenientTools
from edgespec.chat.options import AnswerOptions
from edgespec.chat.tools import Tool
from edgespec.constraints.compiler import Constraints
from tests.helpers.formats import TEMPLATES, FormTokenizer

pytest.importorskip("llguidance")

EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)@([A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
BROKEN = {
    "look-ahead": {"type": "string", "pattern": EMAIL, "minLength": 3},
    "a reference back": {"type": "string", "pattern": r"(a|b)\1"},
    "a reference elsewhere": {"$ref": "https://example.com/schema.json"},
    "a reference to nothing": {"$ref": "#/$defs/none", "title": "a"},
    "no type": {"type": "any", "description": "b"},
    "no choices": {"type": "integer", "enum": None},
    "no items": {"type": "array", "items": None, "maxItems": 2},
    "no schema": None,
    "no names": {"type": "object", "required": None},
    "no number": {"type": "integer", "minimum": 5, "maximum": 4},
    "inside": {"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "any"}]}},
    "names that follow an expression": {
        "type": "object", "patternProperties": {"^(?!x)": {"type": "integer"}},
    },
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
def test_an_argument_that_cannot_be_followed_may_be_anything(name, template):
    broken = BROKEN[name]
    given = {
        "type": "object",
        "properties": {"a": broken, "b": GOOD, "c": broken},
        "required": ["a", "b", "c"],
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    }
    left = given | {"properties": {"a": {}, "b": GOOD, "c": {}}}
    assert followed(given, template) == left


@pytest.mark.parametrize("name", BROKEN)
def test_a_strict_tool_is_refused(name):
    with pytest.raises(ConfigError, match=r"the arguments of the tool get cannot be followed"):
        followed({"properties": {"a": BROKEN[name]}, "required": ["a"]}, strict=True)


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
    left["$defs"] = given["$defs"] | {"broken": {}}
    assert followed(given, template) == left


@pytest.mark.parametrize(
    "broken",
    [
        {"type": "string", "enum": ["a\n</parameter>\nb"]},
        {"$ref": "#/properties/b", "title": "c"},
    ],
)
def test_an_argument_that_cannot_be_written_alone_may_be_anything(broken):
    given = {"type": "object", "properties": {"a": broken, "b": GOOD}}
    left = given | {"properties": {"a": {}, "b": GOOD}}
    assert followed(given, "parameters") == left
    assert followed(given, "object") == given


def test_the_order_of_arguments_stays():
    names = [f"a{i}" for i in range(9, 0, -1)]
    given = {"properties": {name: {"type": "any"} for name in names}}
    assert list(followed(given)["properties"]) == names


def test_each_argument_is_tried_once():
    tried = []
    lenient = LenientTools(lambda text: tried.append(text) or "any" in text)
    markers = AnswerFormat.of(TEMPLATES["object"], {}).tools
    given = {"properties": {f"a{i}": {"type": "any"} for i in range(20)}}
    for _ in range(2):
        tool, _ = lenient.tool(Tool("get", "", given, False), markers.arguments)
        assert tool.parameters["properties"] == {f"a{i}": {} for i in range(20)}
    assert len(tried) <= 20 + 3


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


@pytest.mark.parametrize("template", ["object", "parameters"])
def test_annotations_of_strict_tools_are_said_in_a_note(template):
    """OpenAI's parse helpers send strict: true with whatever pydantic writes."""
    path = {"type": "string", "format": "path"}
    tags = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    given = {"type": "object", "properties": {"a": path, "b": tags}, "required": ["a", "b"]}
    form = AnswerFormat.of(TEMPLATES[template], {})
    options = AnswerOptions((Tool("get", "", given, strict=True),), "get")
    made = AnswerConstraints(Constraints(FormTokenizer()), form)
    assert made.of(SamplingParams(), options, "").notes == [
        "tool get: the format path is not enforced (at /properties/a)",
        "tool get: uniqueItems is not enforced (at /properties/b)",
    ]
    for other in ({"not": {}} | given, {"properties": {"a": {"type": "integer", "not": {}}}}):
        wrong = AnswerOptions((Tool("get", "", other, strict=True),), "get")
        with pytest.raises(ConfigError, match="'not' is not supported"):
            made.of(SamplingParams(), wrong, "")


def test_what_is_left_out_of_other_tools_is_said_in_a_note():
    arguments = {"a": {"not": {}}, "b": BROKEN["look-ahead"], "c": GOOD}
    given = {"type": "object", "properties": arguments}
    form = AnswerFormat.of(TEMPLATES["object"], {})
    options = AnswerOptions((Tool("get", "", given, strict=False), Tool("other")))
    made = AnswerConstraints(Constraints(FormTokenizer()), form)
    notes = made.of(SamplingParams(), options, "").notes
    assert notes == [
        "tool get: /properties/a is followed in part",
        "tool get: /properties/b may be anything",
    ]


@pytest.mark.parametrize(
    "parameters", [{}, {"type": "object"}, {"type": "object", "properties": {}}]
)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_tool_without_parameters_gets_none(parameters, is_open):
    lenient = LenientTools(lambda text: False)
    arguments = AnswerFormat.of(TEMPLATES["object"], {}).tools.arguments
    tool, _ = lenient.tool(Tool("get", "", parameters, False), arguments, is_open=is_open)
    assert tool.parameters == {**parameters, "properties": {}, "additionalProperties": False}
    free = {"type": "object", "additionalProperties": True}
    tool, _ = lenient.tool(Tool("get", "", free, False), arguments, is_open=is_open)
    assert tool.parameters == free


@pytest.mark.parametrize("is_open", [False, True])
def test_arguments_that_a_schema_does_not_name(is_open):
    given = {"type": "object", "properties": {"a": GOOD}}
    form = AnswerFormat.of(TEMPLATES["object"], {})
    options = AnswerOptions((Tool("get", "", given, strict=False),), "get")
    made = AnswerConstraints(Constraints(FormTokenizer()), form)
    params = SamplingParams(additional_properties=is_open)
    grammar = json.dumps(made.of(params, options, "").description["answer"])
    assert ("additionalProperties" in grammar) == (not is_open)
