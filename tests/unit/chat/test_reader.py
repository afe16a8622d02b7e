"""Reading answers: however the text is cut, the same parts add up to the same answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.chat.format import AnswerFormat
from edgespec.chat.markers import INDEX, ReasoningMarkers
from edgespec.chat.options import AnswerOptions
from edgespec.chat.texts import matched
from edgespec.chat.tools import Tool
from tests.helpers.formats import TEMPLATES

TOOLS = (
    Tool("get", "", {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}),
    Tool("get_all"),
)
OPTIONS = AnswerOptions(TOOLS)


def reader(name, prompt="<|assistant|>"):
    return AnswerFormat.of(TEMPLATES[name], {}).reader(OPTIONS, prompt)


def joined(parts):
    """Return what parts add up to: content, reasoning, and of each call the name and arguments."""
    texts, calls = {"content": "", "reasoning": ""}, []
    for part in parts:
        if part.kind != "call":
            texts[part.kind] += part.text
        elif part.name:
            assert part.index == len(calls)
            assert part.id
            calls.append([part.name, part.text])
        else:
            assert part.index == len(calls) - 1
            assert not part.id
            calls[-1][1] += part.text
    return texts["content"], texts["reasoning"], calls


def read(name, pieces, prompt="<|assistant|>"):
    made = reader(name, prompt)
    parts = [part for piece in pieces for part in made.feed(piece)] + made.end()
    assert all(part.text or part.name for part in parts)
    content, reasoning, calls = joined(parts)
    assert (content, reasoning) == (made.content, made.reasoning)
    complete = [[call.name, call.arguments] for call in made.calls]
    assert complete == calls[: len(complete)]
    assert len({call.id for call in made.calls}) == len(made.calls)
    return content, reasoning, calls, complete


FRAGMENTS = st.sampled_from(
    [
        "<tool_call>", "\n<tool_call>\n", "</tool_call>", "\n</tool_call>", '{"name": "', "get",
        "get_all", '", "arguments": ', '{"a": "', '"}', "}", "{", "[TOOL_CALLS]", "[", "]", ", ",
        "[ARGS]", '", "parameters": ', "<think>", "</think>", "\n", " ", "é", '\\"', "\\", "text",
        "<function=", ">", "\n<parameter=", "a>\n", "\n</parameter>", "\n</function>", "5",
        "<|calls|>", "<|call|>functions.", ":0<|args|>", "<|call_end|>", "<|calls_end|>",
        '<tool_call>\n{"name": "get", "arguments": {"a": "</tool_call> {"}}\n</tool_call>',
        "<tool_call>\n<function=get>\n<parameter=a>\nx\"y\n</parameter>\n</function>\n</tool_call>",
    ]
)  # fmt: skip


@given(
    st.sampled_from(sorted(TEMPLATES)),
    st.lists(FRAGMENTS, max_size=14).map("".join),
    st.lists(st.integers(1, 9), max_size=40),
    st.booleans(),
)
def test_the_same_answer_however_it_is_cut(name, text, sizes, is_open):
    prompt = "<|assistant|>" + "<think>\n" * is_open
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    pieces.append(text[at:])
    whole = read(name, [text], prompt)
    assert read(name, pieces, prompt) == whole
    assert read(name, text, prompt) == whole


@given(st.sampled_from(sorted(TEMPLATES)), st.text(max_size=40))
def test_text_without_markers_is_content_as_it_is(name, text):
    assert read(name, [text])[:3] == (text, "", [])


def call(name="get", arguments='{"a": "b"}'):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_several_calls_and_text_around_them_in_one_piece():
    text = f"First.\n{call()}\n{call('get_all', '{}')}\n\nThen."
    content, _, calls, complete = read("object", [text])
    assert content == "First.Then."
    assert calls == complete == [["get", '{"a": "b"}'], ["get_all", "{}"]]


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": "}{\\"</tool_call>\\\\"}',
        '{"a": {"b": [{"c": "]"}, []]}, "n": -1.5e3}',
        '{"a": "\\u00e9\\ud83d\\ude00 é 😀"}',
        "{}",
    ],
)
def test_arguments_end_where_their_object_ends(arguments):
    assert read("object", call("get", arguments))[2:] == ([["get", arguments]],) * 2
    assert json.loads(read("object", call("get", arguments))[3][0][1]) == json.loads(arguments)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("So <tool_call", "So <tool_call"),  # a marker that never comes
        ("So <tool_call>", None),
        ("So <tool_call>\n{", None),
        ("So <tool_call>\nthat", "So <tool_call>\nthat"),
        ('So <tool_call>\n{"name": "get', None),
        ('So <tool_call>\n{"name": "other", "arguments": {}}', None),
        ("a < b\n", "a < b\n"),
    ],
)
def test_calls_that_never_come_and_calls_without_a_name(text, content):
    assert read("object", text) == (text if content is None else content, "", [], [])


def test_a_call_that_was_cut_is_no_call():
    text = call()
    for n in range(text.index('{"a"') + 1, text.index('"b"}') + 4):
        content, _, calls, complete = read("object", text[:n])
        assert (content, complete) == (text[:n], [])
        assert calls == [["get", text[text.index('{"a"') : n]]]
    for n in range(text.index('"b"}') + 4, len(text)):  # only its end is not there
        assert read("object", text[:n])[3] == [["get", '{"a": "b"}']]


def test_arguments_that_are_no_json_are_no_call():
    text = call("get", '{"a": b}') + "x"
    content, _, calls, complete = read("object", text)
    assert (content, complete) == (text, [])
    assert calls == [["get", '{"a": b}']]


def test_lists_end_at_their_end_and_wherever_they_break_off():
    one = '{"name": "get", "arguments": {"a": "b"}}'
    for end in ("]</TOOLCALL>", "]", "", ", ", "]</TOOL"):
        assert read("closed list", f"<TOOLCALL>[{one}{end}")[0] == ""
    content, _, calls, _ = read("closed list", f"<TOOLCALL>[{one}, {one}]</TOOLCALL> done")
    assert (content, len(calls)) == ("done", 2)
    content, _, calls, _ = read("closed list", f"<TOOLCALL>[{one}; {one}]")
    assert (content, len(calls)) == (f"; {one}]", 1)


def test_objects_without_a_marker_are_calls_at_the_beginning_only():
    text = '{"name": "get", "parameters": {"a": "b"}}'
    assert read("bare", f" \n{text}")[:3] == ("", "", [["get", '{"a": "b"}']])
    assert read("bare", f"It is {text}")[:3] == (f"It is {text}", "", [])
    assert read("bare", '{"name": "other"}')[:3] == ('{"name": "other"}', "", [])


def test_arguments_that_are_written_one_by_one_become_json():
    text = (
        '<tool_call>\n<function=get>\n<parameter=a>\n"x"\n\n\\ </param>é\n</parameter>\n'
        "<parameter=n>\n12\n</parameter>\n<parameter=new>\ny\n</parameter>\n</function>\n</tool_call>"
    )
    found = read("parameters", text)
    arguments = {"a": '"x"\n\n\\ </param>é', "n": 12, "new": "y"}
    assert json.loads(found[3][0][1]) == arguments
    assert read("parameters", text[: text.index("</function>")])[3] == []
    assert read("parameters", text[: text.index("</tool_call>")])[3] == found[3]
    assert read("keys", "<tool_call>get\n</tool_call>")[3] == [["get", "{}"]]
    assert read("keys", "<tool_call>get_all\n</tool_call>")[3] == [["get_all", "{}"]]
    wrong = text.replace("12", "twelve")
    assert read("parameters", wrong)[3] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\na\n</think>\n\nb", ("b", "a")),
        ("\n <think>a</think>b\n", ("b\n", "a")),
        ("<think></think>b", ("b", "")),
        ("<think>a </thin", ("", "a </thin")),  # it never closes
        ("<think>a", ("", "a")),
        ("<thi", ("<thi", "")),
        (" \n", (" \n", "")),
        ("b <think>a</think>", ("b <think>a</think>", "")),  # not at the beginning
        ("<think>a</think><think>b</think>", ("<think>b</think>", "a")),
        (f"<think>{call()}</think>b", ("b", call())),  # calls in reasoning are none
    ],
)
def test_reasoning(text, expected):
    assert read("thinking", text)[:2] == expected
    assert read("thinking", text)[3] == []


def test_the_prompt_may_open_or_close_reasoning():
    assert read("thinking", "a</think>b", "<think>\n")[:2] == ("b", "a")
    assert read("opened", "a\n</think>\n\nb", "<think>\n")[:2] == ("b", "a")
    closed = "<think>\n\n</think>\n\n"
    assert read("thinking", "<think>a</think>b", closed)[:2] == ("<think>a</think>b", "")


def test_an_object_behind_reasoning_is_a_call_where_calls_have_no_marker():
    form = AnswerFormat(
        ReasoningMarkers("<think>", "</think>"), AnswerFormat.of(TEMPLATES["bare"], {}).tools
    )
    call = '{"name": "get", "parameters": {"a": "b"}}'
    for pieces in ([f"<think>a</think>\n\n{call}"], f"<think>a</think>\n\n{call}"):
        made = form.reader(OPTIONS, "")
        parts = [part for piece in pieces for part in made.feed(piece)] + made.end()
        assert joined(parts) == ("", "a", [["get", '{"a": "b"}']])
    text = form.reader(OPTIONS, "")
    text.feed('<think>a</think>\n\n{"name": 5}')
    text.end()
    assert (text.content, text.calls) == ('{"name": 5}', ())


def test_without_tools_markers_are_text():
    form = AnswerFormat.of(TEMPLATES["object"], {})
    for options in (AnswerOptions(), AnswerOptions(TOOLS, "none")):
        made = form.reader(options, "")
        assert [part.text for part in made.feed(f" {call()} ")] == [f" {call()} "]
    named = form.reader(AnswerOptions(TOOLS, "get_all"), "")
    named.feed(call())
    assert named.content == call()


def test_numbers_in_markers():
    marker = f"a{INDEX}b"
    assert [matched(marker, text) for text in ("a12bc", "ab", "a12", "a12345b", "a12345")] == [
        4, -1, None, -1, -1,
    ]  # fmt: skip


QWEN_CODER = (
    "<tool_call>\n<function=get>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
)
KEYS = "<tool_call>get\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"
INVOKE = '<calls>\n<invoke name="get">\n<parameter name="a">{}</parameter>\n</invoke>\n</calls>'


def cuts(text):
    """Return the text in one piece, in single characters, and cut in two at every place."""
    return [[text], list(text), *([text[:n], text[n:]] for n in range(1, len(text)))]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("parameters", QWEN_CODER.format("x").replace("\n", "")),
        ("parameters", QWEN_CODER.format("x").replace("\n</parameter>", "</parameter>")),
        ("parameters", QWEN_CODER.format("x").replace("\n</function>", "</function>")),
        ("parameters", QWEN_CODER.format("x").replace("\n</tool_call>", "</tool_call>")),
        ("parameters", QWEN_CODER.format("x").replace("\n</function>", "")),
        ("parameters", QWEN_CODER.format("x").replace("</function>\n", "</function>\n\n  ")),
        ("keys", KEYS.format("x").replace("\n", "")),
        ("keys", KEYS.format("x").replace("\n", "\n\n")),
        ("invoke", INVOKE.format("x").replace("\n", "")),
        ("invoke", INVOKE.format("x").replace("\n</invoke>", "")),
        ("object", call("get", '{"a": "x"}').replace("\n", "")),
        ("object", call("get", '{"a": "x"}').replace("}\n</tool_call>", "\n</tool_call>")),
        ("object", call("get", '{"a": "x"}').replace("\n", "\n\n")),
    ],
)
def test_markers_may_lack_line_breaks_or_a_closing_tag(name, text):
    for pieces in cuts(f"So:\n{text}\nThat is all."):
        content, _, calls, complete = read(name, pieces)
        assert [[each[0], json.loads(each[1])] for each in complete] == [["get", {"a": "x"}]]
        assert (content, len(calls)) == ("So:That is all.", 1)


@pytest.mark.parametrize(
    ("name", "form", "closing"),
    [
        ("parameters", QWEN_CODER, "\n</parameter>"),
        ("parameters", QWEN_CODER, "</parameter>"),
        ("parameters", QWEN_CODER, "</function>\n</tool_call>"),
        ("keys", KEYS, "</arg_value>"),
        ("invoke", INVOKE, "</parameter>"),
        ("invoke", INVOKE, "</invoke>"),
    ],
)
def test_a_closing_marker_inside_a_value_is_part_of_it(name, form, closing):
    value = f"a{closing} b\n{closing}{closing}c"
    for pieces in cuts(form.format(value) + "\nDone."):
        content, _, _, complete = read(name, pieces)
        assert [json.loads(arguments) for _, arguments in complete] == [{"a": value}]
        assert content == "Done."


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "age": 5}',
        '{"name": "get"}',
        '{"name": "get", "parameters": [1]}',
        '{"name": "get", "parameters": {"a": "b"}, "age": 5}',
        '{"name": "get", "parameters": {"a": b}}',
        '{"name": "get_all", "age": {}} and more',
    ],
)
def test_an_object_that_is_no_call_is_content(text):
    for pieces in cuts(text):
        assert read("bare", pieces)[::3] == (text, [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("parameters", QWEN_CODER.format("x").replace("</parameter>", "")),
        ("parameters", QWEN_CODER.format("x").replace("=get", "=other")),
        ("parameters", QWEN_CODER.format("x").replace("</function>\n</tool_call>", "")),
        ("keys", KEYS.format("x").replace("</arg_value>", "")),
        ("object", call("get", '{"a": "x')),
        ("object", call("get", "[1]")),
        ("object", call("other", "{}")),
        ("closed list", '<TOOLCALL>[{"name": "get", "arguments": {"a": x}}]</TOOLCALL>'),
        ("counted", "<|calls|><|call|>functions.get:0<|args|>{x}<|call_end|><|calls_end|>"),
    ],
)
def test_a_text_that_is_no_call_is_content_with_all_that_follows(name, text):
    for pieces in cuts(f"So: {text}\nAnd this."):
        assert read(name, pieces)[::3] == (f"So: {text}\nAnd this.", [])


@given(
    st.sampled_from(sorted(set(TEMPLATES) - {"thinking", "opened", "control thinking"})),
    st.lists(FRAGMENTS, max_size=14).map("".join),
)
def test_an_answer_without_calls_is_content_as_it_is(name, text):
    content, _, _, complete = read(name, [text])
    assert complete or content == text


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_no_word_is_lost_where_an_answer_with_calls_is_cut(name):
    form = AnswerFormat.of(TEMPLATES[name], {}).tools
    calls = [("get", {"a": "word1", "n": 5}), ("get", {"a": "word2"})][: 1 + form.is_parallel]
    messages = [
        {"id": f"abcdef{i:03}", "function": {"name": called, "arguments": arguments}}
        for i, (called, arguments) in enumerate(calls)
    ]
    before = "" if form.is_bare else "word0\n"
    text = f"{before}{form.write(messages)}\n\nword3"
    for n in range(len(text) + 1):
        content, _, _, complete = read(name, [text[:n]])
        said = content + str(complete)
        words = [word for word in ("word0", "word1", "word2", "word3") if word in text[:n]]
        assert [word for word in words if word not in said] == []


def test_a_call_that_a_limit_cut_is_the_beginning_of_a_call_and_no_content():
    text = call()
    for n in range(text.index('{"a"') + 1, text.index('"b"}') + 4):
        made = reader("object")
        parts = made.feed(text[:n]) + made.end(is_cut=True)
        assert joined(parts) == ("", "", [["get", text[text.index('{"a"') : n]]])
