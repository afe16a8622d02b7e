"""Stop strings: in reasoning, in JSON, and in other text, however an answer is cut into pieces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.decoding.stops import Stops
from edgespec.types import Thought
from tests.helpers.scripted_chats import ScriptedChat, called

THOUGHT = Thought("<think>", "</think>", False)
OPEN = THOUGHT._replace(is_open=True)


def shown(text, stops, size, **options):
    """Return what is shown of a text that comes in pieces of one size, and the stop string."""
    finder, said = Stops(stops, **options), ""
    for at in range(0, len(text), size):
        said += finder.take(text[at : at + size])
        if finder.found:
            break
    return said + finder.end(), finder.found


@pytest.mark.parametrize(("text", "options", "cut"), [
    ("a END b", {}, "a "),
    ("<think>END</think>a END", {"thought": THOUGHT}, "<think>END</think>a "),
    (" \n<think>END", {"thought": THOUGHT}, " \n<think>END"),
    ("END</think>a END b", {"thought": OPEN}, "END</think>a "),
    ("E</think>END", {"thought": OPEN}, "E</think>"),
    ("<thing>END", {"thought": THOUGHT}, "<thing>"),
    ("a<think>END</think>", {"thought": THOUGHT}, "a<think>"),
    ("<think></think><think>END", {"thought": THOUGHT}, "<think></think><think>"),
    ('{"END":"a","b":["ENDE"]}', {"is_json": True}, '{"END":"a","b":["'),
    ('{"a":{"END":1},"b":"EN","c":"D"}', {"is_json": True}, '{"a":{"END":1},"b":"EN","c":"D"}'),
    (r'"a\u0045N\u0044b"', {"is_json": True}, '"a'),
    (r'"a\\END"', {"is_json": True}, r'"a\\'),
    ('[1,{"a":"E"},"xEND"]', {"is_json": True}, '[1,{"a":"E"},"x'),
    ('"EENDE"', {"is_json": True}, '"E'),
    (r'"END\ud83d\ude00"', {"is_json": True}, '"'),
    ('<think>"END"</think>{"a":"END"}', {"is_json": True, "thought": THOUGHT},
     '<think>"END"</think>{"a":"'),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_where_an_answer_is_cut(text, options, cut, size):
    assert shown(text, ["END"], size, **options) == (
        cut,
        "END" if cut != text else None,
    )


@pytest.mark.parametrize(("stop", "cut"), [
    ("\n", '{"a":"line'), ('say "', '{"a":"line\\nthen '), ("é😀", '{"a":"line\\nthen say \\"'),
    ("/", '{"a":"line\\nthen say \\"\\u00e9\\ud83d\\ude00'),
])  # fmt: skip
@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_stops_are_compared_with_what_json_says(stop, cut, size):
    text = r'{"a":"line\nthen say \"\u00e9\ud83d\ude00\/"}'
    assert shown(text, [stop], size, is_json=True) == (cut, stop)


@given(
    st.data(), st.text('ab"\\/\né😀', max_size=20), st.text('ab"\\/\né😀', min_size=1, max_size=3)
)
def test_a_value_is_cut_before_the_stop_string(data, value, stop):
    """Whatever the pieces are, what is shown is the JSON of the text before the stop string."""
    text = json.dumps([value], ensure_ascii=data.draw(st.booleans()))
    cut, found = shown(text, [stop], data.draw(st.integers(1, 9)), is_json=True)
    if stop not in value:
        assert (cut, found) == (text, None)
    else:
        assert found == stop
        assert json.loads(cut + '"]') == [value[: value.index(stop)]]


SCHEMA = {"type": "object", "properties": {"END": {"type": "string"}}, "required": ["END"],
          "additionalProperties": False}  # fmt: skip


def test_a_form_that_was_cut_is_not_parsed():
    script = '{"END":"one END two"}'
    with ScriptedChat({"hi": script}).engine() as engine:
        cut = engine.chat().send("hi", schema=SCHEMA, stop=["END"])
        assert (cut.text, cut.finish_reason, cut.stop_reason) == ('{"END":"one ', "stop", "END")
        assert cut.parsed is None
        whole = engine.chat().send("hi", schema=SCHEMA, stop=["none of it"])
        assert whole.parsed == {"END": "one END two"}


@pytest.mark.parametrize("form", [
    {"regex": "[a-zA-Z ]*"}, {"choices": ("one END two", "x")}, {"grammar": 'root ::= [a-zA-Z ]*'},
], ids=str)  # fmt: skip
def test_other_forms_are_read_as_they_are_written(form):
    with ScriptedChat({"hi": "one END two"}).engine() as engine:
        cut = engine.chat().send("hi", stop=["END"], **form)
        assert (cut.text, cut.stop_reason, cut.parsed) == ("one ", "END", None)


@pytest.mark.parametrize("options", [{}, {"schema": SCHEMA}, {"reasoning_budget": 100}], ids=str)
@pytest.mark.parametrize("method", ["none", "suffix,forced"])
def test_stops_do_not_count_in_reasoning(options, method):
    answer = '{"END":"x END"}'
    script = f"<think>\nEND of it\n</think>\n\n{answer}"
    with ScriptedChat({"hi": script}).engine(speculative_config={"method": method}) as engine:
        whole = engine.chat().send("hi", stop=["END"], **options)
    assert whole.reasoning.strip() == "END of it"
    assert whole.text == (answer[:10] if "schema" in options else answer[:2])
    assert whole.stop_reason == "END"


def test_stops_beside_tools():
    call = called("say", '{"x": "END"}')
    with ScriptedChat({"hi": f"<think>END</think>{call}"}).engine() as engine:
        tool = {"name": "say", "parameters": {"type": "object", "properties": {"x": {}}}}
        answer = engine.chat(tools=[tool]).send("hi", stop=["STOP"])
        assert [each.name for each in answer.tool_calls] == ["say"]
