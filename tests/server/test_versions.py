"""Devices and servers of other versions of the protocol, on loopback."""

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from edgespec import SamplingParams, VerifierFault, VerifierRefused, protocol
from edgespec.protocol import decode, encode
from tests.helpers.serving import TOKENIZER, N, device, plainly
from tests.server.test_remote import lying

HASH = protocol.vocabulary_hash(TOKENIZER, N)


@pytest.mark.parametrize("offered", [
    ["edgespec.verify.v2"],
    ["edgespec.verify.v9", "edgespec.verify.v2"],
])  # fmt: skip
def test_the_servers_version_is_taken_wherever_it_is_offered(server, offered):
    with connect(server.url + "/v1/verify", subprotocols=offered, compression=None) as socket:
        assert socket.subprotocol == "edgespec.verify.v2"


def test_a_device_of_another_version_is_refused_before_a_frame(server):
    with pytest.raises(InvalidStatus) as refused:
        connect(server.url + "/v1/verify", subprotocols=["edgespec.verify.v1"])
    assert b"speak the subprotocol edgespec.verify.v2, got edgespec.verify.v1" in (
        refused.value.response.body
    )


def test_a_frame_of_another_version_is_refused(server):
    with plainly(server) as socket:
        socket.send(encode(protocol.Open(3, protocol.NO_TOKEN, N, HASH, "")))
        error = protocol.expect(protocol.Error, decode(socket.recv(5)))
    assert error.code == protocol.PROTOCOL
    assert "version 3 of the protocol came where this program speaks version 2" in error.message


@pytest.mark.parametrize(("options", "error", "said"), [
    ({"subprotocols": None}, VerifierRefused, "does not speak edgespec.verify.v2"),
    ({"version": 1}, VerifierFault, "version 1 of the protocol came where"),
])  # fmt: skip
def test_a_server_of_another_version(options, error, said):
    other, url = lying([], **options)
    with pytest.raises(error, match=said):
        device(url)
    other.shutdown()


def refusal(server, *messages):
    with plainly(server) as socket:
        for message in messages:
            socket.send(message)
        while not isinstance(frame := decode(socket.recv(5)), protocol.Error):
            pass
        return frame


def test_unknown_options_are_refused_by_name(server):
    asked = protocol.Open(
        protocol.VERSION, protocol.NO_TOKEN, N, HASH, "", {"colour": "…", "log": True}
    )
    in_open = refusal(server, encode(asked))
    begin = protocol.Begin(1, 0, 0, 1, SamplingParams(), 0, (5,), {"colour": "…", "log": True})
    plain = encode(protocol.Open(protocol.VERSION, protocol.NO_TOKEN, N, HASH, ""))
    in_begin = refusal(server, plain, encode(begin))
    for error in (in_open, in_begin):
        assert error.code == protocol.UNSUPPORTED
        assert "does not know the options 'colour', 'log'" in error.message
