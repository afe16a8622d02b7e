"""Limits of single clients, and the log of requests in a file."""

from __future__ import annotations

import json
import os
import stat

import pytest

from edgespec.server.clients import Client, name_of
from edgespec.server.errors import ApiError
from edgespec.server.limits import Limits
from edgespec.server.settings import KeyLimits, ServerSettings

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
DAY = 86_400


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 10.5 * DAY

    def __call__(self) -> float:
        return self.now


def client(name: str) -> Client:
    named = name_of(name.encode())
    return Client(named, named)


def limits(clock=None, **settings) -> Limits:
    return Limits(ServerSettings("toy", **settings), clock or Clock())


def refusal(limits: Limits, name: str) -> ApiError:
    with pytest.raises(ApiError) as refused:
        limits.admit(client(name))
    assert refused.value.status == 429
    return refused.value


def test_requests_of_a_minute():
    clock = Clock()
    made = limits(clock, requests_per_minute=2)
    made.admit(client("a"))
    clock.now += 20
    made.admit(client("a"))
    told = refusal(made, "a")
    assert "2 requests a minute" in told.message
    assert told.headers["Retry-After"] == "40"
    made.admit(client("b"))
    clock.now += 40
    made.admit(client("a"))
    assert refusal(made, "a").headers["Retry-After"] == "20"


def test_refused_requests_do_not_count():
    clock = Clock()
    made = limits(clock, requests_per_minute=1)
    made.admit(client("a"))
    for _ in range(5):
        clock.now += 10
        refusal(made, "a")
    clock.now += 10
    made.admit(client("a"))


def test_tokens_of_a_day():
    clock = Clock()
    made = limits(clock, tokens_per_day=100)
    made.spend(client("a"), 99)
    made.admit(client("a"))
    made.spend(client("a"), 50)
    told = refusal(made, "a")
    assert "100 tokens a day" in told.message
    assert told.headers["Retry-After"] == str(DAY // 2)
    made.admit(client("b"))
    clock.now += DAY / 2
    made.admit(client("a"))


def test_a_key_may_have_limits_of_its_own():
    own = {"a": KeyLimits(3), "b": KeyLimits(0, 5)}
    made = limits(requests_per_minute=1, tokens_per_day=10, key_limits=own)
    for _ in range(3):
        made.admit(client("a"))
    refusal(made, "a")
    for _ in range(9):
        made.admit(client("b"))
    made.spend(client("b"), 5)
    assert "5 tokens" in refusal(made, "b").message
    made.admit(client("c"))
    refusal(made, "c")


def test_new_limits_count_what_was_used_before():
    made = limits(requests_per_minute=9)
    for _ in range(4):
        made.admit(client("a"))
    made.replace(ServerSettings("toy", requests_per_minute=3))
    refusal(made, "a")
    made.replace(ServerSettings("toy"))
    made.admit(client("a"))


def test_clients_that_have_gone_take_no_memory():
    clock = Clock()
    made = limits(clock, requests_per_minute=1)
    made.spend(client("spender"), 5)
    for i in range(10_000):
        made.admit(Client(str(i), str(i)))
        clock.now += 0.1
    assert len(made._used) < 5000
    assert client("spender").turn in made._used


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, {"messages": [{"role": "user", "content": "hello"}]}),
     (MESSAGES, {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}),
     ("/v1/completions", {"prompt": "a"}), ("/v1/responses", {"input": "hello"}),
     ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hello"}]})],
)  # fmt: skip
def test_every_api_has_them(client_of, path, body):
    client = client_of(api_keys=("a", "b"), requests_per_minute=2)
    for key in ("a", "b"):
        headers = {"Authorization": f"Bearer {key}"}
        statuses = [client.post(path, json=body, headers=headers).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_and_answers_count(client_of, say, stream):
    client = client_of(tokens_per_day=90)  # each request takes about 50 + 18
    body = say("hello", stream=stream)
    assert [client.post(CHAT, json=body).status_code for _ in range(3)] == [200, 200, 429]
    told = client.post(CHAT, json=body)
    assert told.json()["error"]["code"] == "rate_limit_exceeded"
    assert int(told.headers["retry-after"]) > 0


# --- the log of requests -------------------------------------------------------------------------


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_request_log_has_no_contents(client_of, say, tmp_path):
    path = tmp_path / "requests.jsonl"
    client = client_of(request_log=path, api_keys=("secret-key",))
    headers = {"Authorization": "Bearer secret-key"}
    client.get("/health")
    client.post(CHAT, json=say("hello"), headers=headers)
    client.post(CHAT, json=say("hello"))
    answered, refused = lines(path)
    assert (answered["endpoint"], answered["status"]) == (CHAT, 200)
    assert answered["prompt_tokens"] > answered["completion_tokens"] > 0
    assert (refused["status"], refused["key"]) == (401, None)
    assert name_of(b"secret-key").startswith(f"key {answered['key']}")
    text = path.read_text(encoding="utf-8")
    assert not any(word in text for word in ("hello", "Hi, what", "secret-key"))
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("stream", [False, True])
def test_contents_are_written_if_asked_for(client_of, say, tmp_path, stream):
    path = tmp_path / "requests.jsonl"
    client = client_of(request_log=path, request_log_contents=True)
    client.post(CHAT, json=say("hello", stream=stream))
    client.post(CHAT, content=b"{", headers={"Content-Type": "application/json"})
    answered, refused = lines(path)
    assert answered["request"]["messages"] == [{"role": "user", "content": "hello"}]
    said = json.dumps(answered["response"])
    assert ("data: " in said) if stream else ("Hi, what can I do?" in said)
    assert (refused["request"], refused["status"]) == ("{", 400)


def test_a_log_that_was_moved_away_begins_anew(client_of, tmp_path):
    path = tmp_path / "requests.jsonl"
    client = client_of(request_log=path)
    client.get("/v1/models")
    path.rename(tmp_path / "old")
    client.get("/v1/models")
    client.app.state.request_log.reopen()
    client.get("/v1/models")
    assert (len(lines(tmp_path / "old")), len(lines(path))) == (2, 1)


def test_a_log_that_cannot_be_written_stops_no_answer(client_of, tmp_path, monkeypatch, caplog):
    client = client_of(request_log=tmp_path / "requests.jsonl")

    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgespec.server.request_log.os.write", full)
    assert client.get("/v1/models").status_code == 200
    assert "cannot be written: No space left" in caplog.text
