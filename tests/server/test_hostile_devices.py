"""Devices that misbehave, and many at once, against a real server on loopback."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from edgespec import (
    VerifierUnavailable,
    protocol,
)
from edgespec.protocol import decode, encode
from tests.helpers.selection import share
from tests.helpers.serving import (
    WORDS,
    N,
    Server,
    closing,
    device,
    local,
    plainly,
    raw,
    served,
    until,
)

PROMPT = "the cat sat on the mat"
GREEDY = {"max_tokens": 60}


def begin(ids=(1, 2, 3)):
    from edgespec import SamplingParams

    return encode(protocol.Begin(1, 0, 0, len(ids), SamplingParams(), 0, tuple(ids)))


def answers(socket, kind):
    while True:
        frame = decode(socket.recv(5))
        if isinstance(frame, kind):
            return frame


def verify(round_, ids=(), length=3, ahead=0, context=(1, 2, 3)):
    checksum = protocol.Context(context).checksum(len(context))
    return encode(protocol.Verify(round_, length, checksum, ahead, tuple(ids)))


def test_a_message_that_comes_twice(server):
    with raw(server) as socket:
        socket.send(begin())
        socket.send(verify(0, [4]))
        first = answers(socket, protocol.Answer)
        for _ in range(3):
            socket.send(verify(0, [4]))
            assert answers(socket, protocol.Answer) == first


@pytest.mark.parametrize(("messages", "said"), [
    ([begin(), verify(5), verify(4)], "given away"),
    ([begin([1, 2, N])], "token id 28"),
    ([begin([])], "prompt"),
    ([begin(), verify(0, [N])], "token id 28"),
    ([begin(), verify(0, [1] * 40)], "a draft of 40"),
    ([begin(), verify(0, ahead=1000)], "1000 ahead"),
    ([b"\x00"], "unknown type 0"),
    (["text"], "binary"),
    ([encode(protocol.Progress(1, 1))], "does not send PROGRESS"),
    ([begin([1] * 257)], "takes 256 in 256"),
])  # fmt: skip
def test_messages_that_end_a_connection(server, messages, said):
    with raw(server) as socket:
        for message in messages:
            socket.send(message)
        assert said in answers(socket, protocol.Error).message
        with pytest.raises(ConnectionClosed):
            socket.recv(5)


def test_verify_before_begin_and_of_another_text(server):
    with raw(server) as socket:
        socket.send(verify(0))
        assert answers(socket, protocol.Need) == protocol.Need(0, 0)
        socket.send(begin())
        socket.send(verify(1, context=(1, 2, 4)))
        need = answers(socket, protocol.Need)
        assert need == protocol.Need(3, protocol.Context([1, 2, 3]).checksum(3))
        socket.send(verify(2))
        assert answers(socket, protocol.Answer).round == 2


def test_first_messages_that_are_none(server):
    for data in (b"", b"\x03", "text", begin(), b"\x01" + bytes(40)):
        with plainly(server) as socket:
            socket.send(data)
            assert isinstance(decode(socket.recv(5)), protocol.Error)


def test_random_frames_leave_the_server_well(server):
    """Whatever comes, the session may end, and others do not notice."""

    @settings(max_examples=share(2000), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.one_of(
        st.binary(max_size=30),
        st.sampled_from([begin(), begin([5] * 40), verify(0), verify(1, [3], ahead=9),
                         encode(protocol.More(7)), encode(protocol.Cancel())]),
    ), min_size=5, max_size=6))  # fmt: skip
    def run(messages):
        with raw(server) as socket:
            try:
                for message in messages:
                    socket.send(message)
            except ConnectionClosed:
                pass

    run()
    expected = local(drafts=False).generate(PROMPT, **GREEDY)
    with closing(device(server.url)) as there:
        assert there.generate(PROMPT, **GREEDY).token_ids == expected.token_ids


def test_a_flood(server):
    with Server(lambda: served(frames_per_s=5.0)) as slow, raw(slow) as socket:
        with contextlib.suppress(ConnectionClosed):
            for _ in range(200):
                socket.send(encode(protocol.Cancel()))
        with pytest.raises(ConnectionClosed):
            answers(socket, protocol.Answer)


def test_fifty_at_once_each_with_its_own_text():
    """More sessions than the target has sequences: caches come and go."""

    def ask(engine, i):
        text = f"{WORDS[i % 26]}{WORDS[i // 2 % 26]} said {WORDS[i % 7]}"
        drawn = {"temperature": 0.8, "seed": i} if i % 2 else {}
        return engine.generate(text, max_tokens=24, ignore_eos=True, **drawn).token_ids

    here = local(drafts=False)
    expected = [ask(here, i) for i in range(50)]

    with Server(lambda: served(n=12)) as server:

        def run(i):
            with closing(device(server.url, drafts=i % 3 > 0, timeout_s=30)) as there:
                return ask(there, i)

        with ThreadPoolExecutor(50) as pool:
            assert list(pool.map(run, range(50))) == expected
        counts = server.sessions.counts
        assert counts.evictions > 0
        assert counts.evaluated_sequences > counts.evaluations, "nothing was evaluated together"


def test_many_sessions_leave_nothing():
    import resource

    with Server(lambda: served(max_sessions=64)) as server:
        n = share(1000, 4)
        for i in range(n):
            with raw(server) as socket:
                socket.send(begin([1 + i % 20] * 20))
                if i % 2:
                    socket.close_socket()  # gone without a word
            if i == n // 3:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert len(server.sessions) <= 64
        assert after - before < 20_000, "KiB"
        expected = local(drafts=False).generate(PROMPT, **GREEDY)
        with closing(device(server.url)) as there:
            assert there.generate(PROMPT, **GREEDY).token_ids == expected.token_ids


def test_too_many_sessions():
    with Server(lambda: served(max_sessions=2)) as server, raw(server), raw(server):
        with pytest.raises(VerifierUnavailable, match="all 2 sessions are taken") as caught:
            device(server.url)
        assert caught.value.retry_after_s == 5


def test_a_stalled_device_is_let_go(server):
    """It asks for much and reads nothing; the others go on."""
    with raw(server) as socket:
        socket.send(begin())
        socket.send(verify(0, ahead=32))
        with closing(device(server.url)) as there:
            assert there.generate("a", max_tokens=20).token_ids
        until(lambda: server.sessions.n_waiting == 0)  # a device that does not ask gets no more
        socket.close_socket()
