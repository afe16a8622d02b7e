"""Devices against a real server on loopback: the same text, whatever the connection does."""

import contextlib
import logging
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from edgespec import (
    ConfigError,
    ContextFull,
    ToyTokenizer,
    VerifierFault,
    VerifierRefused,
    VerifierUnavailable,
    protocol,
)
from edgespec.config import RemoteConfig
from edgespec.protocol import decode, encode
from tests.helpers.delaying import Proxy
from tests.helpers.serving import TOKENIZER, WORDS, N, Server, closing, device, local, served

PROMPTS = ["the cat sat on the mat", "a", "abcabcabcabcabcab", "to be or not to be that is"]
GREEDY = {"max_tokens": 60}
DRAWN = {"max_tokens": 60, "temperature": 0.9, "seed": 11}
PENALTIES = {
    "max_tokens": 60, "temperature": 0.7, "seed": 3, "top_p": 0.9, "repetition_penalty": 1.3,
    "presence_penalty": 0.4, "frequency_penalty": 0.2, "logit_bias": {4: -5.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@pytest.mark.parametrize(
    "options", [GREEDY, DRAWN, PENALTIES], ids=["greedy", "drawn", "penalties"]
)
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("draft_seed", [1, 2])
def test_text_is_that_of_one_machine(server, options, drafts, draft_seed):
    """With a draft that is the target itself every guess comes true, with another one few do."""
    here = local(drafts=False)
    with closing(device(server.url, drafts=drafts, draft_seed=draft_seed)) as there:
        for prompt in PROMPTS:
            assert there.generate(prompt, **options).token_ids == (
                here.generate(prompt, **options).token_ids
            )


def test_what_was_guessed_ahead_is_used(server):
    proxy = Proxy(server.port, 0.01)
    with closing(device(f"ws://127.0.0.1:{proxy.port}")) as there:
        done = there.generate(PROMPTS[0], max_tokens=100, ignore_eos=True)
    proxy.close()
    sources = done.stats.drafts_by_source
    assert sources["ahead"]["accepted"] == sources["ahead"]["drafted"] > 0


def test_plain_steps_are_not_asked_for_one_by_one(server):
    proxy = Proxy(server.port)
    with closing(device(f"ws://127.0.0.1:{proxy.port}", drafts=False)) as there:
        there.generate("a", max_tokens=2)
        before = proxy.bytes_up
        there.generate(PROMPTS[0], max_tokens=100, ignore_eos=True)
        assert proxy.bytes_up - before < 400
    proxy.close()


def test_a_conversation_sends_only_what_is_new(server):
    with closing(device(server.url)) as there:
        verifier = there._session._verifier
        said = there.generate("ab" * 90, max_tokens=8, ignore_eos=True)
        before = verifier.bytes_sent
        again = there.generate(
            [*there.encode("ab" * 90), *said.token_ids, 1, 2], max_tokens=1, ignore_eos=True
        )
        assert again.stats.num_cached_tokens >= 180
        assert verifier.bytes_sent - before < 150


def test_log_probabilities(server):
    here = local(drafts=False)
    with closing(device(server.url)) as there:
        a = there.generate(PROMPTS[0], **DRAWN, logprobs=3).logprobs
        b = here.generate(PROMPTS[0], **DRAWN, logprobs=3).logprobs
    assert [[t for t, _ in one.top] for one in a] == [[t for t, _ in one.top] for one in b]
    assert [one.logprob for one in a] == pytest.approx([one.logprob for one in b], rel=1e-5)


def test_stop_strings_and_end_tokens(server):
    here = local(drafts=False)
    with closing(device(server.url)) as there:
        whole = here.generate(PROMPTS[0], **GREEDY).text
        stop = whole[20:22]
        a = there.generate(PROMPTS[0], **GREEDY, stop=stop)
        assert a.text == here.generate(PROMPTS[0], **GREEDY, stop=stop).text
        ended = there.generate(PROMPTS[0], max_tokens=200, logit_bias={27: 30.0})
        assert ended.finish_reason == "stop"
        assert there.generate(PROMPTS[1], **GREEDY).text == here.generate(PROMPTS[1], **GREEDY).text


def test_the_context_ends(server):
    with closing(device(server.url)) as there:
        assert there.generate("ab" * 120, ignore_eos=True).finish_reason == "context_full"
        with pytest.raises(ContextFull, match="the server's context 256"):
            there.generate([1] * 257)
        assert there.generate("a", max_tokens=3).token_ids


def test_a_seed_is_needed_to_draw(server):
    class NoSeed:
        pass

    with closing(device(server.url)) as there:
        from edgespec import SamplingParams
        from edgespec.sampling.base import Request

        verifier = there._session._verifier
        with pytest.raises(ConfigError, match="seed"):
            verifier.begin(Request([1], SamplingParams(temperature=1.0), NoSeed()))


# --- the connection ---


@pytest.mark.parametrize("options", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("after", range(0, 40, 3))
def test_cut_between_any_two_messages(server, options, after):
    proxy = Proxy(server.port)
    options = options | {"max_tokens": 120, "ignore_eos": True}
    expected = local(drafts=False).generate(PROMPTS[0], **options)
    with closing(device(f"ws://127.0.0.1:{proxy.port}")) as there:
        proxy.cut_after = after
        done = there.generate(PROMPTS[0], **options)
        assert done.token_ids == expected.token_ids
        assert proxy.cut_after is None, "the answer took fewer messages"
    proxy.close()


def test_cut_while_plain_tokens_come(server):
    proxy = Proxy(server.port)
    expected = local(drafts=False).generate(PROMPTS[0], max_tokens=100, ignore_eos=True)
    with closing(device(f"ws://127.0.0.1:{proxy.port}", drafts=False)) as there:
        shown = []
        for event in there.stream(PROMPTS[0], max_tokens=100, ignore_eos=True):
            if event.type == "token":
                shown.append(event.token)
                if len(shown) in (7, 40, 90):
                    proxy.cut()
        assert tuple(shown) == expected.token_ids
    proxy.close()


@pytest.mark.parametrize("drafts", [False, True])
def test_a_server_that_is_killed_and_comes_back(drafts):
    expected = local(drafts=False).generate(PROMPTS[0], **DRAWN)
    with Server() as server, closing(device(server.url, drafts=drafts)) as there:
        shown, restarting = [], None
        for event in there.stream(PROMPTS[0], **DRAWN):
            if event.type == "token":
                shown.append(event.token)
                if len(shown) > 10 and restarting is None:
                    server.stop()
                    restarting = threading.Thread(target=server.start)
                    restarting.start()
        restarting.join()
        assert tuple(shown) == expected.token_ids


def test_a_server_that_stays_away_and_a_chat_that_goes_on():
    server = Server()
    with closing(device(server.url, timeout_s=0.3)) as there:
        first = there.generate(PROMPTS[0], **GREEDY)
        server.stop()
        with pytest.raises(VerifierUnavailable, match=r"127\.0\.0\.1"):
            there.generate(PROMPTS[1], **GREEDY)
        server.start()
        assert there.generate(PROMPTS[0], **GREEDY).token_ids == first.token_ids
    server.stop()


def test_nobody_there():
    with pytest.raises(VerifierUnavailable, match="no verification server answers at 127"):
        device("ws://127.0.0.1:9")


@pytest.mark.parametrize("url", ["ws://", "ws://[bad", "ws://host:port"])
def test_no_address(url):
    with pytest.raises((ConfigError, VerifierUnavailable), match="no"):
        device(url)


def test_cancelled_while_waiting(server):
    proxy = Proxy(server.port)
    with closing(device(f"ws://127.0.0.1:{proxy.port}")) as there:
        there.generate("a", max_tokens=2)
        proxy.delay_s = 2.0
        threading.Timer(0.2, there.cancel).start()
        began = time.monotonic()
        done = there.generate(PROMPTS[0], **GREEDY)
        assert done.finish_reason == "cancelled"
        assert time.monotonic() - began < 2
        proxy.delay_s = 0.0
        expected = local(drafts=False).generate(PROMPTS[0], **GREEDY)
        assert there.generate(PROMPTS[0], **GREEDY).token_ids == expected.token_ids
    proxy.close()


def test_time_limit_while_the_server_is_away():
    server = Server()
    with closing(device(server.url, timeout_s=30)) as there:
        server.stop()
        assert there.generate("a", max_tokens=5, time_limit_s=0.2).finish_reason == "time_limit"


def test_a_server_that_says_nothing(server):
    proxy = Proxy(server.port)
    with closing(device(f"ws://127.0.0.1:{proxy.port}", timeout_s=0.3)) as there:
        proxy.delay_s = 100.0
        with pytest.raises(VerifierUnavailable, match=r"not answered|no verification server"):
            there.generate("a", **GREEDY)
    proxy.close()


# --- who may ---


def test_keys():
    def authorize(headers):
        return {"Bearer one": "1", "Bearer two": "2"}.get(headers.get("authorization"))

    with Server(authorize=authorize) as server:
        for key in (None, "three"):
            with pytest.raises(VerifierRefused, match="key"):
                device(server.url, api_key=key)
        with closing(device(server.url, api_key="one")) as there:
            assert there.generate("a", max_tokens=3).token_ids
        with plainly(server, key="one") as socket:
            token = introduce(socket).token
            for key, same in (("two", False), ("one", True)):
                with plainly(server, key=key) as other:
                    assert (introduce(other, token).token == token) == same


def test_wrong_model(server):
    with pytest.raises(VerifierRefused, match="'toy', not 'other'"):
        device(server.url, model="other")
    device(f"{server.url}/", model="toy").close()


def test_wrong_vocabularies(server):
    from edgespec.verifiers.remote import RemoteVerifier

    other = ToyTokenizer([*WORDS[:-1], "!"], eog=[27])
    with pytest.raises(VerifierRefused, match="vocabulary is not the target's"):
        RemoteVerifier(RemoteConfig(server.url), other)
    padded = ToyTokenizer([*WORDS, "<pad>"], eog=[27])
    RemoteVerifier(RemoteConfig(server.url), padded).close()
    wrong = ToyTokenizer([*WORDS[:-1], "!", "<pad>"], eog=[27])
    with pytest.raises(VerifierRefused, match="is not the device's"):
        RemoteVerifier(RemoteConfig(server.url), wrong)
    with pytest.raises(VerifierRefused, match="has 56 tokens"):
        RemoteVerifier(RemoteConfig(server.url), ToyTokenizer([*WORDS, *map(str, range(N))]))


def test_no_verification_server():
    import http.server

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    ) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        logging.getLogger("websockets").setLevel(logging.CRITICAL)
        with pytest.raises((VerifierRefused, VerifierUnavailable), match="127"):
            device(f"ws://127.0.0.1:{other.server_port}")
        other.shutdown()


def test_a_server_without_our_subprotocol():
    from websockets.sync.server import serve

    def silent(socket):
        for _ in socket:
            pass

    with serve(silent, "127.0.0.1", 0) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        port = other.socket.getsockname()[1]
        with pytest.raises(VerifierRefused, match="does not speak"):
            device(f"ws://127.0.0.1:{port}")
        other.shutdown()


# --- a server that lies ---


def lying(answers):
    """A server that answers OPEN, and VERIFY with what it is told to."""
    from websockets.sync.server import serve

    opened = protocol.Opened(
        1, bytes(range(16)), 256, 15, 32, N, protocol.vocabulary_hash(TOKENIZER, N), "toy"
    )

    def handle(socket):
        for data in socket:
            frame = decode(data)
            if isinstance(frame, protocol.Open):
                socket.send(encode(opened))
            if isinstance(frame, protocol.Verify):
                for answer in answers:
                    socket.send(answer(frame) if callable(answer) else answer)

    server = serve(handle, "127.0.0.1", 0, subprotocols=[protocol.SUBPROTOCOL])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"ws://127.0.0.1:{server.socket.getsockname()[1]}"


@pytest.mark.parametrize(("answers", "error", "said"), [
    ([b""], VerifierFault, "empty"),
    ([b"\xff\x00"], VerifierFault, "unknown type 255"),
    (["text"], VerifierFault, "binary"),
    ([encode(protocol.Cancel())], VerifierFault, "CANCEL"),
    ([lambda v: encode(protocol.Answer(v.round, 9, 1, 5))], VerifierFault, "accepted 9 of"),
    ([lambda v: encode(protocol.Answer(v.round, 0, N, 5))], VerifierFault, "token"),
    ([encode(protocol.Error(protocol.CONTEXT_FULL, "too long"))], ContextFull, "too long"),
    ([encode(protocol.Error(protocol.UNSUPPORTED, "cannot"))], VerifierRefused, "cannot"),
    ([encode(protocol.Busy(50, "full"))], VerifierUnavailable, "full"),
    ([encode(protocol.Need(0, 0))], VerifierFault, "context"),
])  # fmt: skip
def test_answers_that_are_none(answers, error, said):
    server, url = lying(answers)
    there = device(url, timeout_s=0.5, drafts=False)
    with closing(there), pytest.raises(error, match=said):
        there.generate(PROMPTS[0], **GREEDY)
    server.shutdown()


# --- devices that misbehave ---


@contextlib.contextmanager
def plainly(server, key=None):
    with connect(
        server.url + "/v1/verify",
        subprotocols=[protocol.SUBPROTOCOL],
        compression=None,
        additional_headers={"Authorization": f"Bearer {key}"} if key else None,
    ) as socket:
        yield socket


@contextlib.contextmanager
def raw(server):
    with plainly(server) as socket:
        introduce(socket)
        yield socket


def introduce(socket, token=protocol.NO_TOKEN):
    digest = protocol.vocabulary_hash(TOKENIZER, N)
    socket.send(encode(protocol.Open(1, token, N, digest, "")))
    return protocol.expect(protocol.Opened, decode(socket.recv(5)))


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
    """10,000 frames. Whatever comes, the session may end, and others do not notice."""

    @settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
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
    expected = local(drafts=False).generate(PROMPTS[0], **GREEDY)
    with closing(device(server.url)) as there:
        assert there.generate(PROMPTS[0], **GREEDY).token_ids == expected.token_ids


def test_a_flood(server):
    with Server(lambda: served(frames_per_s=5.0)) as slow, raw(slow) as socket:
        with contextlib.suppress(ConnectionClosed):
            for _ in range(200):
                socket.send(encode(protocol.Cancel()))
        with pytest.raises(ConnectionClosed):
            answers(socket, protocol.Answer)


# --- many ---


def test_fifty_at_once_each_with_its_own_text():
    """More sessions than the target has sequences: caches come and go."""
    expected, found = {}, {}
    texts = [f"{WORDS[i % 26]}{WORDS[i // 2 % 26]} said {WORDS[i % 7]}" for i in range(50)]
    here = local(drafts=False)
    for i, text in enumerate(texts):
        options = {"max_tokens": 24, "ignore_eos": True} | (
            {"temperature": 0.8, "seed": i} if i % 2 else {}
        )
        expected[i] = (text, options, here.generate(text, **options).token_ids)

    with Server(lambda: served(n=12)) as server:

        def run(i):
            text, options, _ = expected[i]
            with closing(device(server.url, drafts=i % 3 > 0, timeout_s=30)) as there:
                found[i] = there.generate(text, **options).token_ids

        threads = [threading.Thread(target=run, args=(i,)) for i in expected]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert {i: ids for i, (_, _, ids) in expected.items()} == found
        counts = server.sessions.counts
        assert counts.evictions > 0
        assert counts.evaluated_sequences > counts.evaluations, "nothing was evaluated together"


def test_a_thousand_sessions_leave_nothing():
    import resource

    with Server(lambda: served(max_sessions=64)) as server:
        for i in range(1000):
            with raw(server) as socket:
                socket.send(begin([1 + i % 20] * 20))
                if i % 2:
                    socket.close_socket()  # gone without a word
            if i == 300:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert len(server.sessions) <= 64
        assert after - before < 20_000, "KiB"
        expected = local(drafts=False).generate(PROMPTS[0], **GREEDY)
        with closing(device(server.url)) as there:
            assert there.generate(PROMPTS[0], **GREEDY).token_ids == expected.token_ids


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
        assert server.sessions.n_waiting == 0, "a device that does not ask gets no more"
        socket.close_socket()
