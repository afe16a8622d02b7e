"""Requests whose last message is the assistant's: the answer continues it."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.helpers.scripted_chats import TOOLS, ScriptedChat

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def begun(text, **more):
    asked = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": text}]
    return {"messages": asked, "max_tokens": 40} | more


def text_of(answer):
    body = answer.json()
    if "content" in body:
        return "".join(block["text"] for block in body["content"])
    return body["choices"][0]["message"]["content"]


def test_the_answer_has_only_what_is_added(client):
    for path in (CHAT, MESSAGES):
        assert text_of(client.post(path, json=begun("Hi, what"))) == " can I do?"
        assert text_of(client.post(path, json=begun("Hi, what can "))) == "I do?"
    block = [{"type": "text", "text": "Hi,"}]
    assert text_of(client.post(MESSAGES, json=begun(block))) == " what can I do?"
    assert text_of(client.post(CHAT, json=begun(block))) == " what can I do?"


def test_the_stream_too(client, events):
    chunks = events(client.post(CHAT, json=begun("Hi, what", stream=True)).text)[:-1]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == " can I do?"
    lines = client.post(MESSAGES, json=begun("Hi, what", stream=True)).text.splitlines()
    told = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    texts = [each["delta"]["text"] for each in told if each["type"] == "content_block_delta"]
    assert "".join(texts) == " can I do?"


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_an_empty_message_is_an_answer_that_has_not_begun(client, path):
    assert text_of(client.post(path, json=begun(""))) == "Hi, what can I do?"


def test_it_can_be_asked_for_or_not(client):
    asked = begun("Hi, what", continue_final_message=True, add_generation_prompt=False)
    assert text_of(client.post(CHAT, json=asked)) == " can I do?"
    whole = begun("Hi, what", continue_final_message=False)
    assert text_of(client.post(CHAT, json=whole)) != " can I do?"
    refused = client.post(
        CHAT,
        json={"messages": [{"role": "user", "content": "a"}], "continue_final_message": True},
    )
    assert refused.status_code == 400
    assert "it is not the assistant's" in refused.json()["error"]["message"]


def test_a_form_makes_it_a_message_of_its_own(client):
    form = {"structured_outputs": {"choice": ["yes", "no"]}}
    assert text_of(client.post(CHAT, json=begun("Hi", **form))) in ("yes", "no")
    refused = client.post(CHAT, json=begun("Hi", continue_final_message=True, **form))
    assert "the answer has a form" in refused.json()["error"]["message"]
    config = {"format": {"type": "json_schema", "schema": {"enum": ["yes"]}}}
    refused = client.post(MESSAGES, json=begun("Hi", output_config=config))
    assert refused.status_code == 400
    assert "the answer has a form" in refused.json()["error"]["message"]


def test_calls_that_wait_for_results_are_not_continued(client):
    use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    refused = client.post(MESSAGES, json=begun([use]))
    assert refused.status_code == 400
    assert "results of these calls" in refused.json()["error"]["message"]


def test_the_responses_api_answers_with_a_message_of_its_own(client):
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Hi, what"}]
    answer = client.post(RESPONSES, json={"input": said}).json()
    assert answer["output"][0]["content"][0]["text"] != " can I do?"


def test_tokens_are_counted_up_to_its_end(client):
    whole = client.post(MESSAGES, json=begun("Hi, what")).json()["usage"]
    body = {"messages": begun("Hi, what")["messages"]}
    counted = client.post("/v1/messages/count_tokens", json=body)
    assert counted.json()["input_tokens"] == whole["input_tokens"]
    tokens = client.post("/tokenize", json=body).json()["tokens"]
    assert bytes(tokens).endswith(b"assistant\nHi, what")
    body["continue_final_message"] = False
    tokens = client.post("/tokenize", json=body).json()["tokens"]
    assert bytes(tokens).endswith(b"Hi, what<|im_end|>\n<|im_start|>assistant\n")


def test_reasoning_and_calls_after_it_are_read(running):
    call = '<tool_call>\n{"name": "turn", "arguments": {"to": "left", "go": true}}\n</tool_call>'
    chat = ScriptedChat({"hello": f"I turn.\n{call}"})
    with chat.engine() as engine, running(engine) as server:
        asked = begun("I tu", tools=TOOLS, max_tokens=400)
        message = httpx.post(server.url + CHAT, json=asked).json()["choices"][0]["message"]
    assert message["content"] == "rn."
    (made,) = message["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"to": "left", "go": True}
