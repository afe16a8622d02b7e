"""Histories through all three APIs, and through Python's `Chat`, with published chat templates."""

from __future__ import annotations

import pytest

from tests.helpers.chat_templates import source_of
from tests.helpers.scripted_chats import TEMPLATE, ScriptedChat

pytest.importorskip("llguidance")

MINISTRAL = "mistralai-Ministral-3-14B-Reasoning-2512"
CUT = '{"city": "Ro'
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}
CALL = {"id": "toolu_01A09q90qw90lq917835", "name": "weather"}
CHAT_MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": None},
    {"role": "user", "content": []},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": CALL["id"], "type": "function",
         "function": {"name": CALL["name"], "arguments": CUT}}]},
    {"role": "tool", "tool_call_id": CALL["id"], "content": "20"},
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "And now?"},
]  # fmt: skip
BODIES = {
    "/v1/chat/completions": {"messages": CHAT_MESSAGES, "tools": [
        {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]},
    "/v1/messages": {
        "max_tokens": 50,
        "system": "Be kind.",
        "messages": [
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": []},
            {"role": "user", "content": None},
            {"role": "assistant", "content": "No."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": [
                {"type": "tool_use", **CALL, "input": {"city": "Ro"}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": CALL["id"], "content": "20"}]},
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "And now?"},
        ],
        "tools": [{"name": "weather", "input_schema": WEATHER}],
    },
    "/v1/responses": {
        "instructions": "Be kind.",
        "input": [
            {"role": "user", "content": "Hello."},
            {"role": "assistant", "content": ""},
            {"role": "user", "content": []},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"role": "user", "content": "Weather?"},
            {"type": "function_call", "call_id": CALL["id"], "name": "weather", "arguments": CUT},
            {"type": "function_call_output", "call_id": CALL["id"], "output": "20"},
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "And now?"},
        ],
        "tools": [{"type": "function", "name": "weather", "parameters": WEATHER}],
    },
}  # fmt: skip
PICKY = TEMPLATE.replace(
    "<|im_start|>{{ message.role }}",
    "{% if 'crown' in message.content %}{{ raise_exception('No crowns!') }}{% endif %}"
    "<|im_start|>{{ message.role }}",
)


@pytest.fixture
def chat():
    return ScriptedChat({})


@pytest.fixture
def engine(chat, template):
    with chat.engine(template) as made:
        yield made


@pytest.mark.parametrize("template", [source_of("Qwen3.5-4B")], ids=["Qwen3.5"])
def test_all_apis_give_the_template_the_same_messages(client, chat, engine):
    prompts = []
    for path, body in BODIES.items():
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        prompts.append(chat.seen[-1])
    assert prompts[0] == prompts[1] == prompts[2]
    assert "Be brief.\n\nAnd now?" in prompts[0]
    assert "Ro" in prompts[0]


@pytest.mark.parametrize("template", [source_of(MINISTRAL)], ids=["Ministral 3"])
def test_an_answer_without_text_does_not_end_a_conversation_in_python(engine):
    chat = engine.chat("Be kind.", tools=[])
    chat.load_dict({"messages": [
        {"role": "user", "content": "Hello."}, {"role": "assistant", "content": ""}]})  # fmt: skip
    chat.send("And now?")
    assert len(chat.messages) == 4


@pytest.mark.parametrize("template", [PICKY], ids=["picky"])
@pytest.mark.parametrize(
    ("path", "field", "place"),
    [
        ("/v1/chat/completions", "messages", "messages[5]"),
        ("/v1/messages", "messages", "messages[4]"),
        ("/v1/responses", "input", "input[4]"),
    ],
)
def test_an_error_of_the_template_names_the_message(client, path, field, place):
    body = BODIES[path]
    crowned = [
        each | {"content": "A crown?"} if each.get("content") == "Weather?" else each
        for each in body[field]
    ]
    answer = client.post(path, json=body | {field: crowned})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert f"refused {place}, of the role 'user': No crowns!" in error["message"]
    assert error.get("param", place) == place
