"""Calls over HTTP in the forms of published templates, by a model that says anything."""

from __future__ import annotations

import json

import pytest

from tests.helpers.formats import TEMPLATES, FormTokenizer
from tests.helpers.scripted_chats import TOOLS, accumulated, rambling
from tests.helpers.selection import first

pytest.importorskip("llguidance")

CHAT = "/v1/chat/completions"
BODY = {
    "messages": [{"role": "user", "content": "go"}], "tools": TOOLS, "tool_choice": "required",
    "parallel_tool_calls": False, "temperature": 1, "thinking_token_budget": 3, "max_tokens": 600,
}  # fmt: skip


@pytest.fixture(scope="module", params=TEMPLATES)
def engine(request):
    with rambling(FormTokenizer(TEMPLATES[request.param])) as made:
        yield made


@pytest.mark.parametrize("seed", first(1, range(2), "more seeds"))
def test_calls_parse_and_streams_say_the_same(client, events, seed):
    named = {"type": "function", "function": {"name": "turn"}}
    for body in (BODY | {"seed": seed}, BODY | {"seed": seed, "tool_choice": named}):
        response = client.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        choice = response.json()["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        [call] = choice["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "turn":
            assert set(arguments) == {"to", "go"}
        else:
            assert call["function"]["name"] == "halt"
        streamed = events(client.post(CHAT, json=body | {"stream": True}).text)[:-1]
        message, reasons = accumulated(streamed)
        assert reasons == ["tool_calls"]
        message["tool_calls"][0]["id"] = call["id"]
        assert message | {"refusal": None} == choice["message"]
        again = [*BODY["messages"], choice["message"]]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "done"}
        sent = client.post(CHAT, json=body | {"messages": [*again, result], "max_tokens": 1})
        assert sent.status_code == 200, sent.text


def test_a_tool_that_is_not_strict_may_have_what_cannot_be_followed(client):
    """Clients describe arguments with what only validators can do, look-ahead for example."""
    parameters = {
        "type": "object",
        "properties": {
            "mail": {"type": "string", "pattern": "^(?!a)b"},
            "n": {"type": "integer", "enum": None},
            "any": {"type": "any"},
        },
        "required": ["mail", "n", "any"],
    }
    function = {"name": "send", "parameters": parameters}
    body = BODY | {"tools": [{"type": "function", "function": function}], "seed": 1}
    response = client.post(CHAT, json=body)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    if choice["finish_reason"] == "tool_calls":
        [call] = choice["message"]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        assert arguments.keys() >= {"mail", "n", "any"}
    function["strict"] = True
    assert client.post(CHAT, json=body).status_code == 400
