"""Forms of answers over HTTP: what may be asked for, and what comes back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edgespec import ToyModel, ToyTokenizer
from edgespec.loading.assembly import assemble

pytest.importorskip("llguidance")

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"go": {"type": "boolean"}, "to": {"enum": ["left", "right"]}},
    "required": ["go", "to"],
    "additionalProperties": False,
}
LETTERS = [chr(i) for i in range(32, 127)]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture
def engine():
    """Return a model that says anything."""
    tokenizer = ToyTokenizer([*LETTERS, "</s>"], eog=[len(LETTERS)], chat_template=TEMPLATE)
    n = tokenizer.vocab_size

    def probs(tokens):
        rng = np.random.default_rng([len(tokens), *tokens[-2:]])
        return rng.dirichlet(np.full(n, 0.5))

    target = ToyModel(probs, vocab_size=n, n_ctx=512)
    with assemble(target, tokenizer, None, {"method": "suffix,forced"}) as made:
        yield made


def content(response):
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("form", [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    {"json_schema": SCHEMA},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"json": json.dumps(SCHEMA)}},
])  # fmt: skip
@pytest.mark.parametrize("temperature", [0, 1])
def test_answers_follow_a_schema(client, form, temperature):
    found = json.loads(
        content(client.post(CHAT, json={"messages": MESSAGES, "temperature": temperature} | form))
    )
    assert set(found) == {"go", "to"}
    assert isinstance(found["go"], bool)
    assert found["to"] in ("left", "right")


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
    body = {"messages": MESSAGES, "json_schema": SCHEMA, "max_tokens": 3}
    assert client.post(CHAT, json=body).json()["choices"][0]["finish_reason"] == "length"


def test_a_stream_says_the_same(client):
    body = {"messages": MESSAGES, "json_schema": SCHEMA}
    whole = content(client.post(CHAT, json=body))
    with client.stream("POST", CHAT, json=body | {"stream": True}) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: {")]
    deltas = [json.loads(line)["choices"][0]["delta"].get("content") or "" for line in lines]
    assert "".join(deltas) == whole


def test_what_cannot_be_followed_names_the_parameter(client):
    response = client.post(CHAT, json={"messages": MESSAGES, "json_schema": {"type": "strange"}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "json_schema"
    body = {"messages": MESSAGES, "json_schema": SCHEMA, "stop": ["a"], "stream": True}
    assert "leave stop out" in client.post(CHAT, json=body).json()["error"]["message"]


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
