"""Keys, hosts, origins, sizes, and what a failure shows: nothing."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from edgespec.server.logs import JsonFormatter

CHAT = "/v1/chat/completions"
KEYS = ("first-key", "second-key")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def echo(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()


def test_every_path_but_health_needs_a_key(client_of, say):
    client = client_of(api_keys=KEYS)
    assert client.get("/health").status_code == 200
    for path in ("/metrics", "/openapi.json", "/v1/models", "/nothing"):
        refused = client.get(path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.json()["error"]["code"] == "invalid_api_key"
    assert client.post(CHAT, json=say("hello")).status_code == 401
    for key in KEYS:
        assert client.get("/v1/models", headers=bearer(key)).status_code == 200


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Bearer wrong", "Basic first-key", "first-key", "Bearer first-keyx",
     b"Bearer \xff\xfe"],
)  # fmt: skip
def test_wrong_keys(client_of, authorization):
    client = client_of(api_keys=KEYS)
    headers = {"Authorization": authorization}
    assert client.get("/v1/models", headers=headers).status_code == 401


def test_a_key_may_come_as_anthropics_clients_send_it(client_of):
    client = client_of(api_keys=KEYS)
    for headers, status in (
        ({"X-Api-Key": KEYS[1]}, 200),
        ({"X-Api-Key": "wrong"}, 401),
        (bearer(KEYS[0]) | {"X-Api-Key": "wrong"}, 200),
        (bearer("wrong") | {"X-Api-Key": KEYS[0]}, 401),
    ):
        assert client.get("/v1/models", headers=headers).status_code == status


def test_all_keys_are_compared_whichever_fits(client_of, monkeypatch):
    compared = []
    compare = hmac.compare_digest

    def spy(given, known):
        compared.append(known)
        return compare(given, known)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    client = client_of(api_keys=KEYS)
    for key in (*KEYS, "wrong"):
        compared.clear()
        client.get("/v1/models", headers=bearer(key))
        assert compared == [k.encode() for k in KEYS]


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost:8080", "localhost.", "app.localhost:1", "127.0.0.1:8080",
     "127.9.9.9", "[::1]:8080", "[::1]", "[::1%lo]:8080"],
)  # fmt: skip
def test_this_machine_is_a_host_without_a_key(client_of, host):
    for path in ("/v1/models", "/metrics"):
        assert client_of().get(path, headers={"Host": host}).status_code == 200


ELSEWHERE = [
    "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "",
    "192.168.1.2", "127.1", "0.0.0.0:8080", "localhost@evil.example", "evil.example@localhost",
    "localhost:80:80", "localhost,evil.example", "localhost..", "notlocalhost", "[::1", "::1",
    "[fd00::1]", "localhost/..",
]  # fmt: skip


@pytest.mark.parametrize("host", ELSEWHERE)
def test_no_other_name_is_a_host_without_a_key(client_of, host):
    client = client_of()
    for path in ("/v1/models", "/metrics", "/v1/vocabulary", "/absent"):
        refused = client.get(path, headers={"Host": host, "X-Forwarded-Host": "localhost"})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (403, "unknown_host")
        assert "--allowed-host" in error["message"]
    assert client.get("/health", headers={"Host": host}).status_code == 200


def test_which_other_hosts_are_answered(client_of):
    allowing = client_of(allowed_hosts=("host.docker.internal",))
    for host, status in (("Host.Docker.Internal:8080", 200), ("evil.example", 403)):
        assert allowing.get("/v1/models", headers={"Host": host}).status_code == status
    headers = bearer(KEYS[0]) | {"Host": "robot.example"}
    assert client_of(api_keys=KEYS).get("/v1/models", headers=headers).status_code == 200
    everywhere = client_of(host="0.0.0.0", insecure=True)
    for path, status in (("/v1/models", 200), ("/metrics", 403)):  # which an address would open
        assert everywhere.get(path, headers={"Host": "evil.example"}).status_code == status


@pytest.mark.parametrize("where", [{}, {"host": "0.0.0.0", "insecure": True}])
def test_without_a_key_pages_need_an_allowed_origin(client_of, say, where):
    extension = "chrome-extension://abcdefgh"
    routes = [WebSocketRoute("/echo", echo)]
    client = client_of(routes=routes, cors_origins=(extension,), **where)
    for origin in ("http://localhost:3000", "https://127.0.0.1", "http://app.localhost", extension):
        sent = client.post(CHAT, json=say("hello"), headers={"Origin": origin})
        assert sent.status_code == 200
        with client.websocket_connect("ws://localhost/echo", headers={"Origin": origin}) as socket:
            socket.send_text("hi")
    evil = [f"http://{host}" for host in ELSEWHERE]
    for origin in (*evil, "null", "", "file://", "localhost", f"{extension}x"):
        for path in (CHAT, "/health", "/absent"):
            refused = client.post(path, json=say("hello"), headers={"Origin": origin})
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (403, "unknown_origin")
            assert "--cors-origin" in error["message"]
        with pytest.raises(WebSocketDenialResponse):
            client.websocket_connect("ws://localhost/echo", headers={"Origin": origin}).__enter__()
    twice = [("Origin", "http://localhost"), ("Origin", "http://evil.example")]
    assert client.get("/v1/models", headers=twice).status_code == 403


def test_websockets_pass_the_same_checks(client_of):
    client = client_of(
        routes=[WebSocketRoute("/echo", echo)], api_keys=KEYS, cors_origins=("https://a.example",)
    )
    with client.websocket_connect("/echo", headers=bearer(KEYS[1])) as socket:
        socket.send_text("hi")
        assert socket.receive_text() == "hi"
    page = {"Origin": "https://a.example"}
    with client.websocket_connect("/echo", headers=bearer(KEYS[1]) | page) as socket:
        socket.send_text("hi")
    elsewhere = bearer(KEYS[0]) | {"Origin": "https://evil.example"}
    for headers, status in (({}, 401), (bearer("x"), 401), (elsewhere, 403)):
        with pytest.raises(WebSocketDenialResponse) as refused:
            client.websocket_connect("/echo", headers=headers).__enter__()
        assert refused.value.status_code == status
        assert "error" in refused.value.json()


def status_of_pieces(app, *sizes):
    """Return the status of a request whose body comes in pieces, which the test client joins."""
    statuses = []

    async def receive():
        body = b"x" * pieces.pop()
        return {"type": "http.request", "body": body, "more_body": bool(pieces)}

    async def send(message):
        statuses.append(message.get("status"))

    pieces = list(sizes)
    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"host", b"localhost")],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return statuses[0]


def test_bodies_have_a_limit_announced_or_not(client_of):
    client = client_of(max_body_bytes=1024)
    headers = {"Content-Type": "application/json"}
    refused = client.post("/v1/completions", content=b"x" * 1025, headers=headers)
    assert refused.status_code == 413
    assert "1024" in refused.json()["error"]["message"]
    assert status_of_pieces(client.app, 512, 513) == 413
    assert status_of_pieces(client.app, 512, 512) == 400  # which is no JSON, but may be so long
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    fits = body + b" " * (1024 - len(body))
    assert client.post("/v1/completions", content=fits, headers=headers).status_code == 200


def test_web_pages_are_let_in_by_name_only(client_of):
    origin = {"Origin": "https://app.example"}
    asking = origin | {"Access-Control-Request-Method": "POST"}
    asking["Access-Control-Request-Headers"] = "x-stainless-lang,anthropic-beta,authorization"
    closed = client_of(api_keys=KEYS)
    for refused in (closed.get("/v1/models", headers=origin), closed.options(CHAT, headers=asking)):
        assert refused.status_code == 401
        assert "access-control-allow-origin" not in refused.headers
    client = client_of(cors_origins=("https://app.example",), api_keys=KEYS)
    preflight = client.options(CHAT, headers=asking)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert "x-stainless-lang" in preflight.headers["access-control-allow-headers"]
    refused = client.get("/v1/models", headers=origin)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"
    other = client.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


def test_who_comes_without_a_key_is_logged_as_that(client_of, caplog):
    client = client_of(routes=[WebSocketRoute("/echo", echo)], api_keys=KEYS)
    with caplog.at_level(logging.WARNING, "edgespec.server"):  # as --quiet has it
        client.get("/v1/models", headers=bearer(KEYS[0]))
        client.get("/v1/models")
        client.get("/v1/models", headers=bearer("wrong-key"))
        client.get("/nothing?wrong-key", headers=bearer("wrong-key"))
        with pytest.raises(WebSocketDenialResponse):
            client.websocket_connect("/echo").__enter__()
    told = [(r.getMessage().rpartition(" ")[2], r.fields["endpoint"]) for r in caplog.records]
    assert told == [
        ("missing", "/v1/models"), ("wrong", "/v1/models"), ("wrong", "other"),
        ("missing", "/echo"),
    ]  # fmt: skip
    for record in caplog.records:
        assert record.fields["status"] == 401
        assert record.fields["client"] == "127.0.0.1"
        assert "-key" not in JsonFormatter().format(record)


def test_a_websocket_that_is_closed_before_it_opens_is_logged_as_a_403(client_of, caplog):
    async def refuse(socket: WebSocket) -> None:
        await socket.close()

    client = client_of(routes=[WebSocketRoute("/no", refuse)])
    with caplog.at_level(logging.INFO, "edgespec.server"), pytest.raises(WebSocketDisconnect):
        client.websocket_connect("/no").__enter__()
    assert caplog.records[-1].fields["status"] == 403


def test_unknown_paths_and_methods_have_the_same_shape(client):
    for response, status in ((client.get("/v2"), 404), (client.delete("/v1/models"), 405)):
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert "openapi.json" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/completions", "here POST /v1/completions continues a prompt, of at most max_tokens"),
        ("/v1/completion", "here POST /v1/completions continues a prompt"),
        ("/api/chat", "here POST /v1/chat/completions answers messages"),
        ("/v1/tokenize", "here POST /tokenize"),
        ("/embedding", "here answers are written, no embeddings"),
    ],
)
def test_endpoints_of_other_servers_name_ours(client, path, says):
    response = client.post(path, json={"prompt": "hello", "n_predict": 3})
    assert response.status_code == 404
    assert says in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_shows_nothing_and_logs_where_but_no_text(client, say, caplog, stream):
    with caplog.at_level(logging.DEBUG):
        response = client.post(CHAT, json=say("boom", stream=stream))
    told = response.text
    assert "Traceback" not in told
    assert "RuntimeError" not in told
    assert "boom" not in told
    assert "internal_error" in told
    failure = next(r for r in caplog.records if r.levelname == "ERROR")
    assert failure.fields["error"] == "RuntimeError"
    assert any("next_probs" in frame for frame in failure.fields["where"])
    assert failure.fields["request_id"] == response.headers["x-request-id"]
    assert failure.fields["request_id"] in told
    assert "boom" not in caplog.text
    assert all("the user said" not in json.dumps(getattr(r, "fields", {})) for r in caplog.records)
    after = client.post(CHAT, json=say("hello")).json()
    assert after["choices"][0]["message"]["content"] == "Hi, what can I do?"


def test_a_route_of_another_module_is_served_and_counted(client_of):
    client = client_of(routes=[Route("/more", lambda request: PlainTextResponse("here"))])
    assert client.get("/more").text == "here"
    assert 'endpoint="/more",status="200"' in client.get("/metrics").text
