"""What other servers and older clients write is text, reasoning or a call, and jams no session."""

import json

import pytest
from starlette.testclient import TestClient

from edgespec.chat.pictures import LEFT_OUT
from edgespec.server.apis.chat_completions.foreign import regular
from tests.helpers.chat_templates import source_of
from tests.helpers.scripted_chats import ScriptedChat

pytest.importorskip("llguidance")

USER = {"role": "user", "content": "Weather?"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
MCP = {"type": "image", "mimeType": "image/png", "data": "AA=="}


def text(said):
    return {"type": "text", "text": said}


def call(call_id="a", arguments="{}"):
    function = {"name": "look", "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def answer(content=None, **more):
    return {"role": "assistant", "content": content, **more}


def result(content, **more):
    return {"role": "tool", "content": content, **more}


CASES = {
    "a call of the old API": (
        [answer(function_call={"name": "look", "arguments": "{}"}),
         {"role": "function", "name": "look", "content": "Rain."}],
        [answer(tool_calls=[call("look")]),
         result("Rain.", name="look", tool_call_id="look")],
    ),
    "arguments that are an object": (
        [answer(tool_calls=[call(arguments={"x": "é"})])],
        [answer(tool_calls=[call(arguments='{"x": "é"}')])],
    ),
    "a custom call": (
        [answer("So:", tool_calls=[{"id": "b", "type": "custom", "custom": {"name": "sh",
         "input": "ls"}}, call()])],
        [answer([text("So:"), text("\n\nls")], tool_calls=[call()])],
    ),
    "thinking as Mistral writes it": (
        [answer([{"type": "thinking", "thinking": [text("Hm.")]}, text("Yes.")])],
        [answer([text("Yes.")], reasoning_content="Hm.")],
    ),
    "reasoning in parts": (
        [answer([{"type": "reasoning", "text": "Hm."}, {"type": "redacted_thinking", "data": "x"},
         {"type": "output_text", "text": "Yes."}])],
        [answer([text("Yes.")], reasoning_content="Hm.")],
    ),
    "parts of Anthropic's API": (
        [answer([{"type": "tool_use", "id": "a", "name": "look", "input": "north"}])],
        [answer([text("north")])],
    ),
    "texts in other forms": (
        [{"role": "user", "content": ["Hi", {"text": "you"}, {"type": "input_text", "text": "!"},
         {"type": "text", "text": None}]}],
        [{"role": "user", "content": [text("Hi"), text("you"), text("!"), text("")]}],
    ),
    "an answer with a voice": ([answer("Yes.", audio={"id": "x"})], [answer("Yes.")]),
    "results without ids": (
        [answer(tool_calls=[call("a"), call("b")]), result("1"), result("2", tool_call_id=None),
         result("3")],
        [answer(tool_calls=[call("a"), call("b")]), result("1", tool_call_id="a"),
         result("2", tool_call_id="b"), result("3", tool_call_id="")],
    ),
    "a result that is an object": (
        [result({"x": ["é"]}, tool_call_id="a")],
        [result('{"x": ["é"]}', tool_call_id="a")],
    ),
    "an image in a result": (
        [result([text("Here:"), IMAGE], tool_call_id="a")],
        [result([text("Here:"), IMAGE], tool_call_id="a")],
    ),
    "images in other forms": (
        [result([{"type": "input_image", "image_url": "data:x"}, PICTURE, MCP, {"type": "image"},
         {"type": "file", "file": {}}], tool_call_id="a")],
        [result([{"type": "image_url", "image_url": {"url": "data:x"}}, IMAGE, IMAGE,
         text(LEFT_OUT), text(LEFT_OUT)], tool_call_id="a")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_messages_become_regular(name):
    given, expected = CASES[name]
    body = {"messages": given, "seed": 1}
    before = json.dumps(body)
    assert regular(body) == {"messages": expected, "seed": 1}
    assert json.dumps(body) == before


@pytest.mark.parametrize("body", [{}, {"messages": 1}, {"messages": [1, {}, {"role": 2}]}])
def test_what_is_not_known_stays_as_it_is(body):
    assert regular(body) == body


@pytest.fixture
def engine():
    with ScriptedChat({}).engine(source_of("Qwen-Qwen3-0.6B")) as made:
        yield made


@pytest.mark.parametrize("name", CASES)
def test_they_are_answered_and_so_is_the_next_turn(client: TestClient, name):
    given, _ = CASES[name]
    messages = [USER, *given, USER]
    for _ in range(2):
        response = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4})
        assert response.status_code == 200, response.text
        messages += [response.json()["choices"][0]["message"], USER]


def test_a_model_that_reads_text_alone_refuses_images_of_the_user(client: TestClient):
    messages = [{"role": "user", "content": [text("See:"), IMAGE]}]
    response = client.post("/v1/chat/completions", json={"messages": messages})
    assert response.status_code == 400
    assert "messages[0]: pictures cannot be shown" in response.text


PDF = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": ""},
}
PLAIN = {
    "type": "document",
    "source": {"type": "text", "media_type": "text/plain", "data": "Rain."},
}


@pytest.mark.parametrize(("content", "said"), [
    ([text("See:"), PICTURE], f"See:\n\n{LEFT_OUT}"), ([PDF], LEFT_OUT), ([PLAIN], "Rain."),
    ({"x": 1}, '{"x": 1}'), (PICTURE, LEFT_OUT),
    ([{"type": "image", "source": {}}, text("x")], f"{LEFT_OUT}\n\nx"),
])  # fmt: skip
def test_results_in_messages(client: TestClient, content, said):
    use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    done = {"type": "tool_result", "tool_use_id": "a", "content": content}
    assert told(client, "/v1/messages/count_tokens", use, done) == told(
        client, "/v1/messages/count_tokens", use, done | {"content": said}
    )


def told(client, path, use, done):
    messages = [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [done]}]
    response = client.post(path, json={"messages": messages})
    assert response.status_code == 200, response.text
    return response.json()["input_tokens"]


@pytest.mark.parametrize("given", [None, "", "{}"])
def test_calls_without_input(client: TestClient, given):
    use = {"type": "tool_use", "id": "a", "name": "look", "input": given}
    done = {"type": "tool_result", "tool_use_id": "a", "content": "x"}
    none = told(client, "/v1/messages/count_tokens", use | {"input": {}}, done)
    assert told(client, "/v1/messages/count_tokens", use, done) == none


@pytest.mark.parametrize("output", [
    [{"type": "input_image", "image_url": "data:"}], [{"type": "input_file", "file_id": "x"}],
    {"x": 1}, "",
])  # fmt: skip
def test_outputs_in_responses(client: TestClient, output):
    items = [
        USER, {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": output},
        {"type": "ghost_snapshot", "ghost_commit": {}}, {"type": "compaction_summary"}, USER,
    ]  # fmt: skip
    response = client.post("/v1/responses", json={"input": items, "max_output_tokens": 16})
    assert response.status_code == 200, response.text
