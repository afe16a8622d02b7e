"""Nothing that one client sends makes the event loop stand still: streams and /health go on."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from websockets.sync.client import connect

from edgespec import SamplingParams, protocol
from tests.helpers.loop_watch import LoopWatch
from tests.helpers.serving import Server, introduce

pytest.importorskip("llguidance")

CHAT, TEXT, RESPONSES, MESSAGES = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
)  # fmt: skip
KEYS = tuple("abcdef")


def fields(n, seed):
    """Return a schema of n optional fields."""
    return {"type": "object", "properties": {f"f{seed}_{i}": {"type": "integer"} for i in range(n)}}


def said(n, text="hello"):
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i in range(n | 1)]


def form(n, seed):
    schema = {"name": "x", "schema": fields(n, seed), "strict": True}
    return {"messages": said(1), "response_format": {"type": "json_schema", "json_schema": schema}}


def tools(n, size):
    return [
        {"type": "function", "function": {"name": f"t{i}", "parameters": fields(size, i)}}
        for i in range(n)
    ]


LONG = "word " * 200_000
DEEP = "[" * 5000 + "]" * 5000
ATTACKS = {
    "a form": (CHAT, form(4900, 0)),
    "a hundred tools": (CHAT, {"messages": said(1), "tools": tools(100, 40)}),
    "a long text": (TEXT, {"prompt": LONG}),
    "a long message": (CHAT, {"messages": said(1, LONG)}),
    "a long input": (RESPONSES, {"input": LONG}),
    "many messages": (CHAT, {"messages": said(20_000)}),
    "many messages to count": (MESSAGES + "/count_tokens", {"messages": said(20_000)}),
    "many messages of Anthropic's": (MESSAGES, {"messages": said(20_000), "max_tokens": 2}),
    "many inputs": (RESPONSES, {"input": said(20_000)}),
    "a long text of llama.cpp's clients": ("/completion", {"prompt": LONG}),
    "many token ids": (TEXT, {"prompt": [1] * 400_000}),
    "text to tokenize": ("/tokenize", {"prompt": LONG}),
    "tokens to read": ("/detokenize", {"tokens": [65] * 400_000}),
    "many biases": (TEXT, {"prompt": "a", "logit_bias": {str(i): 1 for i in range(200_000)}}),
    "many stop texts": (TEXT, {"prompt": "a", "stop": [f"s{i}" for i in range(100_000)]}),
    "deep values": (CHAT, DEEP),
    "unknown fields": (CHAT, {f"u{i}": [i] * 10 for i in range(50_000)}),
    "very many unknown fields": (CHAT, {f"u{i}": 1 for i in range(150_000)}),
    "broken at its end": (CHAT, json.dumps({"messages": said(20_000)})[:-1]),
    "many parts": (CHAT, {"messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}] * 40_000}]}),
    "long arguments": (CHAT, {"messages": [*said(1), {"role": "assistant", "tool_calls": [
        {"id": "1", "type": "function", "function": {
            "name": "x", "arguments": json.dumps({"a": [1] * 200_000})}}]}]}),
}  # fmt: skip


def body(given):
    return (
        given if isinstance(given, str) else json.dumps({"model": "toy", "max_tokens": 2} | given)
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_what_a_client_sends_stops_nobody(name, running, engine):
    path, given = ATTACKS[name]
    content = body(given)
    with running(engine, api_keys=KEYS) as server, httpx.Client(base_url=server.url) as client:
        headers = {"x-api-key": "a", "content-type": "application/json"}
        answer = client.post(path, content=content, headers=headers, timeout=60)
        assert answer.status_code in (200, 400, 413, 422), answer.text[:300]
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "n", [1000, pytest.param(2000, marks=pytest.mark.long("five larger forms"))]
)
def test_forms_of_many_clients_stop_nobody(n, running, engine):
    forms = [body(form(n, i)) for i in range(5)]
    with running(engine, api_keys=KEYS) as server, httpx.Client(base_url=server.url) as client:

        def ask(key, content):
            headers = {"x-api-key": key, "content-type": "application/json"}
            return client.post(CHAT, content=content, headers=headers, timeout=60).status_code

        with ThreadPoolExecutor(5) as pool:
            asked = [pool.submit(ask, key, each) for key, each in zip(KEYS, forms, strict=False)]
            while not all(each.done() for each in asked):
                assert ask("f", body({"messages": said(1)})) == 200
                assert client.get("/health").status_code == 200
                time.sleep(0.02)  # the clients take the interpreter's lock as well
            assert [each.result() for each in asked] == [200] * 5


def test_a_devices_form_stops_nobody():
    with Server() as server, connect(
        server.url + "/v1/verify", subprotocols=[protocol.SUBPROTOCOL], compression=None,
    ) as socket:  # fmt: skip
        introduce(socket)
        options = {"schema": json.dumps(fields(1900, 0))}  # as long as a frame takes
        begin = protocol.Begin(1, 0, 0, 3, SamplingParams(), 7, (5, 5, 5), options)
        socket.send(protocol.encode(begin))
        socket.recv(30)


@pytest.mark.parametrize(("block", "stands"), [
    (lambda: time.sleep(0.4), True), (lambda: re.fullmatch("(a?){23}a{23}", "a" * 23), True),
    (lambda: [*range(10)], False),
])  # fmt: skip
def test_the_watch_sees_what_blocks_a_loop(block, stands):
    async def run():
        for _ in range(20):
            await asyncio.sleep(0.01)
        block()
        await asyncio.sleep(0.2)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    with LoopWatch(thread) as watch:
        thread.join()
    assert bool(watch.stood) == stands
    if stands:
        with pytest.raises(AssertionError, match="test_standstill"):
            watch.check()
