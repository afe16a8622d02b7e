"""Devices and servers of both versions of the protocol, on loopback."""

import pytest
from websockets.sync.client import connect

from edgespec import protocol
from edgespec.protocol import decode, encode
from tests.helpers.serving import TOKENIZER, N, Server, closing, device, introduce, local, plainly

PROMPT = "the cat sat on the mat"
DRAWN = {"max_tokens": 40, "temperature": 0.9, "seed": 11}
HASH = protocol.vocabulary_hash(TOKENIZER, N)


@pytest.mark.parametrize(("offered", "spoken"), [
    (["edgespec.verify.v1"], "edgespec.verify.v1"),
    (["edgespec.verify.v1", "edgespec.verify.v2"], "edgespec.verify.v2"),
    (["edgespec.verify.v9", "edgespec.verify.v2"], "edgespec.verify.v2"),
])  # fmt: skip
def test_the_newest_version_of_both_is_spoken(server, offered, spoken):
    with connect(server.url + "/v1/verify", subprotocols=offered, compression=None) as socket:
        assert socket.subprotocol == spoken
        version = protocol.SUBPROTOCOLS[spoken]
        assert introduce(socket).version == version


@pytest.mark.parametrize("options", [{"max_tokens": 40}, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.usefixtures("version_1")
def test_a_server_of_version_1(options):
    expected = local(drafts=False).generate(PROMPT, **options)
    with Server() as old, closing(device(old.url)) as there:
        assert there.generate(PROMPT, **options).token_ids == expected.token_ids
        assert old.sessions.counts.refused == 0


def test_a_device_of_version_1_gets_the_frames_of_version_1(server):
    with plainly(server, version=1) as socket:
        socket.send(encode(protocol.Open(1, protocol.NO_TOKEN, N, HASH, "toy")))
        opened = socket.recv(5)
        expected = protocol.Opened(1, opened[2:18], 256, 31, 32, N, HASH, "toy")
        assert opened == encode(expected)
        assert len(opened) == 1 + 1 + 16 + 2 + 1 + 1 + 1 + 16 + 4 + 1, "nothing behind the costs"


def test_a_version_that_nobody_speaks(server):
    with plainly(server) as socket:
        socket.send(encode(protocol.Open(3, protocol.NO_TOKEN, N, HASH, "")))
        error = protocol.expect(protocol.Error, decode(socket.recv(5)))
        assert error.code == protocol.VERSION_UNKNOWN
        assert "versions 1 and 2 of the protocol, not 3" in error.message


@pytest.mark.parametrize(("agreed", "said"), [(1, 2), (2, 1)])
def test_the_version_that_was_agreed_on_is_the_one_of_the_session(server, agreed, said):
    with plainly(server, version=agreed) as socket:
        socket.send(encode(protocol.Open(said, protocol.NO_TOKEN, N, HASH, "")))
        error = protocol.expect(protocol.Error, decode(socket.recv(5)))
        assert error.code == protocol.VERSION_UNKNOWN
        assert f"says version {said} of the protocol" in error.message
        assert f"was made for version {agreed}" in error.message


def test_a_session_is_resumed_in_the_other_version(server):
    """Its device was updated, or its server was and is not any more."""
    with plainly(server) as socket:
        token = introduce(socket).token
        for version in (2, 1, 2):
            with plainly(server, version=version) as again:
                assert introduce(again, token).token == token
                again.close_socket()  # without a goodbye: the session is kept


def refusal(server, *messages):
    with plainly(server) as socket:
        for message in messages:
            socket.send(message)
        while not isinstance(frame := decode(socket.recv(5), 2), protocol.Error):
            pass
        return frame


def test_unknown_options_are_refused_by_name(server):
    from edgespec import SamplingParams

    asked = protocol.Open(2, protocol.NO_TOKEN, N, HASH, "", {"colour": "…", "log": True})
    in_open = refusal(server, encode(asked))
    begin = protocol.Begin(1, 0, 0, 1, SamplingParams(), 0, (5,), {"colour": "…", "log": True})
    plain = encode(protocol.Open(2, protocol.NO_TOKEN, N, HASH, ""))
    in_begin = refusal(server, plain, encode(begin, 2))
    for error in (in_open, in_begin):
        assert error.code == protocol.UNSUPPORTED
        assert "does not know the options 'colour', 'log'" in error.message
