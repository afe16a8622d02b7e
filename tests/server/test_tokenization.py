"""Texts and token ids over HTTP: what a device without a tokenizer lives on."""

from __future__ import annotations

import concurrent.futures
import threading
import time

import httpx
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


class Slow:
    """Stands for a text that takes for ever: a token a piece, until `stop`."""

    def __init__(self):
        self.begun, self.ended, self.stop = threading.Event(), threading.Event(), threading.Event()
        self.n = 0

    def __call__(self, text, **options):
        self.begun.set()
        try:
            while not self.stop.wait(0.001):
                self.n += 1
                yield []
        finally:
            self.ended.set()


@pytest.fixture
def slow(engine, monkeypatch):
    made = Slow()
    monkeypatch.setattr(engine.tokenizer, "encode_pieces", made)
    yield made
    made.stop.set()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_cannot_fit_by_its_bytes_is_not_tokenized(client, slow, say, path):
    body = say("a" * 4000) if "chat" in path else {"prompt": "a" * 4000}
    error = client.post(path, json=body).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "bytes, which are at least" in error["message"]
    assert not slow.begun.is_set()


def test_a_prompt_is_not_tokenized_further_than_it_can_fit(client, slow, engine, monkeypatch):
    monkeypatch.setattr(engine.tokenizer, "encode_pieces", lambda text: ([7] * 300 for _ in text))
    error = client.post("/v1/completions", json={"prompt": "abcd"}).json()["error"]
    assert error["message"].startswith("prompt is too long: 600 tokens > 512 maximum")


def test_tokenizing_ends_with_its_client(running, engine, slow):
    with running(engine) as server:
        for path in ("/tokenize", "/v1/completions"):
            slow.begun.clear()
            slow.ended.clear()
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(server.url + path, json={"prompt": "a"}, timeout=0.5)
            assert slow.begun.is_set()
            assert slow.ended.wait(20)


def test_tokenizing_ends_with_the_server(running, engine, slow):
    """It does not wait for the time that answers are given."""
    with running(engine, grace_s=3600) as server, concurrent.futures.ThreadPoolExecutor() as pool:
        body = {"prompt": "a"}
        asked = pool.submit(httpx.post, server.url + "/tokenize", json=body, timeout=30)
        assert slow.begun.wait(20)
        server.stop()
        assert asked.result(30).status_code == 503
        assert slow.ended.is_set()


def test_requests_wait_to_be_tokenized(running, engine, slow):
    def ask():
        return httpx.post(server.url + "/tokenize", json={"prompt": "a"}, timeout=30)

    with (
        running(engine, max_queue=1) as server,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        first = pool.submit(ask)
        assert slow.begun.wait(20)
        second = pool.submit(ask)
        while "num_requests_waiting 2.0" not in httpx.get(server.url + "/metrics").text:
            time.sleep(0.01)
        assert ask().status_code == 429
        slow.stop.set()
        assert {first.result(30).status_code, second.result(30).status_code} == {200}


class Controlled(ToyTokenizer):
    """Bytes, and a control token that is read only where it is asked for."""

    def encode(self, text, *, add_special=True, parse_special=True):
        first, *rest = text.encode().split(b"<end>") if parse_special else [text.encode()]
        return [*first, *(token for part in rest for token in (256, *part))]

    def encode_pieces(self, text, **options):
        yield self.encode(text, **options)

    def has_control(self, text):
        return "<end>" in text

    def control_texts(self):
        return ["<end>"]


def test_control_tokens_in_messages_are_text(client_of, engine):
    vocab = [bytes([i]) for i in range(256)] + ["<end>"]
    engine.tokenizer = Controlled(
        vocab, [256], "{% for m in messages %}{{ m.content | trim }}<end>{% endfor %}"
    )
    client = client_of()
    said = [{"role": "user", "content": " say <end> "}]
    assert tokens_of(client, messages=said) == [*b"say <end>", 256]
    assert tokens_of(client, messages=said, parse_special=True) == [*b"say ", 256, 256]
    assert tokens_of(client, prompt="a<end>") == [*b"a", 256]
    assert tokens_of(client, prompt="a<end>", parse_special=False) == [*b"a<end>"]
    answers = [
        client.post("/v1/chat/completions", json={"messages": said, "parse_special": parse})
        for parse in (False, True)
    ]
    used = [answer.json()["usage"]["prompt_tokens"] for answer in answers]
    assert used == [10, 6]
