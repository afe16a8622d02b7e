"""Devices against a real server on loopback: the same text, whatever the connection does."""

import json
import logging
import threading

import numpy as np
import pytest

from edgespec import (
    ConfigError,
    ContextFull,
    ToyTokenizer,
    VerifierFault,
    VerifierRefused,
    VerifierUnavailable,
    protocol,
)
from edgespec.config import RemoteConfig, SpeculativeConfig
from edgespec.costs.curves import Curve
from edgespec.costs.online import Costs
from edgespec.costs.profiles import Profile
from edgespec.drafters.base import DrafterContext
from edgespec.engine import Engine
from edgespec.loading.assembly import speculate
from edgespec.protocol import decode, encode
from edgespec.verifiers.remote import RemoteVerifier
from tests.helpers.branching import tree_device
from tests.helpers.delaying import Proxy
from tests.helpers.serving import (
    TOKENIZER,
    WORDS,
    N,
    Server,
    closing,
    device,
    disturbed,
    drafted_ahead,
    introduce,
    local,
    plainly,
    toy,
)

PROMPTS = ["the cat sat on the mat", "a", "abcabcabcabcabcab", "to be or not to be that is"]
GREEDY = {"max_tokens": 60}
DRAWN = {"max_tokens": 60, "temperature": 0.9, "seed": 11}
PENALTIES = {
    "max_tokens": 60, "temperature": 0.7, "seed": 3, "top_p": 0.9, "repetition_penalty": 1.3,
    "presence_penalty": 0.4, "frequency_penalty": 0.2, "logit_bias": {4: -5.0},
}  # fmt: skip


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
    """The draft model is the target itself: what it evaluated ahead comes true, and costs nothing
    when it is drafted.
    """
    with Proxy(server.port, 0.01) as proxy, closing(device(proxy.url)) as there:
        seen = drafted_ahead(there)
        there.generate(PROMPTS[0], max_tokens=100, ignore_eos=True)
    own = [step for step, draft in seen if draft.source == "draft_model"]
    assert own
    assert all(step.n_accepted == step.n_drafted for step in own)
    assert any(not step.draft_evaluated for step in own)


class Believed(Costs):
    """Costs that are believed, whatever is measured."""

    def observe(self, stats, n_past):
        """Correct nothing."""


def test_auto_drafts_on_from_what_was_guessed_ahead(server):
    """Drafters and policy as `connect` puts them together, with costs that make drafts pay."""
    config = SpeculativeConfig("suffix,draft_model", draft_memory="off")
    context = DrafterContext(config, N, draft_model=toy(), max_leaves=8)
    curves = [Curve((1,), (1, 99), ((seconds, seconds),)) for seconds in (0.03, 1e-9)]
    made = speculate(context, lambda: Believed(Profile(*curves)))
    with Proxy(server.port, 0.01) as proxy:
        verifier = RemoteVerifier(RemoteConfig(proxy.url), TOKENIZER)
        with closing(Engine([made.session(verifier)], TOKENIZER)) as there:
            seen = drafted_ahead(there)
            for prompt in PROMPTS:
                done = there.generate(prompt, **DRAWN)
                assert done.token_ids == local(drafts=False).generate(prompt, **DRAWN).token_ids
    assert any(not step.draft_evaluated for step, _ in seen)


def test_plain_steps_are_not_asked_for_one_by_one(server):
    with Proxy(server.port) as proxy, closing(device(proxy.url, drafts=False)) as there:
        there.generate("a", max_tokens=2)
        before = proxy.bytes_up
        there.generate(PROMPTS[0], max_tokens=100, ignore_eos=True)
        assert proxy.bytes_up - before < 400


def test_a_conversation_sends_only_what_is_new(server):
    with closing(device(server.url)) as there:
        verifier = there.sessions[0]._verifier
        said = there.generate("ab" * 90, max_tokens=8, ignore_eos=True)
        before = verifier.bytes_sent
        again = there.generate(
            [*there.encode("ab" * 90), *said.token_ids, 1, 2], max_tokens=1, ignore_eos=True
        )
        assert again.stats.num_cached_tokens >= 180
        assert verifier.bytes_sent - before < 150


@pytest.mark.parametrize("make", [device, tree_device])
def test_log_probabilities(server, make):
    here = local(drafts=False)
    with closing(make(server.url)) as there:
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


def test_pictures_do_not_travel(server):
    with (
        closing(device(server.url)) as there,
        pytest.raises(ConfigError, match="on another machine, which is sent token ids alone"),
    ):
        there.chat().send(["What is it?", np.zeros((8, 8, 3), np.uint8)])


def test_a_seed_is_needed_to_draw(server):
    class NoSeed:
        pass

    with closing(device(server.url)) as there:
        from edgespec import SamplingParams
        from edgespec.sampling.base import Request

        verifier = there.sessions[0]._verifier
        with pytest.raises(ConfigError, match="seed"):
            verifier.begin(Request([1], SamplingParams(temperature=1.0), NoSeed()))


# --- the connection ---


@pytest.mark.parametrize("options", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("after", range(0, 40, 3))
def test_cut_between_any_two_messages(server, options, after):
    options = options | {"max_tokens": 120, "ignore_eos": True}
    expected = local(drafts=False).generate(PROMPTS[0], **options)
    with Proxy(server.port) as proxy, closing(device(proxy.url)) as there:
        proxy.cut_after = after
        done = there.generate(PROMPTS[0], **options)
        assert done.token_ids == expected.token_ids
        assert proxy.cut_after is None, "the answer took fewer messages"


def test_cut_while_plain_tokens_come(server):
    options = {"max_tokens": 100, "ignore_eos": True}
    expected = local(drafts=False).generate(PROMPTS[0], **options)
    with Proxy(server.port) as proxy, closing(device(proxy.url, drafts=False)) as there:
        shown = disturbed(there, proxy.cut, [7, 40, 90], PROMPTS[0], **options)
        assert shown == expected.token_ids


@pytest.mark.parametrize("drafts", [False, True])
def test_a_server_that_is_killed_and_comes_back(drafts):
    expected = local(drafts=False).generate(PROMPTS[0], **DRAWN)
    with Server() as server, closing(device(server.url, drafts=drafts)) as there:
        starting = threading.Thread(target=server.start)

        def restart():
            server.stop()
            starting.start()

        shown = disturbed(there, restart, [11], PROMPTS[0], **DRAWN)
        starting.join()
        assert shown == expected.token_ids


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
    with Proxy(server.port) as proxy, closing(device(proxy.url)) as there:
        there.generate("a", max_tokens=2)
        proxy.delay_s = 2.0
        threading.Timer(0.2, there.cancel).start()
        done = there.generate(PROMPTS[0], **GREEDY)
        assert (done.finish_reason, done.token_ids) == ("cancelled", ())  # no verdict came
        proxy.delay_s = 0.0
        expected = local(drafts=False).generate(PROMPTS[0], **GREEDY)
        assert there.generate(PROMPTS[0], **GREEDY).token_ids == expected.token_ids


def test_time_limit_while_the_server_is_away():
    server = Server()
    with closing(device(server.url, timeout_s=30)) as there:
        server.stop()
        assert there.generate("a", max_tokens=5, time_limit_s=0.2).finish_reason == "time_limit"


def test_a_server_that_says_nothing(server):
    with Proxy(server.port) as proxy, closing(device(proxy.url, timeout_s=0.3)) as there:
        proxy.delay_s = 100.0
        with pytest.raises(VerifierUnavailable, match=r"not answered|no verification server"):
            there.generate("a", **GREEDY)


# --- who may ---


def test_keys():
    with Server(keys=("one", "two")) as server:
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
    for name in ("toy", "toy.gguf"):
        device(f"{server.url}/", model=name).close()


def test_wrong_vocabularies(server):
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


@pytest.mark.parametrize("offered", [[], ["chat", "x"]])
def test_a_device_without_our_subprotocol_is_told_which_there_are(server, offered):
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    with pytest.raises(InvalidStatus) as refused, connect(
        server.url + "/v1/verify", subprotocols=offered or None
    ):  # fmt: skip
        pass
    assert refused.value.response.status_code == 400
    message = json.loads(refused.value.response.body)["error"]["message"]
    assert message.startswith("devices speak the subprotocol edgespec.verify.v2, got")
    assert message.endswith(f"got {', '.join(offered) or 'none'}")


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


def lying(answers, version=protocol.VERSION, subprotocols=(protocol.SUBPROTOCOL,)):
    """Start a server that answers OPEN, and VERIFY with what it is told to."""
    from websockets.sync.server import serve

    opened = protocol.Opened(
        version, bytes(range(16)), 256, 15, 32, N, protocol.vocabulary_hash(TOKENIZER, N), "toy"
    )

    def handle(socket):
        for data in socket:
            frame = decode(data)
            if isinstance(frame, protocol.Open):
                socket.send(encode(opened))
            if isinstance(frame, protocol.Verify):
                for answer in answers:
                    socket.send(answer(frame) if callable(answer) else answer)

    server = serve(handle, "127.0.0.1", 0, subprotocols=subprotocols)
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
