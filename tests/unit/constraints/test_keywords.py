"""Keywords of JSON Schema that cannot be followed are refused in our words, with what to do."""

from __future__ import annotations

import json

import pytest

from edgespec.config import SamplingParams
from edgespec.constraints.compiler import Constraints
from edgespec.constraints.keywords import _INSTEAD
from edgespec.errors import ConfigError
from tests.helpers.formats import FormTokenizer

pytest.importorskip("llguidance")

CONSTRAINTS = Constraints(FormTokenizer())

REFUSED = [
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "its oneOf has cases that may hold"),
    ({"$ref": "http://x/y.json"}, "it refers to http://x/y.json, and nothing is fetched; refer"),
    ({"$ref": "#/$defs/no"}, "it refers to #/$defs/no, which is not in it; refer to a schema"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-ahead and look-behind are not supported in"),
    ({"type": "string", "pattern": "(a)\\1"}, "a pattern cannot refer back to a group; write"),
    ({"type": "float"}, "float is not a type; there are array, boolean, integer"),
    *(({keyword: {"maxLength": 1}}, f"'{keyword}' is not supported; ") for keyword in _INSTEAD),
]


@pytest.mark.parametrize(("part", "says"), REFUSED)
def test_a_keyword_its_place_and_what_to_do_are_said(part, says):
    schema = {"type": "object", "properties": {"p": part}}
    with pytest.raises(ConfigError) as told:
        CONSTRAINTS.of(SamplingParams(schema=json.dumps(schema)))
    text = str(told.value)
    assert text.startswith(f"schema cannot be followed: {says}")
    assert text.endswith(" (at /properties/p)")
    assert "Unimplemented" not in text
