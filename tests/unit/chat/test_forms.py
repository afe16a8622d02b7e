"""Forms beside tools and reasoning: the beginning of an answer tells which it is."""

import json
import random

import numpy as np
import pytest

from edgespec import ConfigError, DecodeError, SamplingParams
from edgespec.chat.constraints import AnswerConstraints
from edgespec.chat.format import AnswerFormat
from edgespec.chat.options import AnswerOptions
from edgespec.chat.tools import Tool
from edgespec.constraints.compiler import Constraints
from tests.helpers.formats import CONTROL, END, TEMPLATES, FormTokenizer

pytest.importorskip("llguidance")

CONSTRAINTS = Constraints(FormTokenizer())
TABLE = {"type": "object", "properties": {"table": {"enum": ["tmp"]}}, "required": ["table"]}
DROP = AnswerOptions((Tool("drop", "", TABLE),))
QUOTE = {
    "type": "object", "properties": {"quote": {"type": "string"}}, "required": ["quote"],
    "additionalProperties": False,
}  # fmt: skip
CALL = '<tool_call>\n{"name": "drop", "arguments": {"table": "tmp"}}\n</tool_call>'
OPENED = "<|assistant|><think>\n"


def form_of(template):
    return AnswerFormat.of(TEMPLATES[template], {})


def follows(template, options, text, rendered="", **params):
    """Return True if all of a text may be written, byte by byte but for control tokens."""
    made = AnswerConstraints(CONSTRAINTS, form_of(template)).of(
        SamplingParams(**params), options, rendered
    )
    matcher = made.matcher()
    for token in text if isinstance(text, list) else text.encode():
        matcher.mask()  # of all tokens: what llguidance gives up on is an error from here on
        try:
            matcher.accept([token])
        except DecodeError:
            return False
    return bool(matcher.mask().any())


def read(template, options, text, rendered="", pieces=None):
    reader = form_of(template).reader(options, rendered, has_form=True)
    for piece in pieces or text:
        reader.feed(piece)
    reader.end()
    return reader.content, reader.reasoning, [(c.name, c.arguments) for c in reader.calls]


@pytest.mark.parametrize(
    ("template", "quoted"),
    [
        ("name", "[TOOL_CALLS]drop[ARGS]{}"),
        ("object", '<tool_call>\\n{\\"name\\": \\"drop\\", \\"arguments\\": {}}\\n</tool_call>'),
        ("parameters", "<tool_call>\\n<function=drop>\\n</function>\\n</tool_call>"),
    ],
)
@pytest.mark.parametrize("before", ["", "<think>a</think>\n\n"])
def test_a_text_in_a_form_is_no_call(template, quoted, before):
    text = f'{{"quote":"{quoted}"}}'
    assert follows(template, DROP, text, schema=QUOTE)
    for pieces in (None, [text]):
        assert read(template, DROP, text, pieces=pieces) == (text, "", [])
    thinking = "thinking" if template == "object" else template
    found = read(thinking, DROP, before + text)
    assert found[2] == []
    assert found[0].endswith(text)


def test_calls_beside_a_form_stay_calls():
    for blanks in ("", "\n\n"):
        text = blanks + CALL
        assert read("object", DROP, text) == ("", "", [("drop", '{"table": "tmp"}')])
        thought = f"<think>a</think>{text}"
        assert follows("thinking", DROP, thought, schema=QUOTE)
        assert read("thinking", DROP, thought) == ("", "a", [("drop", '{"table": "tmp"}')])
    assert read("thinking", DROP, text[2:] + text)[2] == [("drop", '{"table": "tmp"}')] * 2


def test_more_blanks_than_a_call_has_before_it_are_text():
    text = '     <tool_call>\n{"name": "drop", "arguments": {}}\n</tool_call>'
    assert read("object", DROP, text) == (text, "", [])


def test_a_regular_expression_does_not_begin_with_a_call():
    any_text = {"regex": "(?s:.*)"}
    outside = CALL.replace("tmp", "users")
    for blanks in ("", " ", "\n\t \n", "\n" * 9):
        assert not follows("object", DROP, blanks + outside, **any_text)
    assert follows("object", DROP, CALL, **any_text)
    for text in ("x " + outside, "<tool", "<tools>", "\n <", ""):
        assert follows("object", DROP, text, **any_text)
        assert read("object", DROP, text) == (text, "", [])
    behind = {"regex": "x (?s:.*)"}
    assert follows("object", DROP, "x " + outside, **behind)
    assert read("object", DROP, "x " + outside) == ("x " + outside, "", [])


@pytest.mark.parametrize("regex", ["(?s:.*)", "(?s:.{1,5000})", "[^\\n]{1,200}", "(?s:.{1000,})"])
@pytest.mark.parametrize("budget", [None, 0])
def test_a_regular_expression_does_not_begin_with_reasoning(regex, budget):
    options = AnswerOptions(reasoning_budget=budget)
    assert follows("thinking", options, "<think>s", regex=regex) == (budget is None)
    for text in ("<thin", "<thinking", "a<think>s"):
        assert follows("thinking", options, text, regex=regex)
    assert follows("thinking", options, "<think>s", OPENED + "</think>", regex=regex)


def test_what_is_read_as_reasoning_ends_before_a_form():
    """Under a form that may begin with anything, an answer does not end inside of reasoning."""
    made = AnswerConstraints(CONSTRAINTS, form_of("thinking")).of(
        SamplingParams(regex="(?s:.*)"), AnswerOptions(), ""
    )
    matcher = made.matcher()
    matcher.accept([*b"<think>s"])
    assert not any(matcher.allows(end) for end in matcher.ends)
    matcher.accept([*b"</think>"])
    assert any(matcher.allows(end) for end in matcher.ends)


@pytest.mark.parametrize(
    ("template", "params", "marker"),
    [
        ("object", {"choices": ("yes", " \n<tool_call>")}, "<tool_call>"),
        ("object", {"grammar": "start: /(?s:.*)/"}, "<tool_call>"),
        ("object", {"grammar": 'root ::= "  <" [a-z_]+ ">"'}, "<tool_call>"),
        ("name", {"grammar": "start: /(?s:.*)/"}, r"\[TOOL_CALLS\]"),
        (
            "name",
            {"grammar": f"start: <[{256 + 8 + CONTROL.index('[TOOL_CALLS]')}]> /a*/"},
            r"\[TOOL_CALLS\]",
        ),
        ("bare", {"grammar": 'start: /\\{"name": .*/'}, '{"name": "'),
        ("thinking", {"choices": ("<think>",)}, "<think>"),
        ("thinking", {"regex": "\\n?<think>.*"}, "<think>"),
        ("object", {"regex": "<tool_call>.*"}, "<tool_call>"),
    ],
)
def test_other_forms_that_begin_like_a_call_are_refused(template, params, marker):
    form = form_of(template)
    with pytest.raises(ConfigError, match=f"may begin with '{marker}'"):
        AnswerConstraints(CONSTRAINTS, form).of(SamplingParams(**params), DROP, "")
    none = AnswerOptions(DROP.tools, "none", reasoning_budget=None)
    rendered = OPENED + "</think>" if template == "thinking" else ""
    assert AnswerConstraints(CONSTRAINTS, form).of(SamplingParams(**params), none, rendered)


def test_forms_that_cannot_be_taken_for_a_call_are_followed():
    for params in (
        {"schema": {"type": "object", "properties": {"name": {"type": "string"}}}},
        {"schema": {}},
        {"choices": (" yes", "no", "<tool")},
        {"grammar": 'root ::= "  " [a-z]+'},
    ):
        for template in ("object", "bare", "name", "thinking", "list"):
            form = form_of(template)
            assert AnswerConstraints(CONSTRAINTS, form).of(SamplingParams(**params), DROP, "")
    asked = AnswerOptions(DROP.tools, "required")  # whose answers follow no form
    form = SamplingParams(grammar="start: /(?s:.*)/")
    assert AnswerConstraints(CONSTRAINTS, form_of("object")).of(form, asked, "")


@pytest.mark.parametrize("template", sorted(TEMPLATES))
@pytest.mark.parametrize("params", [{"regex": "(?s:.*)"}, {"schema": QUOTE}, {"regex": "x?<.*"}])
def test_what_is_a_call_and_what_is_a_form_is_read_as_it_was_written(template, params):
    """Random answers that end are calls and nothing else, or a whole form."""
    form, rng = form_of(template), random.Random(5)
    made = AnswerConstraints(CONSTRAINTS, form).of(SamplingParams(**params), DROP, "")
    tokenizer = FormTokenizer()
    found = set()
    for _ in range(30):
        matcher, ids = made.matcher(), []
        markers = [form.tools.trigger, form.reasoning.begin if form.reasoning else ""]
        begun = tokenizer.encode(rng.choice(["", "x", "\n", " \t "]) + rng.choice(markers))
        while len(ids) < 200 and not matcher.has_ended:
            allowed = np.flatnonzero(matcher.mask())
            wanted = begun.pop(0) if begun and rng.random() < 0.97 else END
            ids.append(wanted if wanted in allowed else int(rng.choice(list(allowed))))
            matcher.accept(ids[-1:])
        pieces = [made.shown.get(token) or tokenizer.piece(token) for token in ids]
        text = b"".join(pieces).decode("utf-8", "replace")
        reader = form.reader(DROP, "", has_form=True)
        for char in text:
            reader.feed(char)
        reader.end()
        if matcher.has_ended and reader.calls:
            assert reader.content == ""
            assert {(c.name, c.arguments) for c in reader.calls} == {("drop", '{"table": "tmp"}')}
        elif matcher.has_ended:
            assert text.endswith(reader.content)
            assert reader.reasoning or reader.content == text
            if "schema" in params:
                assert set(json.loads(reader.content)) == {"quote"}
        found.add((matcher.has_ended, bool(reader.calls)))
    assert found & {(True, True), (True, False)}
