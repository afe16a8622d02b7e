"""Several requests at once on one engine: who gets which slot, and when."""

import asyncio
import contextlib
import dataclasses
import itertools
import threading
import time

import numpy as np
import pytest

from edgespec import (
    ConfigError,
    EdgeSpecError,
    Engine,
    EngineBusy,
    SpeculativeConfig,
    ToyModel,
    ToyTokenizer,
    connect,
    drafters,
)
from edgespec.decoding import slots as slots_module
from edgespec.decoding.interrupt import Interrupt
from edgespec.decoding.owners import OwnRates, RatesStore
from edgespec.decoding.session import Session
from edgespec.decoding.slots import Slots
from edgespec.drafters.base import DrafterContext, Shared
from edgespec.policies.fixed import FixedDepth
from edgespec.types import EngineStatus, RequestStatus
from edgespec.verifiers.local import LocalVerifier

VOCAB = [*"abcdefgh", "."]
N = len(VOCAB)
TOKENIZER = ToyTokenizer(VOCAB, [8], "{{ messages[-1].content }}")
TABLE = np.zeros((N, N))
TABLE[np.arange(N), (np.arange(N) + 1) % (N - 1)] = 1.0


class Target(ToyModel):
    """Counts up, with a place at which an evaluation can be stopped. closed: it was freed."""

    def __init__(self):
        super().__init__(TABLE, n_ctx=100_000)
        self.closed = False

    def decode(self, *given):
        time.sleep(0.001)
        assert not self.closed
        return super().decode(*given)

    def close(self):
        self.closed = True


def engine(n=2, **options):
    """Return an engine with `n` slots."""
    targets = [Target() for _ in range(n)]
    sessions = [Session(LocalVerifier(target), [], FixedDepth(0)) for target in targets]
    made = Engine(sessions, TOKENIZER, **options)
    made.targets = targets
    return made


@contextlib.contextmanager
def running(made, owner="", prompt="abc", **given):
    """Run an endless request in a thread of its own; yield a list that gets its completion."""
    began, ended = threading.Event(), []

    def read():
        for event in made.stream(prompt, owner=owner, ignore_eos=True, max_tokens=10**6, **given):
            if event.token is not None:
                began.set()
            ended.extend([event.completion] if event.completion else [])

    thread = threading.Thread(target=read)
    thread.start()
    assert began.wait(20)
    try:
        yield ended
    finally:
        made.cancel()
        thread.join(20)
    assert not thread.is_alive()


def test_as_many_requests_run_at_once_as_there_are_slots():
    with engine(3) as made:
        with running(made), running(made, prompt="bcd"):
            assert made.generate("cde", max_tokens=3).text == "fgh"
        streams = [made.stream(prompt, max_tokens=4) for prompt in ("abc", "bcd", "cde")]
        rounds = [list(filter(None, each)) for each in itertools.zip_longest(*streams)]
        last = {event.completion.text for each in rounds for event in each if event.completion}
        assert last == {"defg", "efgh", "fgha"}


def test_a_thread_may_read_as_many_streams_as_there_are_slots():
    with engine(2) as made:
        streams = [made.stream("abc", max_tokens=4) for _ in range(3)]
        for each in streams[:2]:
            next(each)
        with pytest.raises(EngineBusy, match="this thread"):
            next(streams[2])
        streams[0].close()
        assert made.generate("abc", max_tokens=2).text == "de"
        made.idle_work.add(Work())
        with pytest.raises(EngineBusy, match="this thread"):
            made.measure()


def test_requests_that_wait_get_slots_in_the_order_of_their_arrival():
    slots, order = Slots(SESSIONS[:2], "wait", list), []
    threads = []

    def ask(number):
        with slots.held(Interrupt(None)):
            order.append(number)

    with slots.held(Interrupt(None)), slots.held(Interrupt(None)):
        for number in range(8):
            threads.append(threading.Thread(target=ask, args=(number,)))
            threads[-1].start()
            wait_until(lambda number=number: len(slots._waiting) == number + 1)
    for thread in threads:
        thread.join(20)
    assert order == list(range(8))


class Cached:
    """Stands for a session: it has cached a text of one owner."""

    def __init__(self, text="", owner=""):
        self.text, self.owner = text, owner

    def n_reusable(self, owner, prompt):
        if owner != self.owner:
            return 0
        pairs = zip(self.text, prompt, strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


SESSIONS = [Cached(), Cached(), Cached()]


def test_a_request_gets_the_slot_that_has_most_of_its_prompt():
    cached = [Cached("x" * 50), Cached("a" * 30 + "b" * 30), Cached("a" * 40, "another")]
    slots = Slots(cached, "wait", list)

    def chosen(prompt, owner=""):
        with slots.held(Interrupt(None), owner, prompt) as session:
            return cached.index(session)

    assert chosen("a" * 40) == 1
    assert chosen("a" * 40, "another") == 2
    assert chosen("x" * 60) == 0
    assert chosen("a" * 40, "third") == 1  # the one used least recently
    assert chosen("x" + "y" * 60) == 2  # one token in common is not worth a conversation
    with slots.held(Interrupt(None), "", "x" * 60):
        assert chosen("x" * 60) == 1  # what is taken cannot be chosen


def test_alternating_conversations_keep_a_slot_each():
    with engine(2) as made:
        texts = ["abcdefgh" * 5, "abcabcabc" * 5]
        cached = []
        for _, i in itertools.product(range(3), range(2)):
            done = made.generate(texts[i], max_tokens=3)
            texts[i] += done.text + "abc"
            cached.append(done.stats.num_cached_tokens)
        assert cached[:2] == [0, 0]
        assert min(cached[2:]) > 30


@pytest.mark.parametrize("wants_all", [False, True])
def test_idle_work_holds_all_slots_and_needs_all_of_them(wants_all):
    slots = Slots(SESSIONS, "wait", list)
    hold = slots.between_requests if wants_all else slots.turn
    with slots.held(Interrupt(None)), slots.between_requests() as held:
        assert not held
    with hold() as held:
        assert held
        with slots.between_requests() as again:
            assert not again
        with slots.held(Interrupt(0.05)) as session:
            assert session is None
    with slots.held(Interrupt(None)) as session:
        assert session


def test_a_turn_waits_until_all_requests_have_ended_but_not_for_ever(monkeypatch):
    slots, began = Slots(SESSIONS, "wait", list), threading.Event()
    got = []

    def turn():
        began.set()
        with slots.turn() as held:
            got.append(held)

    thread = threading.Thread(target=turn)
    with slots.held(Interrupt(None)):
        thread.start()
        wait_until(lambda: slots._is_draining)
        with slots.held(Interrupt(None)) as own:  # this thread must not wait for itself
            assert own
        later = threading.Thread(target=lambda: got.append(_held(slots)))
        later.start()
        wait_until(lambda: slots._waiting)
        assert not got
    thread.join(20)
    later.join(20)
    assert got == [True, True]
    monkeypatch.setattr(slots_module, "_DRAIN_S", 0.01)
    with slots.held(Interrupt(None)), slots.turn() as held:
        assert not held
    with slots.held(Interrupt(None)):
        assert not slots._is_draining


def _held(slots):
    with slots.held(Interrupt(None)) as session:
        return session is not None


class Work:
    """Work that notes how many requests run meanwhile."""

    doing, urgent = "counting", False

    def run(self, abort):
        self.n_waiting = abort()
        return True


def test_measuring_waits_for_all_running_requests():
    with engine(2) as made:
        work, done = Work(), []
        made.idle_work.add(work)
        with running(made):
            assert not made.measure(time_limit_s=0.1)
            thread = threading.Thread(target=lambda: done.append(made.measure()))
            thread.start()
            wait_until(lambda: made._slots.wanted)
        thread.join(20)
        assert done == [True]


def test_cancel_reaches_all_running_requests():
    with engine(2) as made, running(made) as one, running(made) as other:
        made.cancel()
        wait_until(lambda: one and other)
        assert {each[0].finish_reason for each in (one, other)} == {"cancelled"}


def test_the_models_are_freed_when_the_last_request_has_ended():
    made = engine(3)
    first, second = (made.stream("abc", ignore_eos=True) for _ in range(2))
    next(first), next(second)
    made.close()
    assert list(first)[-1].completion.finish_reason == "cancelled"
    assert not any(target.closed for target in made.targets)
    assert list(second)[-1].completion.finish_reason == "cancelled"
    assert all(target.closed for target in made.targets)
    with pytest.raises(EdgeSpecError, match="closed"):
        made.generate("abc")


def test_an_engine_whose_slots_are_taken_may_refuse_requests():
    with engine(2, on_busy="error") as made, running(made):
        assert made.generate("abc", max_tokens=1).text == "d"
        with running(made), pytest.raises(EngineBusy, match="2 requests are running"):
            made.generate("abc")


def test_a_request_may_say_what_it_does_if_all_slots_are_taken():
    with engine(1) as made, running(made):
        for ask in (made.generate, made.chat().send):
            with pytest.raises(EngineBusy, match="cancel"):
                ask("abc", on_busy="error")
        with pytest.raises(ConfigError, match="wait, error or replace, got 'cry'"):
            made.generate("abc", on_busy="cry")


def test_a_request_replaces_the_one_of_its_owner_that_began_first():
    with (
        engine(3) as made,
        running(made, "one") as first,
        running(made, "two") as other,
        running(made, "one") as second,
    ):
        done = made.generate("abc", owner="one", max_tokens=2, on_busy="replace")
        assert (done.text, done.finish_reason) == ("de", "length")
        wait_until(lambda: first)
        assert first[0].finish_reason == "cancelled"
        assert first[0].text.startswith("de")
        assert not other
        assert not second
        assert made.generate("abc", owner="one", max_tokens=2, on_busy="replace").text == "de"
        assert not second  # a slot was free


def test_a_request_without_one_to_replace_waits():
    with engine(2) as made, running(made, "two"), running(made, "two"):
        done = made.generate("abc", owner="one", on_busy="replace", time_limit_s=0.2)
        assert (done.finish_reason, done.token_ids) == ("time_limit", ())


def test_a_slot_that_was_replaced_goes_to_no_other_request():
    slots = Slots(SESSIONS[:1], "wait", list)
    order, first = [], Interrupt(None)

    def ask(name, on_busy):
        with slots.held(Interrupt(None), "", (), on_busy):
            order.append(name)

    threads = []
    with slots.held(first):
        for n, (name, on_busy) in enumerate([("waits", "wait"), ("replaces", "replace")], 1):
            threads.append(threading.Thread(target=ask, args=(name, on_busy)))
            threads[-1].start()
            wait_until(lambda n=n: len(slots._waiting) == n)
        wait_until(lambda: first() == "cancelled")
    for thread in threads:
        thread.join(20)
    assert order == ["replaces", "waits"]


def test_a_request_that_replaces_and_is_cancelled_meanwhile_leaves_the_slot():
    slots, replacing = Slots(SESSIONS[:1], "wait", list), Interrupt(None)
    with slots.held(Interrupt(None)):
        threading.Timer(0.1, replacing.cancel).start()
        thread = threading.Thread(target=lambda: _replace(slots, replacing))
        thread.start()
        thread.join(20)
    with slots.held(Interrupt(None)) as session:
        assert session


def _replace(slots, interrupt):
    with slots.held(interrupt, on_busy="replace") as session:
        assert session is None


def test_many_requests_with_random_ends_leave_every_slot_free():
    with engine(3) as made:
        rng, texts = np.random.default_rng(7), []

        def ask(n):
            stream = made.stream("abc", max_tokens=1 + n % 5, on_busy=("wait", "replace")[n % 2])
            if n % 3 == 0:
                threading.Timer(n % 7 * 1e-3, stream.cancel).start()
            for event in stream:
                if event.completion:
                    texts.append(event.completion)

        threads = [threading.Thread(target=ask, args=(int(rng.integers(100)),)) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(texts) == 40
        assert all("defgh".startswith(each.text) for each in texts)
        assert {each.finish_reason for each in texts} <= {"length", "cancelled"}
        assert not made._slots._waiting
        with made._slots.between_requests() as held:
            assert held


def wait_until(true):
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_stream_can_be_cancelled_from_any_thread_and_only_itself():
    with engine(2) as made:
        other = made.stream("abc", ignore_eos=True)
        stream = made.stream("abc", ignore_eos=True)
        next(other), next(stream)
        thread = threading.Thread(target=stream.cancel)
        thread.start()
        thread.join()
        done = list(stream)[-1].completion
        assert done.finish_reason == "cancelled"
        assert next(other).token is not None
        stream.cancel()  # harmless after its end
        other.close()
        assert made.generate("abc", max_tokens=1).text == "d"


@pytest.mark.parametrize("chat", [False, True])
def test_a_stream_can_be_cancelled_before_its_first_event(chat):
    with engine(1) as made:
        stream = (made.chat().stream if chat else made.stream)("abc")
        stream.cancel()
        done = list(stream)[-1].completion
        assert (done.text, done.finish_reason) == ("", "cancelled")


def test_an_async_stream_can_be_cancelled_and_read_on():
    async def main(made):
        waiting, stream = made.astream("abc"), made.astream("abc", ignore_eos=True)
        waiting.cancel()
        assert [e async for e in waiting][-1].completion.finish_reason == "cancelled"
        await anext(stream)
        stream.cancel()
        assert [e async for e in stream][-1].completion.finish_reason == "cancelled"

    with engine(1) as made:
        asyncio.run(main(made))


def test_the_status_says_what_runs_and_how_many_wait():
    with engine(2) as made:
        assert made.status() == EngineStatus(2, 0, ())
        with running(made, "one", "abcd"), made.stream("ab", owner="two", max_tokens=9) as own:
            next(own)  # its prompt is not read yet
            first, second = made.status().running
            assert (first.slot, first.state, first.num_prompt_tokens) == (0, "answering", 4)
            assert (first.num_read_tokens, first.num_emitted_tokens > 0) == (4, True)
            assert dataclasses.replace(second, running_s=0) == RequestStatus(
                1, "reading", 2, 0, 0, 0
            )
            assert 0 <= second.running_s < 20
            while next(own).token is None:
                pass
            (second,) = made.status("two").running
            assert (second.slot, second.state, second.num_read_tokens) == (1, "answering", 2)
            assert second.num_emitted_tokens == 1
            assert made.status("").running == ()
            waiting = threading.Thread(target=lambda: made.generate("abc", max_tokens=1))
            waiting.start()
            wait_until(lambda: made.status().n_waiting == 1)
            own.close()
            waiting.join(20)
            assert [each.slot for each in made.status().running] == [0]
            assert made.status().n_waiting == 0


def test_an_owners_next_answer_drafts_from_what_it_got_in_another_slot():
    shared, store, made, recycling = Shared(), RatesStore(), [], []
    for _ in range(2):
        config = SpeculativeConfig("memory, recycling")
        context = DrafterContext(config, N, tokenizer=TOKENIZER, shared=shared)
        parts = drafters.make(drafters.chosen(config.method), context)
        rates = OwnRates(parts, store=store)
        session = Session(LocalVerifier(Target()), parts, FixedDepth(3, max_leaves=8), rates=rates)
        made.append(session)
        recycling.append(next(part for part in parts if part.name == "recycling"))
    with Engine(made, TOKENIZER) as engine:
        before = engine.generate("abcd", owner="one", max_tokens=16, ignore_eos=True)
        assert [len(session._verifier._cache.tokens) > 0 for session in made] == [True, False]
        with engine.stream("gh", owner="two", max_tokens=9) as other:
            next(other)  # it takes the second slot, which is empty
            engine.generate("ef", owner="two", max_tokens=3)  # the first slot
        with engine.stream("ef", owner="two", max_tokens=9) as other:
            next(other)
            after = engine.stream("abcd", owner="one", max_tokens=16, ignore_eos=True)
            next(after)
            assert [each.slot for each in engine.status("one").running] == [1]
            after = list(after)[-1].completion
        assert before.token_ids == after.token_ids
        sources = "+".join(after.stats.drafts_by_source)
        assert "memory" in sources
        assert "recycling" in sources
        accepted = [done.stats.num_accepted_draft_tokens for done in (before, after)]
        assert accepted[0] < accepted[1]
        engine.generate("ab", max_tokens=3)
        known = [drafter.learned_tokens()["recycling"].tolist() for drafter in recycling]
        assert known[0] == known[1] != []


def test_a_target_on_another_machine_has_one_slot():
    with pytest.raises(ConfigError, match="n_slots is 2, but a target on another machine"):
        connect("ws://127.0.0.1:1", n_slots=2)
