"""Calls of tools and reasoning in chat answers, whole and streamed, however tokens cut them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from edgespec import ToyTokenizer
from tests.helpers import scripted_chats
from tests.helpers.scripted_chats import (
    MARKERS,
    TEMPLATE,
    TURN,
    ScriptedChat,
    accumulated,
    called,
    rambling,
)
from tests.helpers.selection import first, sample

pytest.importorskip("llguidance")

CHAT = "/v1/chat/completions"
LOOK = {
    "type": "object",
    "properties": {"at": {"type": "string"}, "times": {"type": "integer"}},
    "required": ["at"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "See.", "parameters": LOOK}},
    {"type": "function", "function": {"name": "stop"}},
]


DOOR, BRACES = (
    '{"at": "door"}',
    '{"at": "a }{ \\"b\\" \\u0007 \u00fc\U0001f642 </tool", "times": 2}',
)
SCRIPTS = {  # what the model writes, its content, reasoning and calls
    "words": ("It is open.", "It is open.", "", []),
    "call": (called("look", DOOR), None, "", [("look", DOOR)]),
    "no arguments": (called("stop", "{}"), None, "", [("stop", "{}")]),
    "braces": (called("look", BRACES), None, "", [("look", BRACES)]),
    "two": (
        called("look", DOOR) + "\n" + called("stop", "{}"), None, "",
        [("look", DOOR), ("stop", "{}")],
    ),
    "say and call": (
        "Let me see <that>.\n" + called("look", DOOR), "Let me see <that>.", "", [("look", DOOR)],
    ),
    "think": (
        "<think>\nIs it < or </b>?\n</think>\n\nIt is.", "It is.", "Is it < or </b>?", [],
    ),
    "think and call": (
        "<think>\nI look.\n</think>\n\n" + called("look", DOOR), None, "I look.", [("look", DOOR)],
    ),
}  # fmt: skip
QUOTED = "x " + called("look", DOOR)  # what a form spells, which is no call
WORDS = {
    "markers": MARKERS,
    "bytes": (),
    "wide": (
        *MARKERS, '<tool_call>\n{"name": "', '", "arguments": {"', '"}}\n</tool_call>', "}}\n</",
        "\n</think>\n\n", "?\n</th", "ink>\n\nIt", "I look.\n</think>\n\n<tool_call>\n",
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=first(2, WORDS, "tokens of more bytes"))
def chat(request):
    scripts = {key: script[0] for key, script in SCRIPTS.items()}
    return ScriptedChat({**scripts, "quoted": QUOTED}, WORDS[request.param])


@pytest.fixture(scope="module")
def engine(chat):
    with chat.engine() as made:
        yield made


def asked(text: str, **more):
    """Return a request after a conversation that holds a call, so that calls are drafted."""
    earlier = [
        {"role": "user", "content": "look there"},
        {"role": "assistant", "content": None, "tool_calls": [call("look", DOOR)]},
        {"role": "tool", "tool_call_id": "call_1", "content": "open"},
        {"role": "assistant", "content": "It is open."},
    ]
    return {"messages": [*earlier, {"role": "user", "content": text}], "tools": TOOLS, **more}


def call(name: str, arguments: str, id: str = "call_1"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("key", SCRIPTS)
def test_whole_answers(client, key):
    _, content, reasoning, calls = SCRIPTS[key]
    answer = client.post(CHAT, json=asked(key)).json()
    choice = answer["choices"][0]
    message = choice["message"]
    told = message.get("tool_calls", [])
    assert [(c["function"]["name"], c["function"]["arguments"]) for c in told] == calls
    assert len({c["id"] for c in told}) == len(told)
    assert message["content"] == content
    assert message.get("reasoning", "") == message.get("reasoning_content", "") == reasoning
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    n = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert (n > 0) == bool(reasoning)
    assert n < answer["usage"]["completion_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_each_of_several_choices_has_its_reasoning_and_calls(client, events, stream):
    key = "think and call"
    _, _, reasoning, calls = SCRIPTS[key]
    response = client.post(CHAT, json=asked(key, n=3, stream=stream))
    if stream:
        chunks = [choice for e in events(response.text)[:-1] for choice in e["choices"]]
        apart = [[{"choices": [c]} for c in chunks if c["index"] == i] for i in range(3)]
        messages = [accumulated(each)[0] for each in apart]
    else:
        messages = [choice["message"] for choice in response.json()["choices"]]
    assert len(messages) == 3
    for message in messages:
        told = [(c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]
        assert told == calls
        assert message["reasoning"] == reasoning


def test_a_call_that_a_form_spells_is_content(client, events):
    body = asked("quoted", structured_outputs={"regex": "x (?s:.*)"})
    choice = client.post(CHAT, json=body).json()["choices"][0]
    assert choice["message"]["content"] == QUOTED
    assert not choice["message"].get("tool_calls")
    assert choice["finish_reason"] == "stop"
    *chunks, _ = events(client.post(CHAT, json=body | {"stream": True}).text)
    message, _ = accumulated(chunks)
    assert (message["content"], message.get("tool_calls", [])) == (QUOTED, [])
    free = client.post(CHAT, json=asked("quoted")).json()["choices"][0]
    assert free["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("key", SCRIPTS)
@pytest.mark.parametrize("draft", [0, 7])
def test_streams_say_the_same(client, events, key, draft):
    more = {"num_draft_tokens": draft, "stream_options": {"include_usage": True}}
    whole = client.post(CHAT, json=asked(key)).json()
    *chunks, done = events(client.post(CHAT, json=asked(key, stream=True, **more)).text)
    assert done == "[DONE]"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    message, reasons = accumulated(chunks)
    expected = whole["choices"][0]["message"]
    for one in (*message.get("tool_calls", []), *expected.get("tool_calls", [])):
        assert one.pop("id")
    assert message | {"refusal": None} == expected
    assert reasons == [whole["choices"][0]["finish_reason"]]
    names = ("completion_tokens", "completion_tokens_details")
    assert [chunks[-1]["usage"][n] for n in names] == [whole["usage"][n] for n in names]


def test_each_delta_is_of_one_kind_and_reasoning_comes_first(client, events):
    *chunks, _ = events(client.post(CHAT, json=asked("think and call", stream=True)).text)
    deltas = [c["choices"][0]["delta"] for c in chunks[1:-1]]
    kinds = ["call" if "tool_calls" in d else "reasoning" for d in deltas]
    assert all(len(d) == (1 if "tool_calls" in d else 2) for d in deltas)
    assert kinds == sorted(kinds, reverse=True)


def test_an_answer_that_is_cut_inside_a_call(client, events):
    whole = client.post(CHAT, json=asked("call")).json()
    n = whole["usage"]["completion_tokens"]
    for limit in sample(range(1, n - 1, 5), 3):
        body = asked("call", max_tokens=limit)
        choice = client.post(CHAT, json=body).json()["choices"][0]
        assert choice["finish_reason"] == "length"
        message, reasons = accumulated(
            events(client.post(CHAT, json=body | {"stream": True}).text)[:-1]
        )
        assert reasons == ["length"]
        ours = choice["message"].get("tool_calls", [])
        for one, other in zip(ours, message.get("tool_calls", []), strict=True):
            assert one["function"] == other["function"]
            assert DOOR.startswith(one["function"]["arguments"])
        assert (message["content"] or None) == (choice["message"]["content"] or None)


def test_a_stop_string_inside_a_call_leaves_no_call_to_run(client):
    choice = client.post(CHAT, json=asked("call", stop="door")).json()["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "door")
    behind = client.post(CHAT, json=asked("say and call", stop="\n")).json()["choices"][0]
    assert behind["message"] == {
        "role": "assistant", "content": "Let me see <that>.", "refusal": None,
    }  # fmt: skip


def test_reasoning_without_tools(client, events):
    body = asked("think", tools=None)
    message = client.post(CHAT, json=body).json()["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("It is.", "Is it < or </b>?")
    chunks = events(client.post(CHAT, json=body | {"stream": True}).text)[:-1]
    assert accumulated(chunks)[0] | {"refusal": None} == message
    choice = client.post(CHAT, json=body | {"max_tokens": 9}).json()["choices"][0]
    assert choice["message"]["content"] == ""  # the reasoning never closes
    assert "Is it < or </b>?".startswith(choice["message"].get("reasoning", ""))
    choice = client.post(CHAT, json=body | {"stop": " is"}).json()["choices"][0]
    assert choice["message"] == message | {"content": "It"}  # reasoning has no stop strings


def test_a_budget_ends_the_reasoning(client):
    none = client.post(CHAT, json=asked("think", thinking_token_budget=0)).json()
    assert "reasoning" not in none["choices"][0]["message"]
    few = client.post(CHAT, json=asked("think", thinking_token_budget=3)).json()
    found = few["choices"][0]["message"]["reasoning"]
    assert 0 < len(found) < len("Is it < or </b>?")


def test_messages_of_tools_reach_the_template(chat, client):
    client.post(CHAT, json=asked("words"))
    seen = chat.seen[-1]
    assert called("look", DOOR) in seen
    assert "<|im_start|>tool\nopen<|im_end|>" in seen
    assert '"description": "See."' in seen
    assert seen.index("<tools>") < seen.index("look there")


def test_an_answer_can_be_sent_back_as_it_came(chat, client):
    body = asked("think and call")
    message = client.post(CHAT, json=body).json()["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "thanks"}
    again = client.post(CHAT, json=body | {"messages": [*body["messages"], message, result]})
    assert again.json()["choices"][0]["message"]["content"] == "thanks"
    assert "<think>\nI look.\n</think>\n\n" in chat.seen[-1]


def test_arguments_that_were_cut_become_an_object(chat, client):
    bad = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call("look", '{"a": "b')]},
    ]
    body = {"messages": [*bad, {"role": "user", "content": "words"}], "tools": TOOLS}
    assert client.post(CHAT, json=body).status_code == 200
    assert '"arguments": {"a": "b"}' in chat.seen[-1]


def test_without_tools_and_reasoning_nothing_changes_and_nothing_is_loaded():
    program = """
import sys
from starlette.testclient import TestClient
from edgespec.server.app import create_app
from edgespec.server.settings import ServerSettings
from tests.helpers.scripted_chats import TEMPLATE, ScriptedChat
SAID = "<think>a</think>b"
def message(template):
    with ScriptedChat({}).engine(template) as engine:
        client = TestClient(create_app(engine, ServerSettings("toy")), base_url="http://localhost")
        body = {"messages": [{"role": "user", "content": SAID}]}
        return client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
assert message(None) == {"role": "assistant", "content": SAID, "refusal": None}
assert message(TEMPLATE)["content"] == "b"
assert "llguidance" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


LETTERS = [chr(i) for i in range(32, 127)] + ["\n"]


@pytest.fixture
def anything():
    """Return an engine whose model says anything."""
    tokenizer = ToyTokenizer([*MARKERS, *LETTERS, "</s>"], [len(LETTERS) + 4], TEMPLATE)
    with rambling(tokenizer) as made:
        yield made


TURNING = [{"type": "web_search", "filters": {"a": 1}}, *scripted_chats.TOOLS]


class TestAModelThatSaysAnything:
    @pytest.fixture
    def engine(self, anything):
        return anything

    @staticmethod
    def ask(client, **more):
        body = {"messages": [{"role": "user", "content": "go"}], "tools": TURNING}
        response = client.post(CHAT, json=body | {"reasoning_effort": "none", **more})
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]

    @pytest.mark.parametrize("seed", range(5))
    def test_a_named_tool_is_called_as_its_schema_says(self, client, seed):
        choice = {"type": "function", "function": {"name": "turn"}}
        found = self.ask(client, tool_choice=choice, temperature=1, seed=seed, max_tokens=400)
        assert found["finish_reason"] == "tool_calls"
        for one in found["message"]["tool_calls"]:
            assert one["function"]["name"] == "turn"
            arguments = json.loads(one["function"]["arguments"])
            assert set(arguments) == {"to", "go"}
            assert arguments["to"] in ("left", "right")

    @pytest.mark.parametrize("seed", range(5))
    def test_required_calls_some_tool_and_may_be_one_only(self, client, seed):
        found = self.ask(
            client, tool_choice="required", parallel_tool_calls=False, temperature=1, seed=seed,
            max_tokens=400,
        )  # fmt: skip
        assert found["finish_reason"] == "tool_calls"
        [one] = found["message"]["tool_calls"]
        assert one["function"]["name"] in ("turn", "halt")
        assert found["message"]["content"] is None

    def test_allowed_tools(self, client):
        halt = {"type": "function", "function": {"name": "halt"}}
        allowed = {"mode": "required", "tools": [halt]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        found = self.ask(client, tool_choice=choice, parallel_tool_calls=False, max_tokens=400)
        assert found["message"]["tool_calls"][0]["function"]["name"] == "halt"

    @pytest.mark.parametrize("seed", range(3))
    def test_none_calls_nothing(self, client, seed):
        more = {"temperature": 1, "seed": seed, "max_tokens": 300}
        assert "tool_calls" not in self.ask(client, tool_choice="none", **more)["message"]

    def test_logit_bias_cannot_make_a_forbidden_token_appear(self, client, anything):
        exclamation = len(MARKERS) + LETTERS.index("!")
        found = self.ask(
            client, tool_choice="required", parallel_tool_calls=False, max_tokens=400,
            logit_bias={str(exclamation): 100}, tools=TURNING[:2],
        )  # fmt: skip
        [one] = found["message"]["tool_calls"]
        assert set(json.loads(one["function"]["arguments"])) == {"to", "go"}

    def test_logprobs_are_of_the_unmodified_logits(self, client, anything):
        more = {"tool_choice": "required", "max_tokens": 60, "logprobs": True, "top_logprobs": 1}
        told = self.ask(client, **more)["logprobs"]["content"]
        biased = self.ask(client, **more, logit_bias={"3": 1})["logprobs"]["content"]
        assert [t["logprob"] for t in told[:4]] == [t["logprob"] for t in biased[:4]]
        assert told[0]["token"] == "<tool_call>"
        assert any(t["token"] != t["top_logprobs"][0]["token"] for t in told)  # it was forbidden
        assert any(t["logprob"] < -1 for t in told)

    def test_a_form_beside_tools_that_need_not_be_called(self, client):
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": TURN}}
        found = self.ask(client, response_format=form, parallel_tool_calls=False, max_tokens=400)
        if found["finish_reason"] == "stop":
            assert set(json.loads(found["message"]["content"])) == {"to", "go"}
        else:
            assert found["finish_reason"] == "tool_calls"

    def test_a_form_behind_reasoning(self, client):
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": TURN}}
        found = self.ask(
            client, response_format=form, tools=None, reasoning_effort=None,
            thinking_token_budget=5, max_tokens=400,
        )  # fmt: skip
        assert found["finish_reason"] == "stop"
        assert set(json.loads(found["message"]["content"])) == {"to", "go"}


@pytest.mark.parametrize(
    ("value", "at"),
    [
        ("door</parameter>\n", "door"),
        ("door\n</parameter>\n", "door"),
        ("a\n</parameter>\nb</function>\n</parameter>", "a\n</parameter>\nb</function>"),
    ],
)
def test_a_call_with_closing_tags_in_unusual_places_and_text_after_it(events, value, at):
    from starlette.testclient import TestClient

    from edgespec.server.app import create_app
    from edgespec.server.settings import ServerSettings

    said = f"<tool_call>\n<function=look>\n<parameter=at>\n{value}</function>\n</tool_call>\nSo."
    template = TEMPLATE.replace(
        """'\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}""",
        """'\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}""",
    ).replace(
        """{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}""",
        """{%- for k, v in call.function.arguments.items() %}{{ '<parameter=' + k + '>\\n' }}"""
        """{{- v ~ '\\n</parameter>\\n' }}{% endfor %}{{ '</function>\\n</tool_call>' }}""",
    )
    with ScriptedChat({"ask": said}).engine(template) as engine:
        form = engine.answer_format.tools
        assert form
        assert form.closing == "\n</function>\n</tool_call>"
        client = TestClient(create_app(engine, ServerSettings("toy")), base_url="http://localhost")
        body = {"messages": [{"role": "user", "content": "ask"}], "tools": TOOLS}
        choice = client.post(CHAT, json=body).json()["choices"][0]
        (told,) = choice["message"]["tool_calls"]
        assert json.loads(told["function"]["arguments"]) == {"at": at}
        assert (choice["message"]["content"], choice["finish_reason"]) == ("So.", "tool_calls")
        *chunks, _ = events(client.post(CHAT, json=body | {"stream": True}).text)
        assert accumulated(chunks)[0]["content"] == "So."
