"""Streams that wait for the engine or for a long prompt begin at once and are never silent."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest

import edgespec
from edgespec.server import event_stream
from tests.helpers.serving import until
from tests.server.conftest import END, Script

HELLO = {"messages": [{"role": "user", "content": "hello"}]}
BODIES = {
    "/v1/chat/completions": HELLO,
    "/v1/completions": {"prompt": "abc", "max_tokens": 3},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": HELLO | {"max_tokens": 50},
}
OPENINGS = {  # what is sent before the request's turn comes
    "/v1/responses": ["event: response.created", "event: response.in_progress"],
    "/v1/messages": ["event: message_start"],
}
SIGNS = dict.fromkeys(BODIES, ": ping") | {"/v1/messages": 'event: ping\ndata: {"type":"ping"}'}
paths = pytest.mark.parametrize("path", BODIES)


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor(12) as made:
        yield made


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life come quickly."""
    monkeypatch.setattr(event_stream, "MOST_SILENT_S", 0.2)
    monkeypatch.setattr(event_stream, "_LOOK_S", 0.05)


class Read:
    """A stream that a thread reads. blocks: the events and comments so far."""

    def __init__(self, url: str, body: dict[str, Any], **headers: str) -> None:
        self.blocks: list[str] = []
        self.begun = threading.Event()
        self.status = 0
        self.left = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(url, body, headers))
        self._thread.start()

    def _read(self, url: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        json = body | {"stream": True}
        with httpx.stream("POST", url, json=json, headers=headers, timeout=30) as answer:
            self.status = answer.status_code
            self.begun.set()
            text = ""
            for piece in answer.iter_text():
                *blocks, text = (text + piece).split("\n\n")
                self.blocks += blocks
                if self.left.is_set():
                    break

    def end(self) -> list[str]:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.blocks


@contextlib.contextmanager
def occupied(
    server, script: Script, pool, key: str = "none"
) -> Iterator[concurrent.futures.Future]:
    """Let the engine be held by a request. key: the API key of its client."""
    script.hold()
    try:
        first = pool.submit(
            httpx.post, server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 2},
            headers={"Authorization": f"Bearer {key}"}, timeout=60,
        )  # fmt: skip
        until(lambda: server.queue.n_running and script.asked.is_set())
        yield first
    finally:
        script.go.set()


@paths
def test_a_stream_that_waits_begins_at_once_and_shows_signs_of_life(
    running, engine, script, pool, often, path
):
    sign, opening = SIGNS[path], OPENINGS.get(path, [])
    with running(engine) as server:
        with occupied(server, script, pool) as first:
            read = Read(server.url + path, BODIES[path])
            assert read.begun.wait(20)
            until(lambda: read.blocks.count(sign) >= 3)
            assert server.queue.n_waiting == 1
            told = [block for block in read.blocks if block != sign]
            assert [block.partition("\n")[0] for block in told] == opening
        assert first.result(30).status_code == 200
        blocks = [block for block in read.end() if block != sign]
        whole = Read(server.url + path, BODIES[path])
        whole.end()
    assert read.status == 200
    assert [shape(block) for block in blocks] == [shape(block) for block in whole.blocks]


def shape(block: str) -> tuple[str, int]:
    """Return what is the same for two answers to one request: the event and its length, for ids and
    times differ, though not in their lengths.
    """
    event, _, data = block.rpartition("data: ")
    return event, len(data) if "timings" not in data and "usage" not in data else 0


@paths
def test_a_prompt_that_takes_long_to_read_is_no_silence(running, engine, script, often, path):
    with running(engine) as server:
        script.hold()
        read = Read(server.url + path, BODIES[path])
        until(lambda: read.blocks.count(SIGNS[path]) >= 3)
        assert server.queue.n_running == 1
        script.go.set()
        assert any("what can I do" in block or "d" in block for block in read.end())


def test_the_official_clients_do_not_stumble_over_signs(running, engine, script, pool, often):
    with (
        running(engine) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as ours,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as theirs,
    ):

        def chat() -> str:
            chunks = ours.chat.completions.create(model="toy", **HELLO, stream=True)
            return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)

        def respond() -> str:
            with ours.responses.stream(model="toy", input="hello") as stream:
                return stream.get_final_response().output_text

        def message() -> str:
            with theirs.messages.stream(model="toy", max_tokens=50, **HELLO) as stream:
                return stream.get_final_text()

        with occupied(server, script, pool):
            asked = [pool.submit(each) for each in (chat, respond, message)]
            watch = Read(server.url + "/v1/chat/completions", HELLO)
            until(lambda: server.queue.n_waiting == 4 and watch.blocks.count(": ping") >= 3)
        assert [each.result(30) for each in asked] == ["Hi, what can I do?"] * 3
        watch.end()


LONG = "a" * 600
NO_FORM = {"type": "object", "properties": {"a": {"type": "nonsense"}}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/responses", {"input": LONG}),
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": LONG}]}),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"999": 1}}),
        ("/v1/completions", {"prompt": "a", "guided_json": NO_FORM}),
        ("/v1/completions", {"prompt": [999]}),
        ("/v1/chat/completions", HELLO | {"response_format": {
            "type": "json_schema", "json_schema": {"name": "n", "schema": NO_FORM}}}),
        ("/v1/responses", {"input": "a", "text": {"format": {
            "type": "json_schema", "name": "n", "schema": NO_FORM}}}),
        ("/v1/chat/completions", {"messages": []}),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_request_is_a_400_even_while_others_wait(
    running, engine, script, pool, path, body
):
    with running(engine) as server:
        with occupied(server, script, pool):
            refused = httpx.post(server.url + path, json=body | {"stream": True}, timeout=30)
        assert refused.status_code == 400, refused.text
        assert refused.headers["content-type"] == "application/json"


def test_an_error_of_the_template_is_a_400_even_while_others_wait(running, script, pool):
    vocab = [bytes([i]) for i in range(256)] + ["<end>"]
    tokenizer = edgespec.ToyTokenizer(
        vocab, eog=[END], chat_template="{{ raise_exception('roles must alternate') }}"
    )
    model = edgespec.ToyModel(script.next_probs, vocab_size=257, n_ctx=512)
    with (
        edgespec.assemble(model, tokenizer) as engine,
        running(engine) as server,
        occupied(server, script, pool),
    ):
        for path in ("/v1/chat/completions", "/v1/messages"):
            body = BODIES[path] | {"stream": True}
            refused = httpx.post(server.url + path, json=body, timeout=30)
            assert refused.status_code == 400
            assert "roles must alternate" in refused.text


def test_a_stream_that_waits_is_not_displaced_and_others_still_come_in(
    running, engine, script, pool
):
    path = "/v1/chat/completions"
    with running(engine, api_keys=("a", "b"), max_queue=3) as server:
        url = server.url + path
        with occupied(server, script, pool, "a"):
            waiting = [Read(url, HELLO, Authorization="Bearer a") for _ in range(3)]
            until(lambda: server.queue.n_waiting == 3)
            refused = httpx.post(
                url, json=HELLO | {"stream": True}, headers={"Authorization": "Bearer a"}
            )
            assert refused.status_code == 429
            other = Read(url, HELLO, Authorization="Bearer b")
            until(lambda: server.queue.n_waiting == 4)
            assert all(read.begun.wait(20) for read in [*waiting, other])
        for read in [*waiting, other]:
            assert read.end()[-1] == "data: [DONE]"
            assert not any("error" in block for block in read.blocks)


@paths
def test_a_client_that_leaves_while_its_stream_waits_is_forgotten(
    running, engine, script, pool, often, path
):
    with running(engine) as server, occupied(server, script, pool):
        read = Read(server.url + path, BODIES[path])
        assert read.begun.wait(20)
        until(lambda: server.queue.n_waiting == 1)
        read.left.set()  # at the next sign of life
        until(lambda: server.queue.n_waiting == 0)
        read.end()


@paths
def test_a_stream_that_waits_when_the_server_ends_is_told(running, engine, script, pool, path):
    with running(engine, grace_s=20) as server:
        with occupied(server, script, pool) as first:
            read = Read(server.url + path, BODIES[path])
            assert read.begun.wait(20)
            server.stop()
            assert "shutting down" in read.end()[-1]
        assert first.result(30).status_code == 200
