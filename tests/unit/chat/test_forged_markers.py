"""Markers of calls and reasoning that contents hold stay text, in every field and vocabulary."""

import contextlib
import itertools

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from edgespec.chat.encoder import ConversationEncoder
from edgespec.chat.options import AnswerOptions
from edgespec.chat.tools import Tool
from edgespec.errors import TemplateError
from tests.helpers import marked_vocabularies as marked
from tests.helpers.formats import TEMPLATES
from tests.helpers.selection import every, sample, share

X = "qqq"  # in place of a marker
FORGED = [(name, marker) for name in TEMPLATES for marker in marked.markers_of(TEMPLATES[name])]
JOINED = "{% for m in messages %}{{ m.content | trim }}{% endfor %}"
many = settings(
    max_examples=share(400),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module", params=["toy", "gguf", "gguf of SmolLM2", "onnx", "onnx blank"])
def tokenizer(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "made"
    with contextlib.ExitStack() as stack:
        if request.param == "toy":
            yield marked.MarkedToy()
        elif request.param.startswith("onnx"):
            onnx = pytest.importorskip("edgespec.backends.onnx.tokenizer")
            blank = request.param.endswith("blank")
            yield onnx.HfTokenizer(marked.write_tokenizer(path, sentencepiece=blank))
        else:
            llama_cpp = pytest.importorskip("edgespec.backends.llama_cpp.tokenizer")
            if request.param == "gguf":
                marked.write_sentencepiece(path)
            else:
                marked.write_bytes_pairs(path, request.getfixturevalue("smollm2"))
            yield stack.enter_context(llama_cpp.vocabulary(path))


class Templated:
    """A tokenizer with another chat template."""

    def __init__(self, tokenizer, template):
        self._tokenizer, self.chat_template = tokenizer, template

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)


def encoder_of(tokenizer, template, **options):
    return ConversationEncoder(Templated(tokenizer, template), **options)


def special(tokenizer, ids):
    """Return the control tokens and markers among token ids."""
    texts = {*marked.MARKERS, *marked.CONTROL}
    found = (tokenizer.token_text(token).decode("utf-8", "replace") for token in ids)
    return [text for text in found if text in texts]


def text_of(tokenizer, ids):
    return b"".join(map(tokenizer.piece, ids)).decode("utf-8", "replace")


def ids_of(encoder, messages, options):
    """Return the ids of a conversation, none for one that the template refuses."""
    with contextlib.suppress(TemplateError):
        return encoder.encode(encoder.render(messages, options=options))
    return []


def conversations(evil):
    """Return conversations that hold a text in one field each, by the name of the field."""

    def call(name="get", arguments=None):
        return {"id": "abcdef000", "type": "function",
                "function": {"name": name, "arguments": arguments or {"a": 1}}}  # fmt: skip

    def made(said="Well?", content="", called=None, result="Rain.", **more):
        options = {"tool": None, "kwargs": {}} | more.pop("options", {})
        tool = options["tool"] or Tool("get", "", {"properties": {"a": {"type": "integer"}}})
        messages = [
            {"role": "user", "content": said, "name": more.get("speaker", "")},
            {"role": "assistant", "content": content, "tool_calls": [called or call()],
             "reasoning_content": more.get("thought", "Hm.")},
            {"role": "tool", "content": result, "name": more.get("tool_name", "get"),
             "tool_call_id": "abcdef000"},
        ]  # fmt: skip
        if "system" in more:
            messages.insert(0, {"role": "system", "content": more["system"]})
        return messages, AnswerOptions((tool,), template_kwargs=options["kwargs"])

    def tool(parameters=None, description=""):
        shape = parameters or {"properties": {}}
        return made(options={"tool": Tool("get", description, shape, strict=False)})

    evil_text = f"See {evil} and\n{evil}"
    return {
        "user": made(evil_text),
        "user alone": made(evil),
        "user twice": made(evil + evil),
        "system": made(system=evil_text),
        "result": made(result=evil_text),
        "speaker": made(speaker=evil),
        "name of a result": made(tool_name=evil),
        "content of an answer": made(content=evil_text),
        "reasoning": made(thought=evil_text),
        "name of a call": made(called=call(evil)),
        "argument": made(called=call(arguments={"a": evil_text})),
        "name of an argument": made(called=call(arguments={evil: 1})),
        "nested argument": made(called=call(arguments={"a": [{evil: [evil]}]})),
        "arguments as text": made(called=call(arguments=f'{{"a": "{evil}"}}')),
        "arguments that were cut": made(called=call(arguments=f'{{"a": "{evil}')),
        "description of a tool": tool(description=evil_text),
        "parameter": tool({"properties": {evil: {"type": "string"}}, "required": [evil]}),
        "description of a parameter": tool({"properties": {"a": {"description": evil_text}}}),
        "choice": tool({"properties": {"a": {"enum": [evil, "b"]}}}),
        "default": tool({"properties": {"a": {"default": evil}}}),
        "type": tool({"properties": {"a": {"type": evil}}}),
        "keyword of a schema": tool({"properties": {}, evil: 1}),
    }


FIELDS = list(conversations(X))


@pytest.mark.parametrize("field", every(6, FIELDS, "more fields"))
def test_markers_in_contents_are_text(tokenizer, field):
    """Whatever the form and the marker, the tokens are those of a harmless text, and it is there.

    Templates show not all fields; that each is shown by one is a test of its own.
    """
    for name, marker in FORGED if isinstance(tokenizer, marked.MarkedToy) else sample(FORGED):
        encoder = encoder_of(tokenizer, TEMPLATES[name])
        harmless = ids_of(encoder, *conversations(X)[field])
        as_text = ids_of(encoder, *conversations(marker)[field])
        assert special(tokenizer, as_text) == special(tokenizer, harmless), (name, marker)
        taken_out = (name, field, marker) == ("opened", "content of an answer", "</think>")
        if X in text_of(tokenizer, harmless) and not taken_out:
            assert marker in text_of(tokenizer, as_text), (name, marker)


def test_each_field_is_shown_by_a_template():
    shown = set()
    names = "{% for m in messages %}{{ m.name }}{% endfor %}"
    for template in (*TEMPLATES.values(), names):
        encoder = encoder_of(marked.MarkedToy(), template)
        for field, (messages, options) in conversations(X).items():
            asked = None if template == names else options
            with contextlib.suppress(TemplateError):
                shown |= {field} if X in encoder.render(messages, options=asked) else set()
    assert shown == set(FIELDS)


def test_parsed_contents_hold_tokens(tokenizer):
    for name, marker in FORGED:
        encoder = encoder_of(tokenizer, TEMPLATES[name], parse_special=True)
        text = encoder.render([{"role": "user", "content": f"a {marker} b"}])
        assert special(tokenizer, encoder.encode(text)).count(marker) == 1 + (
            marker == "<think>" and name == "opened"
        )


def test_no_marker_is_formed_across_the_border_of_a_content(tokenizer):
    """With the template's text after, before or around it, and with the next content."""

    def said_by(template, *contents):
        note = "{#" + marker + "#}"  # the template means it
        encoder = encoder_of(tokenizer, note + template)
        return encoder.encode(encoder.render([{"role": "user", "content": c} for c in contents]))

    for marker in sample(marked.MARKERS):
        for cut, blank in itertools.product(range(1, len(marker)), ("", " ")):
            first, second = marker[:cut], marker[cut:]
            shown = "{{ messages[0].content | trim }}"
            made = [
                said_by(shown + second, first + blank),
                said_by(first + shown, blank + second),
                said_by(JOINED, first + blank, blank + second),
                said_by(JOINED, first, second[:1], second[1:] or "x"),
            ]
            if cut + 1 < len(marker):
                made.append(said_by(first + shown + marker[-1], marker[cut:-1] + blank))
            for ids in made:
                assert special(tokenizer, ids) == []
                assert marker in text_of(tokenizer, ids)


KEYS = (  # as Qwen3-Coder's template writes them
    "{% for tool in tools or [] %}{% set told = tool.function.parameters %}"
    "{% for k in told %}{% if k not in ['properties', 'required'] %}<{{ k }}></{{ k }}>{% endif %}"
    "{% endfor %}{% for k in told.properties %}{{ k }} {{ k in told.required }}, {% endfor %}"
    "{% endfor %}"
)


def test_no_marker_is_formed_around_a_key(tokenizer):
    """And a key is still found among the texts that are the same."""
    encoder = encoder_of(tokenizer, KEYS + TEMPLATES["object"])
    schema = {"properties": {"tool": {}, "b": {}}, "required": ["tool"], "tool_call": 1}
    options = AnswerOptions((Tool("get", "", schema, strict=False),))
    ids = ids_of(encoder, [{"role": "user", "content": "?"}], options)
    assert not {"<tool_call>", "</tool_call>"}.intersection(special(tokenizer, ids))
    shown = text_of(tokenizer, ids).partition("<|system|>")[0]
    assert "<tool_call></tool_call>tool True, b False, " in shown


@pytest.mark.parametrize("name", TEMPLATES)
def test_markers_of_the_template_stay_tokens(tokenizer, name):
    """Also beside forged ones in the same message."""
    template = TEMPLATES[name]
    encoder = encoder_of(tokenizer, template)
    trusting = encoder_of(tokenizer, template, parse_special=True)
    messages, options = conversations(X)["argument"]
    expected = trusting.encode(trusting.render(messages, options=options))
    assert encoder.encode(encoder.render(messages, options=options)) == expected
    assert set(special(tokenizer, expected)) >= {
        marker for marker in marked.markers_of(template) if "think" not in marker.lower()
    } - {"<tools>"}


ATOMS = st.sampled_from([
    "a", " ", "\n", "\n\n\n", "    ", "<", ">", "</", "tool", "_call>", "<tool", "think", "[", "]",
    "<b>", "</b>", "é", "漢", "<|", "|>", "=", "call", "function",
])  # fmt: skip
TEXTS = st.lists(ATOMS | st.text(max_size=5), min_size=1, max_size=12).map("".join)


@many
@given(contents=st.lists(TEXTS, min_size=1, max_size=5), name=st.sampled_from(sorted(TEMPLATES)))
def test_ordinary_texts_have_the_ids_that_they_had(tokenizer, contents, name):
    messages = [
        {"role": role, "content": text}
        for role, text in zip(itertools.cycle(["user", "assistant"]), contents, strict=False)
    ]
    encoder = encoder_of(tokenizer, TEMPLATES[name])
    ids = encoder.encode(encoder.render(messages))
    trusting = encoder_of(tokenizer, TEMPLATES[name], parse_special=True)
    as_before = trusting.encode(trusting.render(messages))
    assume(special(tokenizer, ids) == special(tokenizer, as_before))  # nothing was forged
    assert ids == as_before


@many
@given(
    contents=st.lists(
        st.lists(ATOMS | st.sampled_from(marked.MARKERS), max_size=9).map("".join),
        min_size=1, max_size=5,
    ),
    name=st.sampled_from(sorted(TEMPLATES)),
)  # fmt: skip
def test_no_content_adds_tokens(tokenizer, contents, name):
    template = TEMPLATES[name]
    encoder = encoder_of(tokenizer, template)
    known = {*marked.markers_of(template), *marked.CONTROL}

    def tokens(texts):
        rendered = encoder.render([{"role": "user", "content": text} for text in texts])
        return [t for t in special(tokenizer, encoder.encode(rendered)) if t in known]

    assert tokens(contents) == tokens([X] * len(contents))


THOUGHT = "<think>\na <tool_call>, a <think>\n</think>\n\nThe </think> ends <tool_call>."


@pytest.mark.parametrize("name", ["thinking", "opened"])
def test_reasoning_that_clients_send_back_in_contents(tokenizer, name):
    """The markers around it are those of the model, so that templates can take it out."""
    encoder = encoder_of(tokenizer, TEMPLATES[name])
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": THOUGHT}]
    ids = encoder.encode(encoder.render(messages, add_generation_prompt=False))
    around = ["<think>", "</think>"] if name == "thinking" else []
    assert special(tokenizer, ids)[3 : 3 + len(around)] == around
    assert len(special(tokenizer, ids)) == 4 + len(around)
    said = THOUGHT if name == "thinking" else THOUGHT.partition("</think>")[2]
    assert said.split("</think>")[-1] in text_of(tokenizer, ids)
    assert ("a <tool_call>" in text_of(tokenizer, ids)) == (name == "thinking")
