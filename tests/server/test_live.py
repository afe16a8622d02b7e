"""The server behind a port: parallel requests, clients that leave, the end; toy model."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import re
import socket
import ssl
import threading

import httpx
import pytest

from edgespec import Event, ToyTokenizer
from edgespec.config import RemoteConfig
from edgespec.decoding.interrupt import Interrupt
from edgespec.server.apis.completions import TextWriter
from edgespec.server.apis.openai_writer import Envelope
from edgespec.server.event_stream import EventStream
from edgespec.verifiers.remote import failures
from tests.helpers.serving import until

CHAT = "/v1/chat/completions"


@pytest.fixture
def pool():
    with concurrent.futures.ThreadPoolExecutor(12) as made:
        yield made


def post(server, body: dict) -> httpx.Response:
    return httpx.post(server.url + CHAT, json=body, timeout=30)


def content(response: httpx.Response) -> str:
    return response.json()["choices"][0]["message"]["content"]


def test_eight_at_once_are_answered_in_the_order_they_came(running, engine, script, say, pool):
    def ask(i: int) -> str:
        return content(post(server, say(f"question {i}")))

    with running(engine) as server:
        script.hold()
        asked = []
        for i in range(8):
            asked.append(pool.submit(ask, i))
            until(lambda n=i: server.queue.n_running and server.queue.n_waiting == n)
        assert httpx.get(server.url + "/health").json() == {"status": "ok"}
        script.go.set()
        answers = [future.result(30) for future in asked]
    assert answers == [f"|question {i}" for i in range(8)]
    assert script.heard == [f"question {i}" for i in range(8)]


def test_clients_with_keys_of_their_own_take_turns(running, engine, script, say, pool):
    def ask(text: str) -> None:
        headers = {"Authorization": f"Bearer {text[0]}"}
        httpx.post(server.url + CHAT, json=say(text), headers=headers, timeout=30)

    with running(engine, api_keys=("a", "b")) as server:
        script.hold()
        asked = []
        for i, text in enumerate(("a1", "a2", "a3", "b1")):
            asked.append(pool.submit(ask, text))
            until(lambda n=i: server.queue.n_running and server.queue.n_waiting == n)
        script.go.set()
        for future in asked:
            future.result(30)
    assert script.heard == ["a1", "b1", "a2", "a3"]


def test_a_full_queue(running, engine, script, say, pool):
    with running(engine, max_queue=2) as server:
        script.hold()
        asked = []
        for i in range(3):
            asked.append(pool.submit(post, server, say("hello")))
            until(lambda n=i: server.queue.n_running and server.queue.n_waiting == n)
        for stream in (False, True):
            refused = post(server, say("hello", stream=stream))
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            error = refused.json()["error"]
            assert (error["code"], error["type"]) == ("queue_full", "rate_limit_error")
        script.go.set()
        assert [f.result(30).status_code for f in asked] == [200] * 3
        assert post(server, say("hello")).status_code == 200


def asking(server, path: str, body: dict) -> socket.socket:
    """Return a request whose answer has not been read yet."""
    made = socket.create_connection(("127.0.0.1", httpx.URL(server.url).port))
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    made.sendall(head.encode() + data)
    return made


def test_a_client_that_leaves_the_queue_is_forgotten(running, engine, script, say, pool):
    with running(engine) as server:
        script.hold()
        first = pool.submit(post, server, say("hello"))
        until(lambda: server.queue.n_running)
        with asking(server, CHAT, say("lost")):
            until(lambda: server.queue.n_waiting == 1)
        until(lambda: server.queue.n_waiting == 0)
        script.go.set()
        assert content(first.result(30)) == "Hi, what can I do?"
        counted = f'endpoint="{CHAT}",status="499"}} 1.0'
        until(lambda: counted in httpx.get(server.url + "/metrics", timeout=30).text)
    assert script.heard == ["hello"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [
    ("/v1/completions", {"prompt": "a", "max_tokens": 400, "ignore_eos": True}),
    ("/v1/responses", {"input": "again"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "again"}], "max_tokens": 400}),
])  # fmt: skip
def test_a_client_that_leaves_while_it_is_answered_frees_the_engine(
    running, engine, script, say, path, body, stream, monkeypatch
):
    noticed, cancel = threading.Event(), Interrupt.cancel
    monkeypatch.setattr(Interrupt, "cancel", lambda self: (cancel(self), noticed.set()))
    body = body | {"stream": stream}
    with running(engine) as server:
        script.hold()
        with asking(server, path, body):
            assert script.asked.wait(20)
        assert noticed.wait(20)
        script.go.set()
        until(lambda: server.queue.n_running == 0)
        told = httpx.get(server.url + "/metrics", timeout=30).text
        assert content(post(server, say("hello"))) == "Hi, what can I do?"
    line = next(x for x in told.splitlines() if x.startswith("edgespec:generation_tokens_total"))
    assert float(line.split()[1]) < 10


def test_a_stream_that_is_closed_half_way_frees_the_engine(running, engine, script, say):
    body = {"prompt": "a", "max_tokens": 400, "stream": True, "disable_spec_decode": True}
    seen = threading.Event()
    with running(engine) as server:
        with httpx.stream(
            "POST", server.url + "/v1/completions", json=body, timeout=30
        ) as response:
            for line in response.iter_lines():
                if line:
                    script.hold()
                    seen.set()
                    break
        script.go.set()
        until(lambda: server.queue.n_running == 0)
        assert seen.is_set()
        assert content(post(server, say("hello"))) == "Hi, what can I do?"


def test_who_reads_slowly_keeps_nobody_waiting(running, engine, say):
    body = {"prompt": "a", "max_tokens": 200, "stream": True}
    with (
        running(engine) as server,
        httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=30) as unread,
    ):
        assert unread.status_code == 200
        assert content(post(server, say("hello"))) == "Hi, what can I do?"
        assert unread.read().endswith(b"data: [DONE]\n\n")


def test_an_answer_that_is_there_already_is_sent_without_shutting_others_out():
    async def main() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def chunks():
            for i in range(100):
                yield 0, Event("token", i, "x")

        async def send(message) -> None:
            sent.append(message)

        sent: list[dict] = []
        task = asyncio.create_task(other())
        told, items = Envelope(model="m", tokenizer=ToyTokenizer(["x"]), fingerprint="f"), chunks()
        stream = EventStream(TextWriter(told), items, {})
        await stream({"type": "http"}, asyncio.Event().wait, send)
        task.cancel()
        assert len(sent) == 103  # its start, [DONE] and its end
        return turns

    assert asyncio.run(main()) >= 100


def test_running_answers_end_within_the_grace(running, engine, script, say, pool):
    with running(engine, grace_s=20) as server:
        script.hold()
        first = pool.submit(post, server, say("hello"))
        until(lambda: server.queue.n_running)
        second = pool.submit(post, server, say("hello"))
        until(lambda: server.queue.n_waiting)
        server.stop()
        refused = second.result(30)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert httpx.get(server.url + "/health").status_code == 503
        script.go.set()
        assert content(first.result(30)) == "Hi, what can I do?"


@pytest.mark.parametrize("stream", [False, True])
def test_after_the_grace_answers_are_cancelled_and_say_so(
    running, engine, script, stream, pool, monkeypatch
):
    cancelled, cancel = threading.Event(), engine.cancel
    monkeypatch.setattr(engine, "cancel", lambda: (cancel(), cancelled.set()))
    body = {"prompt": "a", "max_tokens": 400, "stream": stream, "disable_spec_decode": True}
    with running(engine, grace_s=0) as server:
        script.hold()
        asked = pool.submit(httpx.post, server.url + "/v1/completions", json=body, timeout=30)
        until(lambda: server.queue.n_running and script.asked.is_set())
        server.stop()
        assert cancelled.wait(20)
        script.go.set()
        response = asked.result(30)
    assert "shutting_down" in response.text
    assert response.status_code == (200 if stream else 503)


def test_tls(running, engine, say, tls):
    with running(engine, tls_cert=tls / "cert.pem", tls_key=tls / "key.pem") as server:
        assert server.url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=tls / "cert.pem")
        response = httpx.post(server.url + CHAT, json=say("hello"), verify=context, timeout=30)
        assert content(response) == "Hi, what can I do?"
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url.replace("https", "http") + "/health")


def test_a_device_is_told_why_it_is_refused(running, engine, tls, monkeypatch):
    from edgespec import ConfigError, VerifierRefused, VerifierUnavailable
    from edgespec.verifiers.remote import RemoteVerifier

    def refused(url, kind, says):
        with pytest.raises(kind, match=says):
            RemoteVerifier(RemoteConfig(url, timeout_s=5.0), engine.tokenizer)

    with running(engine, tls_cert=tls / "cert.pem", tls_key=tls / "key.pem") as server:
        port = server.url.rpartition(":")[2]
        refused(f"wss://127.0.0.1:{port}", VerifierRefused, "not trusted.*SSL_CERT_FILE")
        refused(f"ws://127.0.0.1:{port}", VerifierUnavailable, "wss:// is with")
    with running(engine, api_keys=("key",)) as server:
        port = server.url.rpartition(":")[2]
        refused(f"wss://127.0.0.1:{port}", VerifierUnavailable, "ws:// is without")
        refused(f"ws://127.0.0.1:{port}", VerifierRefused, "wants a key and none was given")
    with running(engine) as server:  # without sessions
        port = server.url.rpartition(":")[2]
        refused(
            f"ws://127.0.0.1:{port}", VerifierRefused, "verifies for no devices, or wants a key"
        )
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: loopback)
        loopback = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port)))]
        refused(f"ws://robot.example:{port}", VerifierRefused, "--allowed-host NAME")
        monkeypatch.undo()
    refused("ws://[::1", ConfigError, "no address")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n", b"200"),
        (b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n", b"403"),
        (b"GET /v1/models HTTP/1.1\r\nHost:\r\n", b"403"),
        (b"GET /v1/models HTTP/1.1\r\n", b"400"),
        (b"GET /v1/models HTTP/1.0\r\n", b"403"),
        (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n", b"400"),
        (b"GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\n", b"404"),
        (b"GET http://localhost/v1/models HTTP/1.1\r\nHost: evil.example\r\n", b"403"),
        (b"OPTIONS /v1/models HTTP/1.1\r\nHost: evil.example\r\n", b"403"),
    ],
)
def test_hosts_on_the_wire(running, engine, head, status):
    with running(engine) as server:
        address = ("127.0.0.1", httpx.URL(server.url).port)
        with socket.create_connection(address) as sock:
            sock.sendall(head + b"Connection: close\r\n\r\n")
            assert sock.makefile("rb").readline().split()[1] == status


def test_connections_that_stall_in_the_handshake_delay_nobody(running, engine, tls, caplog):
    hello = b"\x16\x03\x01\x02\x00"  # the beginning of a record that does not go on
    with running(engine, tls_cert=tls / "cert.pem", tls_key=tls / "key.pem") as server:
        address = ("127.0.0.1", httpx.URL(server.url).port)
        with contextlib.ExitStack() as stack:
            for i in range(100):
                sock = stack.enter_context(socket.create_connection(address))
                sock.sendall(hello[: i % 6])
            context = ssl.create_default_context(cafile=tls / "cert.pem")
            assert httpx.get(server.url + "/health", verify=context, timeout=5).status_code == 200
            plain = stack.enter_context(socket.create_connection(address))
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP" not in plain.makefile("rb").read()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("code", "says"), [(10, "needs a new one"), (9, "clock"), (62, "address"), (64, "address"),
                       (18, "SSL_CERT_FILE, which is now ca.pem$")],
)  # fmt: skip
def test_what_helps_against_a_certificate(code, says, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "ca.pem")
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = code, "it is not\nvalid."
    told = str(failures.not_connected(error, RemoteConfig("wss://far"), "far"))
    assert "not trusted: it is not valid; " in told
    assert re.search(says, told)
    assert ("SSL_CERT_FILE" in told) == (code == 18)
