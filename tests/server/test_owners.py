"""Who a request belongs to: what one client has sent, no other can see."""

from __future__ import annotations

import contextlib
import json
import threading

import pytest
from starlette.datastructures import Headers
from websockets.sync.client import connect

from edgespec import SamplingParams, protocol
from edgespec.constraints.compiler import Constraints
from edgespec.server import clients
from tests.helpers.serving import TOKENIZER, Server, introduce, until

KEYS = ("first-key", "second-key")
PROMPT = tuple([5] * 100)
N_READ = len(PROMPT) - 1  # the last token is evaluated with the first draft


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def x_api_key(key):
    return {"x-api-key": key}


ONE, TWO = KEYS
APART = {
    "two that send x-api-key": (x_api_key(ONE), x_api_key(TWO)),
    "two bearers": (bearer(ONE), bearer(TWO)),
    "one of each": (bearer(ONE), x_api_key(TWO)),
    "one of each, turned round": (x_api_key(ONE), bearer(TWO)),
}
SAME = {
    "a key that was sent both ways": (bearer(ONE), x_api_key(ONE)),
    "the same header twice": (x_api_key(ONE), x_api_key(ONE)),
}


def scope(headers, address="10.0.0.1"):
    return {"type": "http", "headers": Headers(headers).raw, "client": (address, 1)}


def known(headers, keys, address="10.0.0.1"):
    """Return who sends headers, None for somebody who is not admitted."""
    asked = scope(headers, address)
    admitted = clients.remember(asked, [key.encode() for key in keys])
    return clients.client_of(asked) if admitted else None


@pytest.mark.parametrize("keys", [KEYS, ()], ids=["keys", "no keys"])
@pytest.mark.parametrize("pair", APART.values(), ids=APART)
def test_different_keys_are_different_owners(pair, keys):
    first, second = (known(headers, keys) for headers in pair)
    assert first.owner != second.owner


@pytest.mark.parametrize("keys", [KEYS, ()], ids=["keys", "no keys"])
@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_the_same_key_is_the_same_owner(pair, keys):
    first, second = (known(headers, keys) for headers in pair)
    assert first == second


def test_without_keys_the_address_is_the_client_and_takes_one_turn():
    here, there = known({}, (), "10.0.0.1"), known({}, (), "10.0.0.2")
    assert here.owner != there.owner
    assert here.turn != there.turn
    made_up = known(bearer("anything"), (), "10.0.0.1")
    assert made_up.owner != here.owner
    assert made_up.turn == here.turn  # making keys up wins no turns


def test_who_sends_no_key_is_not_admitted():
    for headers in ({}, bearer("wrong"), x_api_key(""), {"Authorization": "Basic first-key"}):
        assert known(headers, KEYS) is None


# --- devices ------------------------------------------------------------------------------------


@contextlib.contextmanager
def device(server, headers):
    """Connect and send a prompt; yield how much of it was known already."""
    with connect(
        server.url + "/v1/verify", subprotocols=[protocol.SUBPROTOCOL], compression=None,
        additional_headers=headers,
    ) as socket:  # fmt: skip
        introduce(socket)
        begin = protocol.Begin(1, 0, 0, len(PROMPT), SamplingParams(), 7, PROMPT, {})
        socket.send(protocol.encode(begin))
        yield protocol.expect(protocol.Progress, protocol.decode(socket.recv(5))).n_done


def shared_tokens(server, pair):
    """Return how many tokens of the first one's prompt the second one was spared."""
    first, second = pair
    with device(server, first):
        until(lambda: server.sessions.counts.prompt_tokens == N_READ)
        with device(server, second):
            until(lambda: server.sessions.counts.prompt_tokens
                  + server.sessions.counts.shared_tokens == 2 * N_READ)  # fmt: skip
            return server.sessions.counts.shared_tokens


@pytest.mark.parametrize("keys", [KEYS, ()], ids=["keys", "no keys"])
@pytest.mark.parametrize("pair", APART.values(), ids=APART)
def test_nothing_is_verified_with_what_another_owner_has_sent(pair, keys):
    with Server(keys=keys) as server:
        assert shared_tokens(server, pair) == 0


@pytest.mark.parametrize("pair", [*SAME.values(), ({}, {})], ids=[*SAME, "no keys"])
def test_what_an_owner_has_sent_is_reused_for_it(pair):
    with Server(keys=KEYS if pair[0] else ()) as server:
        assert shared_tokens(server, pair) > 0


# --- forms --------------------------------------------------------------------------------------


class Held:
    """Keeps the compiling of choices that begin with "slow" until `go` is set."""

    def __init__(self, target):
        self.begun, self.go, self._compile = [], threading.Event(), target.constraint

    def __call__(self, options, owner=""):
        if "slow" in options.get("choices", ""):
            self.begun.append(options["choices"])
            assert self.go.wait(20)
        return self._compile(options, owner)


@contextlib.contextmanager
def held(server):
    target = server.sessions._target
    target.constraint = made = Held(target)
    try:
        yield made
    finally:
        made.go.set()


@contextlib.contextmanager
def asking(server, key, *choices):
    """Connect, and ask for one of some choices."""
    with connect(
        server.url + "/v1/verify", subprotocols=[protocol.SUBPROTOCOL], compression=None,
        additional_headers=bearer(key),
    ) as socket:  # fmt: skip
        introduce(socket)
        options = {"choices": json.dumps(choices)}
        begin = protocol.Begin(1, 0, 0, len(PROMPT), SamplingParams(), 7, PROMPT, options)
        socket.send(protocol.encode(begin))
        yield socket


def progress(socket):
    return protocol.expect(protocol.Progress, protocol.decode(socket.recv(10)))


def test_a_devices_forms_delay_only_its_own_client():
    with (
        Server(keys=KEYS) as server,
        held(server) as compiling,
        asking(server, ONE, "slow", "b") as first,
    ):
        until(lambda: compiling.begun)
        with asking(server, ONE, "slow too") as second, asking(server, TWO, "a") as other:
            progress(other)
            assert len(compiling.begun) == 1
            compiling.go.set()
            progress(first)
            progress(second)


def test_a_form_whose_device_has_left_is_not_begun():
    with (
        Server(keys=KEYS) as server,
        held(server) as compiling,
        asking(server, ONE, "slow", "b") as first,
    ):
        until(lambda: compiling.begun)
        with asking(server, ONE, "slow too"):
            until(lambda: server.sessions.n_connected == 2)
        until(lambda: server.sessions.n_connected == 1)
        compiling.go.set()
        progress(first)
        assert not any("too" in each for each in compiling.begun)


def test_a_form_that_is_ready_tells_no_other_owner():
    constraints = Constraints(TOKENIZER)
    compiled, matcher = [], constraints.tried
    constraints.tried = lambda kind, text: compiled.append(kind) or matcher(kind, text)
    for owner, times in [("one", 1), ("one", 1), ("two", 2), ("one", 2), ("two", 2)]:
        constraints.of(SamplingParams(choices=("a", "b")), owner)
        constraints.described({"choices": '["a", "b"]'}, owner)
        assert len(compiled) == times


# --- metrics ------------------------------------------------------------------------------------


def test_metrics_are_for_this_machine(client_of):
    client = client_of(api_keys=KEYS)
    assert client.get("/metrics", headers=bearer(ONE)).status_code == 200
    elsewhere = {"X-Forwarded-For": "10.0.0.1"}  # says nothing: the address is the connection's
    assert client.get("/metrics", headers=bearer(ONE) | elsewhere).status_code == 200
    assert client.get("/metrics").status_code == 401


def test_metrics_are_refused_to_other_machines(client_of, monkeypatch):
    client = client_of(api_keys=KEYS)
    monkeypatch.setattr(client._transport, "client", ("10.0.0.1", 1))
    refused = client.get("/metrics", headers=bearer(ONE))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "operator_only")
    assert "--metrics-key-file" in refused.json()["error"]["message"]
    assert client.get("/v1/models", headers=bearer(ONE)).status_code == 200


@pytest.mark.parametrize("keys", [KEYS, ()], ids=["keys", "no keys"])
def test_a_key_for_metrics_opens_them_alone(client_of, keys):
    client = client_of(api_keys=keys, metrics_key="operator")
    for send in (bearer, x_api_key):
        assert client.get("/metrics", headers=send("operator")).status_code == 200
    assert client.get("/metrics", headers=bearer(ONE)).status_code == 403
    assert client.get("/metrics").status_code == (401 if keys else 403)
    if keys:
        assert client.get("/v1/models", headers=bearer("operator")).status_code == 401
