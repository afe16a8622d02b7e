"""Who a request belongs to: what one client has sent, no other can see."""

from __future__ import annotations

import contextlib

import pytest
from starlette.datastructures import Headers
from websockets.sync.client import connect

from edgespec import protocol
from edgespec.server import clients
from tests.helpers.serving import Server, introduce, until

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
        server.url + "/v1/verify", subprotocols=list(protocol.SUBPROTOCOLS), compression=None,
        additional_headers=headers,
    ) as socket:  # fmt: skip
        introduce(socket)
        begin = protocol.Begin(1, 0, 0, len(PROMPT), protocol_params(), 7, PROMPT, {})
        socket.send(protocol.encode(begin, protocol.SUBPROTOCOLS[socket.subprotocol]))
        yield protocol.expect(protocol.Progress, protocol.decode(socket.recv(5))).n_done


def protocol_params():
    from edgespec import SamplingParams

    return SamplingParams()


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
