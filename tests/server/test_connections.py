"""Connections on which a request does not arrive: over raw sockets."""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import ssl
import time

import httpx
import pytest
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
UPGRADE = (
    b"GET /v1/verify HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
)
LENGTH = b"Content-Length: 1000\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LATE = b"HTTP/1.1 408 "


def received(server, first: bytes, more: bytes = b"") -> bytes:
    """Return what the server sends until it ends the connection. more: sent again and again."""
    port = int(server.url.rpartition(":")[2])
    answer = b""
    with (
        socket.create_connection(("127.0.0.1", port)) as sock,
        contextlib.suppress(ConnectionError),
    ):
        sock.settimeout(0.05)
        sock.sendall(first)
        end = time.monotonic() + 20
        for _ in itertools.count():
            assert time.monotonic() < end, "the connection is still open"
            with contextlib.suppress(TimeoutError):
                data = sock.recv(1 << 16)
                answer += data
                if not data:
                    break
            sock.sendall(more)
    return answer


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)


@pytest.mark.parametrize(
    ("first", "more", "answered"),
    [
        (b"", b"", b""),
        (HEAD, b"", LATE),
        (HEAD, b"X-Slow: 1\r\n", LATE),
        (UPGRADE, b"X-Slow: 1\r\n", LATE),
        (HEAD + LENGTH, b"", LATE),
        (HEAD + LENGTH, b" ", LATE),
        (HEALTH + HEAD, b"", b"HTTP/1.1 200 "),
        (HEALTH + HEAD + LENGTH, b"", LATE),
        (HEAD.replace(b"json", b"text") + LENGTH, b" ", b"HTTP/1.1 415 "),
    ],
    ids=[
        "nothing", "half a head", "a head that trickles", "a handshake that trickles", "no body",
        "a body that trickles", "half a head behind a request", "no body behind a request",
        "a body of a request that was refused",
    ],
)  # fmt: skip
def test_a_request_that_does_not_arrive_ends_its_connection(running, engine, first, more, answered):
    with running(engine, arrival_s=0.3) as server:
        assert answered in received(server, first, more)


def test_what_did_not_arrive_is_logged(running, engine, caplog):
    with caplog.at_level(logging.INFO, "edgespec.server"), running(engine, arrival_s=0.3) as server:
        received(server, HEAD)
        received(server, HEAD + LENGTH)
    late = [r.fields for r in caplog.records if r.fields["status"] == 408]
    assert [fields["client"] for fields in late] == ["127.0.0.1"] * 2
    assert late[1]["endpoint"] == "/v1/completions"


def test_an_answer_may_take_longer_than_its_request(running, engine, script, say):
    with running(engine, arrival_s=0.2) as server, httpx.Client(base_url=server.url) as client:
        for _ in range(3):  # on one connection
            script.hold()
            with client.stream("POST", "/v1/chat/completions", json=say("hello", stream=True)) as r:
                script.go.set()
                assert r.read().endswith(b"[DONE]\n\n")
            time.sleep(0.1)


@pytest.mark.parametrize("with_tls", [False, True])
def test_a_websocket_outlives_the_time_of_its_handshake(running, engine, tls, with_tls, caplog):
    files = {"tls_cert": tls / "cert.pem", "tls_key": tls / "key.pem"} if with_tls else {}
    context = ssl.create_default_context(cafile=tls / "cert.pem") if with_tls else None
    with running(engine, arrival_s=0.2, **files) as server:
        server.app.router.routes.append(WebSocketRoute("/echo", echo))
        url = server.url.replace("http", "ws")
        with connect(f"{url}/echo", ssl=context) as socket:
            for _ in range(3):
                socket.send("hi")
                assert socket.recv(10) == "hi"
                time.sleep(0.2)
        with pytest.raises(InvalidStatus):
            connect(f"{url}/nothing", ssl=context)
        time.sleep(0.4)
    assert not [record for record in caplog.records if record.name == "asyncio"]
