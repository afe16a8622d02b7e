"""A time limit or a cancel ends the work, whatever it is, and the next request begins."""

import itertools
import threading

import numpy as np
import pytest

import edgespec
from edgespec import Aborted, SamplingParams, ToyModel, ToyTokenizer
from edgespec.constraints import compiler
from edgespec.costs.governed import GovernedModel
from edgespec.costs.threads import ThreadGovernor
from edgespec.decoding import interrupt
from edgespec.device import LoadMeter
from edgespec.sampling.base import Request
from edgespec.sampling.randomness import SeededRandomness
from edgespec.types import NO_DRAFT
from edgespec.verifiers.local import LocalVerifier
from tests.helpers.neighbours import Limitable, Machine

VOCAB = [*"abcdefgh", "."]
PROBS = np.full((9, 9), 1 / 9)


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


class Blocking(ToyModel):
    """Evaluations for which cores are missing: from one of them on, they end only when stopped."""

    clock, blocks = Clock(), False

    def decode(self, tokens, n_logits=1, abort=None):
        self.clock.now += 0.01
        while self.blocks:
            self.clock.now += 0.02
            if abort and abort():
                raise Aborted("stopped from within")
            assert self.clock.now < 60, "nothing stops this evaluation"
        return super().decode(tokens, n_logits, abort)


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(interrupt, "time", Blocking.clock)
    Blocking.clock.now = 0.0
    model = Blocking(PROBS, n_ctx=400, max_batch=32)
    config = {"method": "none"}
    tokenizer = ToyTokenizer(VOCAB, [8], "{{ messages[-1].content }}")
    with edgespec.assemble(model, tokenizer, None, config) as made:
        yield made


@pytest.mark.parametrize("limit_s", [0.5, 2, 10])
@pytest.mark.parametrize("blocked_from", ["prefill", "decoding"])
def test_a_limit_ends_an_evaluation_that_would_not_end(engine, blocked_from, limit_s):
    clock, model = Blocking.clock, engine.target
    began = clock.now
    events = engine.stream("abcd" * 20, ignore_eos=True, time_limit_s=limit_s)
    for event in events:
        if (blocked_from, event.type) in (("prefill", "prefill"), ("decoding", "token")):
            model.blocks = True
        done = event.completion
    assert done.finish_reason == "time_limit"
    assert 0 <= clock.now - began - limit_s <= 0.25
    model.blocks = False
    began = clock.now
    assert len(engine.generate("abcd", max_tokens=3, ignore_eos=True).token_ids) == 3
    assert clock.now - began < 0.25


def test_a_cancel_ends_an_evaluation_that_would_not_end(engine):
    events = engine.stream("abcd", ignore_eos=True)
    next(events)
    engine.target.blocks = True
    asked, ask = itertools.count(), interrupt.Interrupt.__call__

    def cancelled_by_then(interrupt):
        if next(asked) == 5:
            engine.cancel()
        return ask(interrupt)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(interrupt.Interrupt, "__call__", cancelled_by_then)
        *_, last = events
    assert last.completion.finish_reason == "cancelled"
    engine.target.blocks = False
    assert engine.generate("abcd", max_tokens=3, ignore_eos=True).token_ids


@pytest.mark.parametrize("how", ["schema", "regex", "chat"])
def test_a_form_that_takes_longer_than_the_limit_ends_at_the_limit(engine, how, monkeypatch):
    compiling, go = threading.Event(), threading.Event()
    tried = compiler.Constraints._tried

    def slow(*args):
        compiling.set()
        assert go.wait(20)
        return tried(*args)

    monkeypatch.setattr(compiler.Constraints, "_tried", slow)
    wait = threading.Event()
    monkeypatch.setattr(  # time passes while somebody waits
        "concurrent.futures.wait", lambda *_: wait.wait(0.001) or _tick()
    )
    given = {"regex": "a+"} if how == "regex" else {"schema": {"type": "object"}}
    ask = engine.chat().send if how == "chat" else engine.generate
    done = ask("a", time_limit_s=2.0, **given)  # a toy model asks nobody before one token
    assert compiling.is_set()
    assert (done.finish_reason, done.token_ids) == ("time_limit", ())
    assert 2.0 <= Blocking.clock.now <= 2.25
    assert engine.generate("abcd", max_tokens=3, ignore_eos=True).token_ids  # nobody holds it
    go.set()


def _tick():
    Blocking.clock.now += 0.02
    return type("Waited", (), {"done": ()})


class Waiting(ToyModel):
    """Beside loops, evaluations with two threads end only when stopped."""

    machine = Machine()

    def decode(self, tokens, n_logits=1, abort=None):
        self.machine.now += 0.01
        while self.governor._n > 1 and self.machine.loops:
            self.machine.now += 0.02
            if abort and abort():
                raise Aborted("stopped from within")
            assert self.machine.now < 1000, "nothing stops this evaluation"
        return super().decode(tokens, n_logits, abort)


def test_an_evaluation_on_trial_is_stopped_and_done_again_with_the_same_rows():
    machine = Waiting.machine = Machine()
    model = Waiting(PROBS, n_ctx=4000)
    model.governor = governor = ThreadGovernor(
        [Limitable()], 2, n_cpus=2, meter=LoadMeter(machine._system, lambda: machine.own_s,
        lambda: machine.now), clock=lambda: machine.now,
    )  # fmt: skip
    verifier = LocalVerifier(GovernedModel(model, governor))
    list(verifier.begin(Request([1], SamplingParams(), SeededRandomness(1))))
    governor._use(1)
    governor._disturbed = governor._seen = True
    machine.loops, longest = 2, 0.0
    for _ in range(1500):
        began = machine.now
        verifier.accept(verifier.verify(NO_DRAFT).tokens)
        machine.busy_s += 2 * (machine.now - began)  # the loops'
        longest = max(longest, machine.now - began)
    assert governor.n_trials > 0
    assert 0.1 < longest < 0.15
    assert verifier._cache.tokens == verifier._context[:-1]


def test_a_limit_that_is_over_before_work_between_requests_gives_way_is_no_error(engine):
    with engine._slots.between_requests():  # as work holds them that an engine cannot stop
        ask = interrupt.Interrupt.__call__

        def later(interrupt):
            Blocking.clock.now += 1
            return ask(interrupt)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(interrupt.Interrupt, "__call__", later)
            done = engine.generate("abcd", time_limit_s=0.5)
    assert (done.finish_reason, done.token_ids) == ("time_limit", ())
    assert engine.generate("abcd", max_tokens=3, ignore_eos=True).token_ids


class Reading(ToyModel):
    """Takes 0.01 s a token, and keeps nothing of an evaluation that is stopped."""

    clock = Clock()

    def decode(self, tokens, n_logits=1, abort=None):
        for _ in tokens:
            self.clock.now += 0.01
            if abort and abort():
                raise Aborted("stopped from within")
        return super().decode(tokens, n_logits, abort)


@pytest.mark.parametrize("n_prompt", [100, 390])
def test_a_prompt_that_takes_longer_than_the_limit_is_read_bit_by_bit(n_prompt):
    """The same question, asked again and again: each time more of it is in the cache."""
    model, clock = Reading(PROBS, n_ctx=400, max_batch=400), Reading.clock
    verifier = LocalVerifier(model, clock=clock.monotonic)
    prompt = [i % 8 for i in range(n_prompt)]
    n_read = [0]

    def asked(limit_s):
        end = clock.now + limit_s
        request = Request(
            prompt, SamplingParams(), SeededRandomness(1), left_s=lambda: end - clock.now,
            abort=lambda: "time_limit" if clock.now >= end else None,
        )  # fmt: skip
        for _ in verifier.begin(request):
            pass
        return verifier.verify(NO_DRAFT)

    while n_read[-1] < n_prompt:
        try:
            assert asked(0.5).tokens
            break
        except Aborted:
            n_read.append(model.n_past)
        assert len(n_read) < 20
    assert n_read == sorted(n_read)
    assert len({*n_read[6:]}) == len(n_read[6:])  # by then it knows how fast it reads


def test_one_slow_token_does_not_make_later_prompts_slow():
    """A cancel inside a single token says nothing of how fast prompts are read."""
    model, clock = Reading(PROBS, n_ctx=400, max_batch=400), Reading.clock
    verifier = LocalVerifier(model, clock=clock.monotonic)
    stop = []

    def abort():
        clock.now += 30 * len(stop)
        return "cancelled" if stop else None

    def asked(prompt):
        end = clock.now + 1000
        request = Request(
            prompt, SamplingParams(), SeededRandomness(1), left_s=lambda: end - clock.now,
            abort=abort,
        )  # fmt: skip
        return list(verifier.begin(request))

    asked([1])
    stop.append(True)
    with pytest.raises(Aborted):
        verifier.verify(NO_DRAFT)
    stop.clear()
    assert asked([i % 8 for i in range(390)]) == [0, 368]
