"""Health, metrics, logs, and the life of the server."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging

import httpx
from starlette.testclient import TestClient

from edgespec.server.app import create_app
from edgespec.server.logs import JsonFormatter, logger
from edgespec.server.settings import ServerSettings

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def values(text: str) -> dict[str, float]:
    """Return the samples of an exposition."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_health_while_loading_ready_and_closing(engine):
    told = []

    @contextlib.asynccontextmanager
    async def slow(app):
        told.append(await health(app))
        yield
        told.append(await health(app))

    async def health(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            response = await client.get("/health")
            return response.status_code, response.json()["status"]

    app = create_app(engine, ServerSettings(model="toy"), background=[slow])

    async def live():
        async with app.router.lifespan_context(app):
            told.append(await health(app))

    asyncio.run(live())
    assert told == [(503, "loading"), (200, "ok"), (503, "closing")]


def test_nobody_is_answered_after_the_end(client, say):
    client.app.state.request_queue.close()
    refused = client.post(CHAT, json=say("hello"))
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"
    assert refused.headers["retry-after"]


def test_metrics_count_what_the_answers_say(client, say):
    answers = [client.post(CHAT, json=say("again")).json() for _ in range(2)]
    client.post(CHAT, json=say("hello", stream=True))
    client.post(CHAT, json={"messages": []})
    told = [a["edgespec"] for a in answers]
    found = values(client.get("/metrics").text)
    steps = sum(t["num_draft_steps"] for t in told)
    assert found["edgespec:spec_decode_num_drafts_total"] >= steps > 0
    assert found["edgespec:spec_decode_num_draft_tokens_total"] >= sum(
        t["num_draft_tokens"] for t in told
    )
    accepted = found["edgespec:spec_decode_num_accepted_tokens_total"]
    assert accepted == sum(
        n for name, n in found.items() if "accepted_tokens_per_pos_total{" in name
    )
    first = found['edgespec:spec_decode_num_accepted_tokens_per_pos_total{position="0"}']
    assert first >= sum(t["accepted_per_position"][0] for t in told)
    n = sum(a["usage"]["completion_tokens"] for a in answers) + len("Hi, what can I do?") + 1
    assert found["edgespec:generation_tokens_total"] == n
    assert found["edgespec:prompt_tokens_total"] == 3 * answers[0]["usage"]["prompt_tokens"]
    assert found["edgespec:prompt_tokens_cached_total"] >= sum(t["num_cached_tokens"] for t in told)
    assert found["edgespec:time_to_first_token_seconds_count"] == 3
    assert found["edgespec:inter_token_latency_seconds_count"] == n - 3
    assert found["edgespec:request_queue_time_seconds_count"] == 3
    assert found["edgespec:num_requests_running"] == 0
    requests = 'edgespec:http_requests_total{endpoint="/v1/chat/completions",status="%s"}'
    assert found[requests % 200] == 3
    assert found[requests % 400] == 1


def test_two_servers_have_metrics_of_their_own(client_of, say):
    one, other = client_of(), client_of()
    one.post(CHAT, json=say("hello"))
    assert values(other.get("/metrics").text)["edgespec:generation_tokens_total"] == 0


def test_log_lines_are_json_about_requests_and_never_of_text(client, say):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    secret = "xyzzy-plugh"
    try:
        client.post(CHAT, json=say(secret))
        client.post(CHAT, json=say(secret, stream=True))
        client.post(CHAT, json=say("hello", nonsense=secret))
        client.post(TEXT, json={"prompt": secret, "stop": secret, "user": secret})
        client.get(f"/v1/models/{secret}")
        client.get(f"/{secret}?q={secret}")
        client.get("/health")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert secret not in stream.getvalue()
    assert [line["status"] for line in lines] == [200, 200, 400, 200, 404, 404, 200]
    chat = lines[0]
    assert chat["endpoint"] == CHAT
    assert chat["completion_tokens"] == len("|" + secret) + 1
    assert chat["finish_reason"] == "stop"
    assert {"time", "level", "request_id", "ms", "queue_ms", "prompt_tokens"} <= set(chat)
    assert lines[-1]["level"] == "debug"


def test_background_lives_as_long_as_the_server(engine):
    seen = []

    @contextlib.asynccontextmanager
    async def live(app):
        seen.append("begin")
        yield
        seen.append("end")

    app = create_app(engine, ServerSettings(model="toy"), background=[live])
    with TestClient(app, base_url="http://localhost"):
        assert seen == ["begin"]
    assert seen == ["begin", "end"]
