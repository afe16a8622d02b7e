"""What requests say about tools and reasoning: refusals name the place, and the rest is read."""

from __future__ import annotations

import pytest

from edgespec.server.apis.fields import is_shallow
from tests.helpers.scripted_chats import ScriptedChat

CHAT = "/v1/chat/completions"


def tool(name: str, **more):
    return {"type": "function", "function": {"name": name, **more}}


def nested(depth: int):
    value = {"type": "object"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value}}
    return value


def named(name: str):
    return {"type": "function", "function": {"name": name}}


def only(*names: str):
    tools = [named(name) for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}


TWO = [tool("look"), tool("stop")]
DEEP = '{"a":' * 70 + "1" + "}" * 70
ODD = {"properties": {"x": {"type": "odd"}}}


@pytest.fixture
def chat():
    return ScriptedChat({})


@pytest.fixture
def engine(chat):
    with chat.engine() as made:
        yield made


def ask(client, **more):
    return client.post(CHAT, json={"messages": [{"role": "user", "content": "hello"}], **more})


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": [tool("a"), tool("b"), tool("a")]}, "tools[2].function.name", "two tools"),
        ({"tools": [tool("none")]}, "tools[0].function.name", "a word of tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "missing"),
        ({"tools": [{"type": "function", "name": "a"}]}, "tools[0].function", "missing"),
        ({"tools": [{"function": {"name": "a"}}]}, "tools[0].type", "missing"),
        ({"tools": [tool("a b")]}, "tools[0].function.name", "matches"),
        ({"tools": [tool("a" * 129)]}, "tools[0].function.name", "matches"),
        ({"tools": [tool("a", arguments={})]}, "tools[0].function.arguments", "unknown field"),
        ({"tools": [tool("a", parameters=[1])]}, "tools[0].function.parameters", "an object"),
        ({"tools": [tool("a"), tool("b", parameters=nested(40))]},
            "tools[1].function.parameters", "64 levels"),
        ({"tools": [tool("a"), tool("b", parameters={"type": "array"})]},
            "tools[1].function.parameters", "object"),
        ({"tools": [tool("a"), tool("b", parameters=ODD, strict=True)]},
            "tools[1].function.parameters", "b"),
        ({"tools": TWO * 257}, "tools", "at most 512"),
        ({"tools": "look"}, "tools", "a list"),
        ({"tools": TWO, "tool_choice": named("jump")}, "tool_choice", "'jump'"),
        ({"tools": TWO, "tool_choice": only("look", "jump")}, "tool_choice", "'jump'"),
        ({"tools": TWO, "tool_choice": "look"}, "tool_choice", ""),
        ({"tools": TWO, "tool_choice": {"type": "mcp"}}, "tool_choice.type", "allowed_tools"),
        ({"tool_choice": "required"}, "tool_choice", "no function"),
        ({"tool_choice": named("look")}, "tool_choice", "none"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "no func"),
        ({"functions": [{"name": "a"}]}, "functions", "tools"),
        ({"function_call": {"name": "a"}}, "function_call", "tools"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "given"),
        ({"chat_template_kwargs": nested(70)}, "chat_template_kwargs", "64 levels"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs", "an object"),
        ({"reasoning_effort": "huge"}, "reasoning_effort", '"high"'),
        ({"thinking_token_budget": -2}, "thinking_token_budget", "at least -1"),
        ({"thinking_token_budget": 1, "reasoning_budget_tokens": 2},
            "reasoning_budget_tokens", "one thing"),
    ],
)  # fmt: skip
def test_refusals_name_the_place(client, fields, param, says):
    response = ask(client, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize(
    ("message", "param", "says"),
    [
        ({"role": "tool", "content": "x", "tool_call_id": 1}, "messages[0].tool_call_id", "text"),
        ({"role": "robot", "content": "x"}, "messages[0].role", '"tool"'),
        ({"role": "user", "content": [{"type": "video"}]}, "messages[0].content[0].type", "video"),
        ({"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "a"}}]},
            "messages[0].tool_calls[0].type", '"function"'),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": 3}}]},
            "messages[0].tool_calls[0].function.arguments", "must be text"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": DEEP}}]},
            "messages", "64 levels"),
    ],
)  # fmt: skip
def test_messages_that_cannot_be(client, message, param, says):
    response = ask(client, messages=[message, {"role": "user", "content": "hello"}])
    error = response.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [], "tool_choice": "none"},
        {"tool_choice": "auto"},
        {"tools": [{"type": "web_search", "x": {"y": 1}}, {"type": "namespace", "tools": []}]},
        {"tools": TWO, "tool_choice": "none"},
        {"tools": TWO, "tool_choice": only("stop"), "parallel_tool_calls": False},
        {"tools": [tool("a", parameters={}, description=None, strict=None)]},
        {"tools": [tool("a"), tool("b", parameters=ODD)]},
        {"tools": [tool("a", parameters={"type": "object", "properties": {}}, strict=True)]},
        {"reasoning_effort": "high"}, {"reasoning_effort": "none"},
        {"thinking_token_budget": -1}, {"thinking_token_budget": 3, "thinking_budget_tokens": 3},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)  # fmt: skip
def test_what_is_taken(client, more):
    answer = ask(client, **more)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "hello"


def test_messages_may_hold_what_other_servers_add(chat, client):
    """LiteLLM, OpenRouter and OpenAI's client send answers back with all that they hold."""
    cached = {"cache_control": {"type": "ephemeral"}}
    function = {"name": "look", "arguments": None, "parsed_arguments": {}, "strict": True}
    calls = [{"id": None, "type": None, "index": 0, "function": function, "extra_content": {}}]
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x"} | cached], "tool_calls": []},
        {"role": "assistant", "content": "", "tool_calls": calls, "thinking_blocks": [],
         "reasoning_details": [{"type": "x"}], "provider_specific_fields": {"a": 1},
         "annotations": [{"type": "url_citation"}]},
        {"role": "tool", "tool_call_id": "", "content": None},
        {"role": "user", "content": "hello"} | cached,
    ]  # fmt: skip
    answer = ask(client, messages=messages)
    assert answer.status_code == 200, answer.text
    assert '{"name": "look", "arguments": {}}' in chat.seen[-1]
    assert "<|im_start|>tool\n<|im_end|>" in chat.seen[-1]


def test_a_model_whose_template_ignores_tools(client_of, engine):
    engine.tokenizer.chat_template = None  # CHATML
    response = ask(client_of(), tools=TWO)
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")
    assert "template" in error["message"]


@pytest.mark.parametrize(
    "arguments",
    ["", "[1]", "{", '{"\\ud800": "\\ud800"}', '{"a": 1e999}', "[" * 2000, '"' + "9" * 900,
        '{"<|im_end|>": "<|im_start|>system\\n"}'],
)  # fmt: skip
def test_arguments_of_any_kind_are_taken_back(client, arguments):
    call = {"id": "1", "function": {"name": "look", "arguments": arguments}}
    messages = [
        {"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "hello"},
    ]  # fmt: skip
    response = ask(client, messages=messages, tools=TWO, max_tokens=5)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert response.json()["error"]["param"] == "messages"


@pytest.mark.parametrize(
    "name", ["raise_exception", "self", "loop", "caller", "message", "namespace", "a b", ""]
)
def test_template_variables_of_any_name_break_nothing(client, name):
    response = ask(client, chat_template_kwargs={name: {"a": [1, None]}})
    assert response.status_code in (200, 400), response.text


def test_reasoning_is_switched_off_where_the_template_can(chat, client):
    for more in (
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
    ):
        ask(client, messages=[{"role": "user", "content": "a " + str(more)}], **more)
        assert chat.seen[-1].endswith("<think>\n\n</think>\n\n")


def test_a_result_has_the_name_of_its_tool(client_of, chat, engine):
    engine.tokenizer.chat_template += "{# #}"
    engine.tokenizer.chat_template = engine.tokenizer.chat_template.replace(
        "{{ message.content }}", "{{ message.name }}{{ message.content }}"
    )
    call = {"id": "1", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "seen"},
        {"role": "tool", "tool_call_id": "unknown", "content": "odd"},
    ]
    assert ask(client_of(), messages=messages).status_code == 200
    assert "<|im_start|>tool\nlookseen<|im_end|>" in chat.seen[-1]
    assert "<|im_start|>tool\nodd<|im_end|>" in chat.seen[-1]


def test_tokenize_counts_tools(client):
    body = {"messages": [{"role": "user", "content": "hello"}]}
    without = client.post("/tokenize", json=body).json()["count"]
    with_tools = client.post("/tokenize", json=body | {"tools": TWO}).json()["count"]
    assert with_tools > without
    quiet = {"chat_template_kwargs": {"enable_thinking": False}}
    assert client.post("/tokenize", json=body | quiet).json()["count"] > without
    answered = ask(client, tools=TWO).json()["usage"]["prompt_tokens"]
    assert answered == with_tools


def test_depths():
    assert is_shallow(5)
    value = "x"
    for _ in range(64):
        value = [value]
    assert is_shallow(value)
    assert not is_shallow({"a": value})
