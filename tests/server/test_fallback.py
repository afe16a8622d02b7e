"""A remote target with a local one beside it."""

import threading
import time

import pytest

from edgespec import VerifierRefused, VerifierUnavailable
from edgespec.config import RemoteConfig
from edgespec.verifiers.fallback import Fallback
from edgespec.verifiers.local import LocalVerifier
from edgespec.verifiers.remote import RemoteVerifier
from tests.helpers.serving import TOKENIZER, Server, closing, engine, local, toy

PROMPT = "the cat sat on the mat"
OPTIONS = [
    {"max_tokens": 60, "ignore_eos": True},
    {"max_tokens": 60, "ignore_eos": True, "temperature": 0.9, "seed": 4,
     "presence_penalty": 0.8, "frequency_penalty": 0.3, "repetition_penalty": 1.2},
]  # fmt: skip


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def beside(server, clock=None, seed=1, **options):
    def reach():
        return RemoteVerifier(RemoteConfig(server.url, timeout_s=0.3), TOKENIZER)

    return Fallback(reach, LocalVerifier(toy(seed)), clock=clock or Clock(), **options)


def told(events):
    """Notices, tokens."""
    events = list(events)
    notices = [event.text for event in events if event.type == "notice"]
    return notices, [event.token for event in events if event.type == "token"]


@pytest.mark.parametrize("options", OPTIONS, ids=["greedy", "penalties"])
@pytest.mark.parametrize("drafts", [False, True])
def test_the_server_goes_in_the_middle_of_an_answer(options, drafts):
    expected = local(drafts=False).generate(PROMPT, **options).token_ids
    clock, server = Clock(), Server()
    with closing(engine(beside(server, clock), drafts=drafts)) as both:
        shown, notices, stopped = [], [], False
        for event in both.stream(PROMPT, **options):
            shown += [event.token] if event.type == "token" else []
            notices += [event.text] if event.type == "notice" else []
            if len(shown) > 12 and not stopped:
                server.stop()
                stopped = True
        assert tuple(shown) == expected
        assert len(notices) == 1
        assert notices[0].endswith("the local target answers")
        assert told(both.stream(PROMPT, **options)) == ([], list(expected))
        server.start()
        clock.now += 16
        assert told(both.stream(PROMPT, **options)) == (
            ["the verification server is back"], list(expected)
        )  # fmt: skip
        assert not both.sessions[0]._verifier.is_local
        server.stop()


def test_nobody_there_from_the_beginning():
    server = Server()
    server.stop()
    with closing(engine(beside(server))) as both:
        notices, tokens = told(both.stream(PROMPT, **OPTIONS[0]))
    assert "no verification server answers" in notices[0]
    assert tuple(tokens) == local(drafts=False).generate(PROMPT, **OPTIONS[0]).token_ids


def test_a_server_that_goes_between_two_answers():
    server = Server()
    with closing(engine(beside(server))) as both:
        both.generate(PROMPT, **OPTIONS[0])
        server.stop()
        notices, tokens = told(both.stream(PROMPT, **OPTIONS[0]))
    assert len(notices) == 1
    assert tuple(tokens) == local(drafts=False).generate(PROMPT, **OPTIONS[0]).token_ids


def test_the_faster_of_two_equals_answers():
    with Server() as server:
        for same, fast in ((True, 1e-9), (True, 10.0), (False, 1e-9)):
            both = beside(server, same=lambda remote, same=same: same, local_s=fast)
            both._clock = time.perf_counter
            with closing(engine(both)) as asked:
                asked.generate(PROMPT, **OPTIONS[0])
                assert not both.is_local, "what the server takes is not known yet"
                notices, tokens = told(asked.stream(PROMPT, **OPTIONS[0]))
                assert both.is_local == (same and fast < 1)
                assert bool(notices) == both.is_local
                assert len(tokens) == 60


def test_a_refusal_is_no_absence():
    """A wrong key is the user's to mend; the local target does not cover it up."""
    with Server(keys=("another",)) as server, pytest.raises(VerifierRefused):
        beside(server)


def test_a_verifier_that_waits_for_each_answer():
    """An inference server of others has no second half; one that goes away is as well replaced."""

    class Far(LocalVerifier):
        left = 10

        def verify(self, draft):
            self.left -= 1
            if self.left < 0:
                raise VerifierUnavailable("gone")
            return super().verify(draft)

    both = Fallback(lambda: Far(toy(1)), LocalVerifier(toy(1)), clock=Clock())
    with closing(engine(both)) as asked:
        notices, tokens = told(asked.stream(PROMPT, **OPTIONS[0]))
    assert notices == ["gone; the local target answers"]
    assert tuple(tokens) == local(drafts=False).generate(PROMPT, **OPTIONS[0]).token_ids


def test_nobody_waits_for_a_network_that_swallows_everything():
    """The attempt goes on beside the answer; the next request finds what it has found."""
    reached, may, clock = [], threading.Event(), Clock()

    def reach():
        reached.append(True)
        if len(reached) == 1:
            raise VerifierUnavailable("nobody there")
        may.wait(10)
        return LocalVerifier(toy(1))

    both = Fallback(reach, LocalVerifier(toy(1)), clock=clock)
    with closing(engine(both)) as asked:
        clock.now += 20
        for _ in range(2):
            asked.generate(PROMPT, **OPTIONS[0])
            assert both.is_local
        may.set()
        notices, _ = told(asked.stream(PROMPT, **OPTIONS[0]))
        assert notices == ["the verification server is back"]
        assert len(reached) == 2
