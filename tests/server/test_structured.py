"""Forms of answers over HTTP: what may be asked for, and what comes back."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient

from edgespec import ToyTokenizer
from edgespec.server.app import create_app
from edgespec.server.settings import ServerSettings
from tests.helpers.scripted_chats import TURN, ScriptedChat, rambling

pytest.importorskip("llguidance")

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
LETTERS = [chr(i) for i in range(32, 127)]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def engine():
    """Return a model that says anything."""
    tokenizer = ToyTokenizer([*LETTERS, "</s>"], eog=[len(LETTERS)], chat_template=TEMPLATE)
    with rambling(tokenizer, n_ctx=512) as made:
        yield made


def content(response):
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("form", [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": TURN}}},
    {"json_schema": TURN},
    {"structured_outputs": {"json": TURN}},
    {"structured_outputs": {"json": json.dumps(TURN)}},
])  # fmt: skip
@pytest.mark.parametrize("temperature", [0, 1])
def test_answers_follow_a_schema(client, form, temperature):
    found = json.loads(
        content(client.post(CHAT, json={"messages": MESSAGES, "temperature": temperature} | form))
    )
    assert set(found) == {"go", "to"}
    assert isinstance(found["go"], bool)
    assert found["to"] in ("left", "right")


NOTED = TURN | {"properties": TURN["properties"] | {"at": {"type": "array", "items": False,
                                                          "uniqueItems": True}}}  # fmt: skip
FORMS = {
    CHAT: {"messages": MESSAGES, "json_schema": NOTED, "max_tokens": 400},
    "/v1/responses": {"input": "hello", "text": {"format": {"type": "json_schema", "name": "a",
                      "schema": NOTED, "strict": True}}},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 400,
                     "output_config": {"format": {"type": "json_schema", "schema": NOTED}}},
    TEXT: {"prompt": "hello", "json_schema": NOTED, "max_tokens": 400},
}  # fmt: skip


@pytest.mark.parametrize("path", FORMS)
def test_what_is_not_enforced_is_said_in_a_note(client, path):
    expected = {"notes": ["uniqueItems is not enforced (at /properties/at)"]}
    whole = client.post(path, json=FORMS[path])
    assert whole.status_code == 200, whole.text
    assert expected.items() <= whole.json()["edgespec"].items()
    streamed = client.post(path, json=FORMS[path] | {"stream": True}).text
    assert expected["notes"][0] in streamed
    plain = {key: value for key, value in FORMS[path].items() if key in ("prompt", "messages")}
    if path == CHAT:
        assert "notes" not in client.post(CHAT, json=plain | {"max_tokens": 2}).json()["edgespec"]


def test_notes_are_no_text(client):
    chunks = client.post(TEXT, json=FORMS[TEXT] | {"stream": True}).text.split("\n\n")
    told = [json.loads(chunk.removeprefix("data: ")) for chunk in chunks if chunk[6:7] == "{"]
    text = "".join(choice["text"] for each in told for choice in each["choices"])
    assert text == client.post(TEXT, json=FORMS[TEXT]).json()["choices"][0]["text"]


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_a_schema_beside_the_type(client, kind):
    """As in llama.cpp's API."""
    form = {"response_format": {"type": kind, "schema": TURN}, "messages": MESSAGES}
    assert set(json.loads(content(client.post(CHAT, json=form)))) == {"go", "to"}


def test_a_json_object(client):
    body = {"messages": MESSAGES, "response_format": {"type": "json_object"}, "max_tokens": 400}
    response = client.post(CHAT, json=body).json()["choices"][0]
    text = response["message"]["content"]
    assert text.startswith("{")
    if response["finish_reason"] == "stop":
        assert isinstance(json.loads(text), dict)


def test_other_forms_and_completions(client):
    body = {"prompt": "hello", "structured_outputs": {"choice": ["yes", "no"]}}
    assert client.post(TEXT, json=body).json()["choices"][0]["text"] in ("yes", "no")
    body = {"prompt": "hello", "grammar": 'root ::= "yes" | "no"'}
    assert client.post(TEXT, json=body).json()["choices"][0]["text"] in ("yes", "no")
    body = {"prompt": "hello", "structured_outputs": {"regex": "[ab]{3}"}}
    assert set(client.post(TEXT, json=body).json()["choices"][0]["text"]) <= {"a", "b"}


def test_a_cut_answer_says_length(client):
    body = {"messages": MESSAGES, "json_schema": TURN, "max_tokens": 3}
    assert client.post(CHAT, json=body).json()["choices"][0]["finish_reason"] == "length"


def test_a_stream_says_the_same(client):
    body = {"messages": MESSAGES, "json_schema": TURN}
    whole = content(client.post(CHAT, json=body))
    with client.stream("POST", CHAT, json=body | {"stream": True}) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: {")]
    deltas = [json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines]
    assert "".join(deltas) == whole


def test_stop_tokens_do_not_go_with_a_form(client):
    body = {"messages": MESSAGES, "json_schema": TURN, "stop_token_ids": [1], "stream": True}
    assert "leave stop_token_ids out" in client.post(CHAT, json=body).json()["error"]["message"]


def test_the_official_client_parses_answers(client):
    openai = pytest.importorskip("openai")
    pydantic = pytest.importorskip("pydantic")

    class Move(pydantic.BaseModel):
        go: bool
        to: str = pydantic.Field(pattern="^(left|right)$")

    official = openai.OpenAI(base_url="http://localhost/v1", api_key="none", http_client=client)
    found = official.chat.completions.parse(
        model="toy", messages=MESSAGES, response_format=Move, max_tokens=200
    )
    assert isinstance(found.choices[0].message.parsed, Move)


SAID = {"type": "object", "properties": {"END": {"type": "string"}}, "required": ["END"]}
STOPPED = {
    CHAT: {"messages": MESSAGES, "json_schema": SAID, "stop": "END"},
    "/v1/messages": {"messages": MESSAGES, "stop_sequences": ["END"], "max_tokens": 99,
                     "output_config": {"format": {"type": "json_schema", "schema": SAID}}},
}  # fmt: skip


@pytest.mark.parametrize("path", STOPPED)
@pytest.mark.parametrize("by_default", [False, True])
def test_a_stop_string_in_a_form(path, by_default):
    """The name END does not end the answer; neither do other defaults of the server."""
    body, settings = STOPPED[path], {}
    if by_default:
        body = {key: value for key, value in body.items() if not key.startswith("stop")}
        settings = {"stop": ("END",), "ignore_eos": True, "stop_token_ids": (34,)}
    with ScriptedChat({"hello": '{"END":"one END two"}'}).engine() as engine:
        app = create_app(engine, ServerSettings(model="toy", sampling=settings))
        with TestClient(app, base_url="http://localhost", client=("127.0.0.1", 1)) as client:
            answer = client.post(path, json=body).json()
    if path == CHAT:
        (choice,) = answer["choices"]
        ended = (choice["finish_reason"], choice["stop_reason"])
        assert (choice["message"]["content"], *ended) == ('{"END":"one ', "stop", "END")
    else:
        ended = (answer["stop_reason"], answer["stop_sequence"])
        assert (answer["content"][0]["text"], *ended) == ('{"END":"one ', "stop_sequence", "END")
