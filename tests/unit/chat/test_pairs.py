"""Arguments that are written one by one: which are texts, what they hold, and what is refused."""

import json
import random
from typing import Literal

import msgspec
import numpy as np
import pytest

from edgespec import ConfigError, DecodeError, SamplingParams
from edgespec.chat import argument_schemas
from edgespec.chat.call_forms.base import CallForm
from edgespec.chat.call_forms.pair_arguments import Pairs
from edgespec.chat.constraints import AnswerConstraints
from edgespec.chat.format import AnswerFormat
from edgespec.chat.options import AnswerOptions
from edgespec.chat.tools import Tool, tool_of
from edgespec.constraints.compiler import Constraints
from tests.helpers.formats import END, TEMPLATES, FormTokenizer

pytest.importorskip("llguidance")

TOKENIZER = FormTokenizer()
CONSTRAINTS = Constraints(TOKENIZER)
FORM = AnswerFormat.of(TEMPLATES["parameters"], {})
CLOSING = "\n</parameter>\n"


class Pose(msgspec.Struct):
    x: int


def tool_with(schema, strict=True, **more):
    parameters = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return Tool("go", "", parameters | more, strict)


def compiled(tool, form=FORM):
    return AnswerConstraints(CONSTRAINTS, form).of(
        SamplingParams(), AnswerOptions((tool,), "go"), ""
    )


def call(value):
    return f"<tool_call>\n<function=go>\n<parameter=a>\n{value}{CLOSING}</function>\n</tool_call>"


def allowed(matcher, text):
    """Return how many bytes of a text may be written, one by one; its end is one more."""
    tokens = [*text.encode(), END]
    for n, token in enumerate(tokens):
        matcher.mask()  # of all tokens: what llguidance gives up on is an error from here on
        try:
            matcher.accept([token])
        except DecodeError:
            return n
    return len(tokens)


def is_followed(tool, value):
    text = call(value)
    return allowed(compiled(tool).matcher(), text) == len(text.encode()) + 1


def read(tool, value):
    reader = FORM.reader(AnswerOptions((tool,), "go"), "")
    for char in call(value):
        reader.feed(char)
    reader.end()
    (made,) = reader.calls
    return json.loads(made.arguments)["a"]


POSE = {"$defs": {"Pose": {"type": "object", "properties": {"x": {"type": "integer"}}}}}
REFERENCES = {
    "in anyOf": ({"anyOf": [{"$ref": "#/$defs/Pose"}, {"type": "null"}]}, POSE),
    "in allOf": ({"allOf": [{"$ref": "#/$defs/Pose"}], "description": "where"}, POSE),
    "of a reference": (
        {"$ref": "#/$defs/Place"}, {"$defs": POSE["$defs"] | {"Place": {"$ref": "#/$defs/Pose"}}},
    ),
    "without a type": ({"properties": {"x": {"type": "integer"}}, "required": ["x"]}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCES)
def test_what_is_no_text_behind_references_is_json(name):
    schema, more = REFERENCES[name]
    tool = tool_with(schema, **more)
    assert is_followed(tool, '{"x": 1}')
    assert not is_followed(tool, "to the left")
    assert read(tool, '{"x": 1}') == {"x": 1}


def test_a_type_or_nothing_is_that_type():
    def go(a: Pose | None): ...

    tool = tool_of(go)
    assert is_followed(tool, '{"x": 1}')
    assert is_followed(tool, "null")
    assert not is_followed(tool, "home")
    assert read(tool, "null") is None


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"enum": ["left", "right"]}, {"type": "null"}]},
        {"anyOf": [{"const": "left"}, {"const": "right"}, {"type": "null"}]},
        {"oneOf": [{"allOf": [{"$ref": "#/$defs/Side"}]}, {"type": "null"}]},
        {"enum": ["left", "right", None]},
        {"type": ["string", "null"], "enum": ["left", "right", None, 5]},
        {"allOf": [{"enum": ["left", "up", "right", None]}, {"enum": ["right", "left", None]}]},
        {"enum": ["left", "further", "right", None], "maxLength": 5},
    ],
)
def test_choices_are_found_in_alternatives(schema):
    tool = tool_with(schema, **{"$defs": {"Side": {"enum": ["left", "right"]}}})
    for text, value in (("left", "left"), ("right", "right"), ("null", None)):
        assert is_followed(tool, text)
        assert read(tool, text) == value
    for text in ("up", "further", '"left"', "5", ""):
        assert not is_followed(tool, text)


def test_a_literal_or_nothing():
    def go(a: Literal["left", "right"] | None): ...

    assert argument_schemas.choices_of(tool_of(go), "a") == {
        "left": "left",
        "right": "right",
        "null": None,
    }


def test_choices_beside_other_values_are_json():
    tool = tool_with({"anyOf": [{"type": "integer"}, {"enum": ["all"]}]})
    assert (read(tool, "5"), read(tool, '"all"')) == (5, "all")
    assert is_followed(tool, "5")
    assert is_followed(tool, '"all"')
    assert not is_followed(tool, "none")


def test_a_text_or_another_value_is_a_text():
    for schema in ({"type": ["string", "null"]}, {"anyOf": [{"type": "string"}, {"enum": [1]}]}):
        tool = tool_with(schema)
        assert is_followed(tool, "anything <at> all")
        assert read(tool, "1") == "1"


@pytest.mark.parametrize(
    ("schema", "least", "most"),
    [
        ({"allOf": [{"type": "string", "minLength": 2}, {"minLength": 1, "maxLength": 4}]}, 2, 4),
        ({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}, 0, 3),
        ({"anyOf": [{"type": "string", "maxLength": 3}, {"enum": ["ab"]}]}, 0, 3),
        ({"anyOf": [{"type": "string"}, {"type": "string", "pattern": "^a"}]}, 0, None),
    ],
)
def test_lengths_are_found_in_alternatives(schema, least, most):
    assert argument_schemas.lengths_of(tool_with(schema), "a") == (least, most)


@pytest.mark.parametrize("text", ["", "a", "<", "\n", "\n</parameter", "ab\n", "abc"])
@pytest.mark.parametrize("least", [0, 1, 2, 3])
@pytest.mark.parametrize("most", [None, 3, 1000, 100_000])
def test_a_text_with_a_least_length_ends_at_its_marker(text, least, most):
    """However few characters a text has, the first marker ends it, as it does for the reader."""
    schema = {"type": "string", "minLength": least}
    tool = tool_with(schema if most is None else schema | {"maxLength": most})
    fits = least <= len(text) <= (most or len(text))
    assert is_followed(tool, text) == fits
    if least > len(text):
        matcher = compiled(tool).matcher()
        begun = call(text).partition("</function>")[0].removesuffix(CLOSING) + CLOSING
        assert allowed(matcher, begun) <= len(begun.encode()) - 2  # not the > of the marker
    assert read(tool, text) == text


def test_long_texts_with_a_least_length():
    tool = tool_with({"type": "string", "minLength": 50, "maxLength": 100_000})
    assert is_followed(tool, "\n<x>" * 100)
    assert not is_followed(tool, f"a{CLOSING}" * 4)
    with pytest.raises(ConfigError, match=r"go .*minLength .* may be 50, got 51 \(at .*/a\)"):
        compiled(tool_with({"type": "string", "minLength": 51}))
    assert is_followed(tool_with({"type": "string", "minLength": 51}, strict=False), "short")


CONTROLLED = AnswerFormat(
    None,
    CallForm("<tool_call>", "\n", "</tool_call>", arguments=Pairs("[CALL_ID]", "=", "[ARGS]")),
)
ARGS = TOKENIZER.encode("[ARGS]")[0]
BEGUN = [*TOKENIZER.encode("<tool_call>go\n[CALL_ID]a=")]


def test_lengths_are_followed_where_the_marker_is_a_control_token():
    made = compiled(tool_with({"type": "string", "minLength": 2, "maxLength": 4}), CONTROLLED)
    matcher = made.matcher()
    matcher.accept(BEGUN)
    letters = [ord(x) for x in "abcd"]
    found = [matcher.allows(ARGS, letters[:n]) for n in range(5)]
    assert found == [False, False, True, True, True]
    assert not matcher.allows(ord("e"), letters)
    long = {"type": "string", "maxLength": 5000}
    with pytest.raises(ConfigError, match=r"go .*maxLength .* got 5000 \(at /properties/a\)"):
        compiled(tool_with(long), CONTROLLED)
    assert compiled(tool_with(long, strict=False), CONTROLLED)


BROKEN = {
    "required is null": ({}, {"required": None}, "required is a list of names, got None"),
    "required is true": ({}, {"required": True}, "required is a list of names, got True"),
    "required is a number": ({}, {"required": [5]}, "required is a list of names"),
    "properties are a list": ({}, {"properties": []}, r"properties is an object.*\(at /prop"),
    "definitions are a list": (
        {"$ref": "#/$defs/b"}, {"$defs": []}, r"\$defs is an object, got \[\] \(at /\$defs\)",
    ),
    "nothing there": ({"$ref": "#/$defs/b"}, {}, r"refers to '#/\$defs/b'.*\(at /properties/a\)"),
    "a circle": (
        {"anyOf": [{"$ref": "#/$defs/b"}]}, {"$defs": {"b": {"allOf": [{"$ref": "#/$defs/b"}]}}},
        r"refers to itself \(at /properties/a\)",
    ),
    "many alternatives": (
        {"allOf": [{"anyOf": [{"minLength": i} for i in range(9)]} for _ in range(9)]}, {},
        r"more than 1000 alternatives.*\(at /properties/a\)",
    ),
    "twice and twice again": (
        {"$ref": "#/$defs/0"},
        {"$defs": {f"{i}": {"allOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(20)}
         | {"20": {}}},
        r"more than 1000 alternatives.*\(at /properties/a\)",
    ),
    "lengths": ({"minLength": 5, "maxLength": 3}, {}, "minLength is 5 and maxLength 3"),
    "lengths of two": (
        {"allOf": [{"minLength": 5}, {"maxLength": 3}]}, {}, "minLength is 5 and maxLength 3",
    ),
    "a length that is a text": ({"minLength": "x"}, {}, "minLength is a whole number .*'x'"),
    "a length that is a fraction": ({"maxLength": 2.0}, {}, r"maxLength is a whole number .*2\.0"),
    "a length below nothing": ({"minLength": -1}, {}, "minLength is a whole number .*-1"),
    "a length that is true": ({"maxLength": True}, {}, "maxLength is a whole number .*True"),
    "enum": ({"enum": "ab"}, {}, "enum is a list of values, got 'ab'"),
    "a type": ({"type": [5]}, {}, r"type is a text or a list of texts, got \[5\]"),
    "anyOf": ({"anyOf": {}}, {}, r"anyOf is a list of schemas, got \{\}"),
    "no schema": (5, {}, "a schema is a JSON object, got 5"),
    "false": (False, {}, "it allows no value"),
    "a choice": ({"enum": [f"x{CLOSING}y"]}, {}, "holds the marker"),
    "format": ({"type": "string", "format": "date"}, {}, "format of texts cannot be followed"),
    "pattern somewhere": (
        {"anyOf": [{"type": "string", "pattern": "a"}, {"type": "null"}]}, {},
        "pattern of texts cannot be followed",
    ),
    "lengths that leave a gap": (
        {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 5}]}, {},
        "other lengths in alternatives of texts cannot be followed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_is_refused_with_the_tool_and_the_place(name):
    schema, more, reason = BROKEN[name]
    tool = tool_with(schema, **more)
    with pytest.raises(ConfigError, match=f"the tool go cannot be followed: .*{reason}"):
        compiled(tool)
    with pytest.raises(ConfigError, match=reason):
        FORM.check(AnswerOptions((tool,)))
    FORM.check(AnswerOptions((tool,), "none"))


def test_tools_that_are_not_strict_leave_out_what_cannot_be_followed():
    for name in ("format", "pattern somewhere", "lengths that leave a gap"):
        assert is_followed(tool_with(BROKEN[name][0], strict=False), "x")


EVERYTHING = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 9},
        "side": {"anyOf": [{"$ref": "#/$defs/Side"}, {"type": "null"}]},
        "pose": {"anyOf": [{"$ref": "#/$defs/Pose"}, {"type": "null"}]},
        "count": {"anyOf": [{"type": "integer"}, {"const": "all"}]},
    },
    "required": ["name", "side", "pose"],
    "additionalProperties": False,
    "$defs": {
        "Side": {"enum": ["left", "right", "<"]},
        "Pose": {
            "type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("template", ["parameters", "keys", "invoke"])
def test_random_calls_follow_the_schema(template):
    validator = pytest.importorskip("jsonschema_rs").validator_for(EVERYTHING)
    form, rng = AnswerFormat.of(TEMPLATES[template], {}), random.Random(3)
    options = AnswerOptions((Tool("go", "", EVERYTHING),), "required", parallel_tool_calls=False)
    made = AnswerConstraints(CONSTRAINTS, form).of(SamplingParams(), options, "")
    markers = [form.tools.arguments.closing, form.tools.closing, form.tools.arguments.opening]
    found = []
    for _ in range(80):
        matcher, ids, begun = made.matcher(), [], []
        while len(ids) < 500 and not matcher.has_ended:
            allowed = np.flatnonzero(matcher.mask())
            if not begun and rng.random() < 0.3:
                begun = TOKENIZER.encode(rng.choice(markers))
            wanted = begun.pop(0) if begun else END
            if wanted not in allowed:
                wanted, begun = int(rng.choice(list(allowed))), []
            ids.append(wanted)
            matcher.accept(ids[-1:])
        if matcher.has_ended:
            reader = form.reader(options, "")
            pieces = (made.shown.get(token) or TOKENIZER.piece(token) for token in ids)
            reader.feed(b"".join(pieces).decode("utf-8", "replace"))
            reader.end()
            (call,) = reader.calls
            found.append(json.loads(call.arguments))
            assert validator.is_valid(found[-1]), call.arguments
    assert {each["side"] for each in found} == {"left", "right", "<", None}
    assert len(found) > 20


@pytest.mark.parametrize("schema", [
    {"enum": ["ab", "b"], "pattern": "^a"},
    {"allOf": [{"enum": ["ab", "b"]}, {"pattern": "^a"}, {"pattern": "b$"}]},
    {"enum": ["ab", "b"], "not": {"const": "b"}},
    {"type": "string", "not": {"const": "b"}},
    {"$ref": "#/$defs/t", "$defs": {"t": {"type": "string", "if": {}}}},
], ids=str)  # fmt: skip
def test_what_limits_texts_further_is_refused_in_strict_tools(schema):
    """Where schemas are joined, no keyword that cannot be followed gets lost."""
    definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    with pytest.raises(ConfigError, match=r"(pattern|not|if) .*cannot be followed"):
        compiled(tool_with(schema, **definitions))
    assert compiled(tool_with(schema, strict=False, **definitions))
