"""Nothing that a client writes becomes a marker of a call or of reasoning, in any field."""

import json

import numpy as np
import pytest

import edgespec
from tests.helpers import marked_vocabularies as marked
from tests.helpers.formats import TEMPLATES
from tests.helpers.selection import sample

pytest.importorskip("llguidance")

X = "qqq"  # in place of a marker
TEMPLATE = TEMPLATES["thinking"].replace("}}|>{{ m.content", "}}|>{{ m.name }}{{ m.content")
MARKERS = marked.markers_of(TEMPLATE)
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
USER = {"role": "user", "content": "?"}


class Listener:
    """A model that says nothing, and tells what it reads."""

    def __init__(self):
        self.tokenizer = marked.MarkedToy(TEMPLATE)
        self.prompt = []

    def next_probs(self, tokens):
        self.prompt = self.prompt or list(tokens)
        probs = np.full(self.tokenizer.vocab_size, 1e-7)
        probs[-1] = 1
        return probs / probs.sum()

    def special(self):
        return [token for token in self.prompt if token >= 256]

    def text(self):
        return b"".join(map(self.tokenizer.piece, self.prompt)).decode()


@pytest.fixture
def listener():
    return Listener()


@pytest.fixture
def engine(listener):
    model = edgespec.ToyModel(
        listener.next_probs, vocab_size=listener.tokenizer.vocab_size, n_ctx=4096
    )
    with edgespec.assemble(model, listener.tokenizer) as made:
        listener.prompt = []  # of what the engine tried
        yield made


def schemas(text):
    """Return schemas of a tool's arguments that hold a text, by the name of the place."""
    return {
        "parameter": {"type": "object", "properties": {text: {"type": "string"}}},
        "required": {"type": "object", "properties": {text: {}}, "required": [text]},
        "description of a parameter": {
            "type": "object", "properties": {"a": {"type": "string", "description": text}},
        },
        "choice": {"type": "object", "properties": {"a": {"enum": [text, "b"]}}},
        "default": {"type": "object", "properties": {"a": {"type": "string", "default": text}}},
        "title": {"type": "object", "title": text, "properties": {}},
    }  # fmt: skip


def chat_bodies(text):
    """Return requests that hold a text in one field each, by the name of the field."""
    parts = [{"type": "text", "text": f"a {text}"}, {"type": "text", "text": text}]

    def called(name="get", arguments="{}", result="Rain.", id="c", **more):
        call = {"id": id, "function": {"name": name, "arguments": arguments}}
        answer = {"role": "assistant", "tool_calls": [call], **more}
        return [USER, answer, {"role": "tool", "tool_call_id": id, "content": result}]

    messages = {
        "system": [{"role": "system", "content": text}, USER],
        "system, in parts": [{"role": "system", "content": parts}, USER],
        "developer": [{"role": "developer", "content": f"a {text} b"}, USER],
        "user": [{"role": "user", "content": text}],
        "user, in parts": [{"role": "user", "content": parts}],
        "user's name": [{"role": "user", "content": "?", "name": text}],
        "answer": [USER, {"role": "assistant", "content": f"a {text}"}, USER],
        "answer, in parts": [USER, {"role": "assistant", "content": parts}, USER],
        "reasoning_content": called(reasoning_content=text),
        "reasoning": called(reasoning=f"{text}{text}"),
        "refusal": [USER, {"role": "assistant", "refusal": text}, USER],
        "name of a call": called(name=text),
        "id of a call": called(id=text),
        "argument": called(arguments=json.dumps({"a": f"b {text}"})),
        "name of an argument": called(arguments=json.dumps({text: [1]})),
        "nested argument": called(arguments=json.dumps({"a": [{"b": {text: [text]}}]})),
        "arguments, no object": called(arguments=f"[{text}]"),
        "result": called(result=text),
        "result, in parts": called(result=parts),
        "name of a result": [*called()[:2], called()[2] | {"name": text}],
    }
    bodies = {field: {"messages": each} for field, each in messages.items()}
    for place, schema in ({"description": None} | schemas(text)).items():
        function = {"name": "get", "description": text} if schema is None else {
            "name": "get", "parameters": schema}  # fmt: skip
        bodies[place] = {"messages": [USER], "tools": [{"type": "function", "function": function}]}
    bodies["variable"] = {"messages": [USER], "chat_template_kwargs": {"opened": text}}
    return bodies


def responses_bodies(text):
    parts = [{"type": "input_text", "text": text}]
    call = {"type": "function_call", "call_id": "c", "name": "get", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "Rain."}
    bodies = {
        "instructions": {"input": "?", "instructions": text},
        "input": {"input": f"a {text}"},
        "message": {"input": [{"role": "user", "content": text}]},
        "message, in parts": {"input": [{"role": "user", "content": parts}]},
        "developer": {"input": [{"role": "developer", "content": parts}, USER]},
        "answer": {"input": [USER, {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": f"a {text}"}]}, USER]},
        "refusal": {"input": [USER, {"type": "message", "role": "assistant", "content": [
            {"type": "refusal", "refusal": f"a {text}"}]}, USER]},
        "reasoning": {"input": [USER, {"type": "reasoning", "content": [
            {"type": "reasoning_text", "text": text}]}, call, result]},
        "name of a call": {"input": [USER, call | {"name": text}, result]},
        "argument": {"input": [USER, call | {"arguments": json.dumps({text: text})}, result]},
        "result": {"input": [USER, call, result | {"output": text}]},
        "result, in parts": {"input": [USER, call, result | {"output": parts}]},
    }  # fmt: skip
    tool = {"type": "function", "name": "get"}
    bodies["description"] = {"input": "?", "tools": [tool | {"description": text}]}
    for place, schema in schemas(text).items():
        bodies[place] = {"input": "?", "tools": [tool | {"parameters": schema}]}
    return bodies


def messages_bodies(text):
    block = {"type": "text", "text": text}
    call = {"type": "tool_use", "id": "c", "name": "get", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "Rain."}

    def round_of(*blocks, result=result):
        return [
            USER,
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [result]},
        ]

    turns = {
        "user": [{"role": "user", "content": text}],
        "user, in blocks": [{"role": "user", "content": [block, block]}],
        "answer": [USER, {"role": "assistant", "content": f"a {text}"}, USER],
        "thinking": round_of({"type": "thinking", "thinking": text, "signature": ""}, call),
        "name of a call": round_of(call | {"name": text}),
        "argument": round_of(call | {"input": {text: {"a": [text]}}}),
        "result": round_of(call, result=result | {"content": f"a {text}"}),
        "result, in blocks": round_of(call, result=result | {"content": [block]}),
    }
    bodies = {field: {"messages": each} for field, each in turns.items()}
    bodies["system"] = {"messages": [USER], "system": text}
    bodies["system, in blocks"] = {"messages": [USER], "system": [block]}
    for place, schema in ({"description": {}} | schemas(text)).items():
        tool = {"name": "get", "input_schema": schema or {"type": "object"}}
        more = {} if schema else {"description": text}
        bodies[place] = {"messages": [USER], "tools": [tool | more]}
    return {field: body | {"max_tokens": 1} for field, body in bodies.items()}


BODIES = {CHAT: chat_bodies, RESPONSES: responses_bodies, MESSAGES: messages_bodies}
FIELDS = [(path, field) for path, bodies in BODIES.items() for field in bodies(X)]
UNSHOWN = {(CHAT, "user's name"), (CHAT, "id of a call"), (CHAT, "variable")}
"""Fields that the template, or the API, leaves out."""


@pytest.mark.parametrize(("path", "field"), FIELDS)
def test_no_field_of_an_api_forges_a_marker(client, listener, path, field):
    def read(text):
        listener.prompt = []
        answer = client.post(path, json=BODIES[path](text)[field])
        assert answer.status_code == 200, answer.text
        return listener.special(), listener.text()

    harmless, shown = read(X)
    assert (X in shown) == ((path, field) not in UNSHOWN)
    for marker in MARKERS:
        special, text = read(marker)
        assert special == harmless
        assert (marker in text.replace(shown.partition(X)[0], "")) or X not in shown


@pytest.mark.parametrize("marker", MARKERS)
def test_counted_and_tokenized_as_it_is_read(client, listener, marker):
    body = chat_bodies(marker)["user, in parts"]
    assert client.post(CHAT, json=body).status_code == 200
    found = client.post("/tokenize", json=body).json()["tokens"]
    assert found == listener.prompt
    counted = messages_bodies(marker)["user, in blocks"] | {"max_tokens": None}
    del counted["max_tokens"]
    listener.prompt = []
    assert client.post(MESSAGES, json=counted | {"max_tokens": 1}).status_code == 200
    n = client.post(f"{MESSAGES}/count_tokens", json=counted).json()["input_tokens"]
    assert n == len(listener.prompt)


@pytest.mark.parametrize("marker", MARKERS)
def test_raw_prompts_and_trusted_messages_hold_tokens(client, listener, marker):
    token = listener.tokenizer.encode(marker)
    raw = client.post("/tokenize", json={"prompt": f"a{marker}", "parse_special": False}).json()
    assert raw["tokens"] == [*b"a", *token]  # as engines do, in a text that is no message
    trusted = {"messages": [{"role": "user", "content": marker}], "parse_special": True}
    assert client.post("/tokenize", json=trusted).json()["tokens"].count(token[0]) == 1


@pytest.mark.parametrize("marker", sample(MARKERS, 2))
def test_no_field_of_a_chat_forges_a_marker(engine, listener, marker):
    """Texts, results and what is loaded from a file."""

    def read(text):
        def look(direction: str) -> str:
            return text

        look.__doc__ = f"Look around, {text}"
        found = []
        saved = {"system": text, "messages": [
            {"role": "user", "content": text},
            {"role": "assistant", "content": "", "reasoning_content": text, "tool_calls": [
                {"id": "c", "type": "function",
                 "function": {"name": text, "arguments": json.dumps({text: text})}}]},
            {"role": "tool", "tool_call_id": "c", "name": text, "content": text},
            {"role": "assistant", "content": f"a {text}"},
        ]}  # fmt: skip
        chat = engine.chat(tools=[look])
        chat.load_dict(saved)
        for said in (text, f"{text} again"):
            listener.prompt = []
            chat.send(said, max_tokens=4)
            found += [listener.special(), listener.text().count(text)]
        return found

    harmless, forged = read(X), read(marker)
    assert forged[::2] == harmless[::2]
    assert all(n >= m > 8 for n, m in zip(forged[1::2], harmless[1::2], strict=True))
