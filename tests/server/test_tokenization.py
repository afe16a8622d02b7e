"""Texts and token ids over HTTP: what a device without a tokenizer lives on."""

from __future__ import annotations

import pytest

from edgespec import ToyTokenizer, protocol

CHAT = [{"role": "user", "content": "hello"}]


def tokens_of(client, **body):
    response = client.post("/tokenize", json=body)
    assert response.status_code == 200, response.text
    found = response.json()
    assert found["count"] == len(found["tokens"])
    return found["tokens"]


def text_of(client, tokens):
    return client.post("/detokenize", json={"tokens": tokens}).json()["prompt"]


def test_a_text_there_and_back(client):
    tokens = tokens_of(client, prompt="Grüße", model="toy")
    assert bytes(tokens).decode() == "Grüße"
    assert text_of(client, tokens) == "Grüße"
    assert text_of(client, tokens[:3]) == "Gr\N{REPLACEMENT CHARACTER}"
    assert (tokens_of(client, prompt=""), text_of(client, [])) == ([], "")


def test_a_conversation_is_what_chats_are_given(client):
    tokens = tokens_of(client, messages=CHAT)
    assert text_of(client, tokens).endswith("<|im_start|>assistant\n")
    completed = client.post("/v1/completions", json={"prompt": tokens, "max_tokens": 40}).json()
    chat = client.post("/v1/chat/completions", json={"messages": CHAT}).json()
    assert completed["choices"][0]["text"] == chat["choices"][0]["message"]["content"]
    closed = tokens_of(client, messages=CHAT, add_generation_prompt=False)
    assert closed == tokens[: len(closed)]
    assert text_of(client, closed).endswith("<|im_end|>\n")


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({}, 400, "'prompt' or 'messages' is missing"),
        ({"prompt": "a", "messages": CHAT}, 400, "not both"),
        ({"prompt": 7}, 400, "must be text"),
        ({"text": "a"}, 400, "unknown parameter 'text'"),
        ({"prompt": "a", "model": "other"}, 404, "is not served here"),
    ],
)
def test_what_cannot_be_tokenized(client, body, status, says):
    response = client.post("/tokenize", json=body)
    assert response.status_code == status
    assert says in response.json()["error"]["message"]


def test_ids_that_are_not_in_the_vocabulary(client):
    response = client.post("/detokenize", json={"tokens": [257]})
    assert response.status_code == 400
    assert "257 is not in the vocabulary" in response.json()["error"]["message"]


def test_the_vocabulary(client):
    response = client.get("/v1/vocabulary")
    reader = protocol.Reader(response.content)
    assert (reader.raw(1), reader.varint()) == (b"\x01", 257)
    digest = reader.raw(16)
    tokenizer = ToyTokenizer([*(bytes([i]) for i in range(256)), "<end>"])
    assert digest == protocol.vocabulary_hash(tokenizer, 257)
    assert [reader.varint() for _ in range(reader.varint())] == [256]
    pieces = [reader.raw(reader.varint()) for _ in range(257)]
    assert pieces == [*(bytes([i]) for i in range(256)), b""]
    assert not reader.left
    tag = response.headers["etag"]
    assert tag == f'"{digest.hex()}"'
    again = client.get("/v1/vocabulary", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/v1/vocabulary", headers={"If-None-Match": '"x"'}).status_code == 200


def test_tokenization_stands_behind_the_keys(client_of):
    client = client_of(api_keys=("key",))
    assert client.get("/v1/vocabulary").status_code == 401
    assert client.post("/tokenize", json={"prompt": "a"}).status_code == 401
