"""Costs are measured between requests: nothing before the first token, and nobody waits."""

import os
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import edgespec
from edgespec import ToyModel, ToyTokenizer
from edgespec.costs import learning as costs_learning
from edgespec.costs.learning import HeadTimes, Learning, ModelCurve, learning
from edgespec.costs.profiles import stored
from edgespec.decoding import idle_work
from edgespec.device import Load
from tests.helpers.toy_head import ToyHead

VOCAB = [*"abcdefgh", "."]
WIDTHS = (1, 2, 4, 8)
PROMPT = "abcdefgh" * 12
NOT_YET = "off: costs are not measured yet"


class FileToy(ToyModel):
    """A toy as if it had been read from a file. calls: the thread of each evaluation, its tokens,
    and those cached before it. `hold` stops the next evaluation of the idle thread.
    """

    def __init__(self, name="toy", **options):
        n = len(VOCAB)
        table = np.full((n, n), 0.1 / (n - 2))
        table[:, n - 1] = 0
        table[np.arange(n), (np.arange(n) + 1) % (n - 1)] = 0.9
        options = {"n_ctx": 400} | options
        super().__init__(table / table.sum(axis=1, keepdims=True), **options)
        self.path, self.placement = Path(f"{name}.gguf"), {}
        self.calls, self.fails = [], False
        self.held, self.go = threading.Event(), threading.Event()
        self.go.set()

    def fingerprint(self):
        return {"file": self.path.name}

    def hold(self):
        self.held.clear()
        self.go.clear()

    def decode(self, tokens, *rest):
        idle = threading.current_thread().name == "edgespec-idle"
        if idle:
            self.held.set()
            assert self.go.wait(20)
            if self.fails:
                raise RuntimeError("no such kernel")
        self.calls.append((idle, len(tokens), self.n_past))
        return super().decode(tokens, *rest)


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    """No pause before idle work, an empty folder of profiles, no other programs."""
    monkeypatch.setattr(idle_work, "PAUSE_S", 0.0)
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path))
    others(monkeypatch, 0.0)


def others(monkeypatch, load):
    class Meter:
        def look(self):
            return Load(load, 1.0, 1.0)

    monkeypatch.setattr(costs_learning, "LoadMeter", Meter)


def engine(model, draft=None, **options):
    costs, missing = learning(
        ModelCurve(model, WIDTHS), ModelCurve(draft, WIDTHS, lengthens=True) if draft else None
    )
    return edgespec.assemble(
        model, ToyTokenizer(VOCAB, eog=[8]), draft, profile=costs,
        works=[missing] if missing else [], **options,
    )  # fmt: skip


@contextmanager
def measuring(model, **options):
    """Give an engine that has answered once and is now within an evaluation that measures."""
    with engine(model, **options) as made:
        model.hold()
        made.generate(PROMPT, max_tokens=8)
        assert model.held.wait(20)
        yield made
        model.go.set()


def wait_for(made):
    """Until idle work is done."""
    for thread in threading.enumerate():
        if thread.name == "edgespec-idle":
            thread.join(20)
    assert not made.idle_work.left


def test_nothing_is_measured_before_the_end_of_the_first_answer():
    model, draft = FileToy(), FileToy("draft")
    with engine(model, draft) as made:
        model.hold()
        first = made.generate(PROMPT, max_tokens=8).stats
        assert (first.num_draft_steps, first.speculation, first.speedup) == (0, NOT_YET, None)
        assert sum(n for idle, n, _ in model.calls if not idle) == len(PROMPT) + 7
        assert not draft.calls
        model.go.set()
        wait_for(made)
        # before the next answer: one that takes much longer makes the engine forget them
        assert stored(model.fingerprint()).widths == stored(draft.fingerprint()).widths == WIDTHS
        second = made.generate(PROMPT, max_tokens=60).stats
        assert second.num_draft_steps > 0
        assert second.num_accepted_draft_tokens > 0


def test_what_is_kept_is_not_measured_again():
    with engine(FileToy()) as made:
        assert made.measure()
    model = FileToy()
    with engine(model) as made:
        assert not made.idle_work.left
        assert not model.calls
        assert made.generate(PROMPT, max_tokens=60).stats.num_draft_steps > 0


def test_what_was_measured_behind_a_long_text_is_used_and_not_kept(monkeypatch):
    monkeypatch.setattr(costs_learning, "_SHORT", len(PROMPT))
    model = FileToy()
    with engine(model) as made:
        made.generate(PROMPT, max_tokens=8)
        assert made.measure()
        assert made.generate(PROMPT, max_tokens=60).stats.num_draft_steps > 0
    assert stored(model.fingerprint()) is None


def test_a_draft_model_is_measured_after_a_long_text_too(monkeypatch):
    others(monkeypatch, 0.0)
    model, draft = FileToy(), FileToy("draft", n_ctx=4096)
    with engine(model, draft) as made:
        made.generate(PROMPT, max_tokens=8)
        wait_for(made)
        assert draft.n_past == 0
        assert {n_past for idle, n, n_past in draft.calls if idle and n == 8} == {0, 2048}
        assert made.generate(PROMPT, max_tokens=60).stats.num_accepted_draft_tokens > 0
        assert stored(draft.fingerprint()).lengths == (0, 2048)
    with engine(FileToy(), FileToy("draft", n_ctx=4096)) as again:
        assert not again.idle_work.left


class FileHead(ToyHead):
    """A head as if it had been read from a file."""

    def __init__(self, name="head"):
        super().__init__(np.full((9, 9), 1 / 9))
        self.name = name

    def fingerprint(self):
        return {"file": self.name}


@pytest.mark.parametrize("load", [0.0, 1.9])
def test_what_a_head_takes_is_measured_and_kept(monkeypatch, load):
    others(monkeypatch, load)
    model, head = FileToy(), FileHead()
    times = HeadTimes(model, head)
    costs, missing = learning(ModelCurve(model, WIDTHS), None, times)
    assert missing
    assert not missing.run(lambda: "cancelled")
    assert missing.run(lambda: None)
    assert costs.profile.tapping == times.tapping >= 0
    assert 0 < costs.profile.growing == times.growing <= 1
    assert model.n_past == head.n_past == 0
    again = HeadTimes(model, head)
    assert again.complete == (load == 0)
    assert not HeadTimes(model, FileHead("another")).complete


@pytest.mark.parametrize("truncate", [True, False], ids=["truncates", "recurrent"])
def test_the_conversation_stays_in_the_cache(truncate):
    cached = []
    for measures in (True, False):
        model = FileToy(f"{truncate}", truncate=truncate)
        with engine(model) as made:
            text = made.generate(PROMPT, max_tokens=8).text
            if measures:
                wait_for(made)
                assert {n_past for idle, _, n_past in model.calls if idle} == {len(PROMPT) + 7}
            next_one = made.generate(PROMPT + text + "abc", max_tokens=8)
            cached.append((next_one.stats.num_cached_tokens, next_one.text))
    assert cached[0] == cached[1]
    assert cached[0][0] == len(PROMPT) + 7


@pytest.mark.parametrize("on_busy", ["wait", "error"])
def test_a_request_waits_for_one_evaluation_and_measuring_goes_on_after_it(on_busy):
    model = FileToy()
    with measuring(model, on_busy=on_busy) as made:
        found = []
        before = len(model.calls)
        request = threading.Thread(
            target=lambda: found.append(made.generate(PROMPT + "abc", max_tokens=4))
        )
        request.start()
        while not made._slots.wanted:  # it waits now
            pass
        model.go.set()
        request.join(20)
        assert found[0].text == "defg"
        assert found[0].stats.speculation == NOT_YET
        wait_for(made)
        threads = [idle for idle, _, _ in model.calls[before:]]
        assert threads[0]  # the evaluation under way
        assert not any(threads[1 : 1 + threads.count(False)])  # then the whole request
        assert all(threads[1 + threads.count(False) :])
        assert made.generate(PROMPT, max_tokens=60).stats.num_draft_steps > 0
    assert stored(model.fingerprint())


@pytest.mark.parametrize(("turn_s", "drafts"), [(30.0, True), (0.0, False)])
def test_an_engine_that_is_never_idle_measures_between_answers(monkeypatch, turn_s, drafts):
    monkeypatch.setattr(idle_work, "PAUSE_S", 60.0)
    monkeypatch.setattr(idle_work, "TURN_S", turn_s)
    with engine(FileToy()) as made:
        drafted = [
            made.generate(PROMPT, max_tokens=60).stats.num_draft_steps > 0 for _ in range(40)
        ]
        assert not any(drafted[: idle_work.TURN_EVERY])
        assert any(drafted) == drafts
        assert made.idle_work.is_urgent != drafts


def test_a_turn_gives_way_to_a_time_limit(monkeypatch):
    monkeypatch.setattr(idle_work, "PAUSE_S", 60.0)
    monkeypatch.setattr(idle_work, "TURN_S", 60.0)
    monkeypatch.setattr(idle_work, "TURN_EVERY", 1)
    model = FileToy()
    with measuring(model) as made:
        done = []
        request = threading.Thread(
            target=lambda: done.append(made.generate(PROMPT, max_tokens=4, time_limit_s=60))
        )
        request.start()
        while not made._slots.wanted_soon:
            pass
        model.go.set()
        request.join(20)
        assert done[0].stats.speculation == NOT_YET  # measuring was not over before it


def test_close_ends_measuring_at_once():
    model = FileToy()
    with measuring(model) as made:
        n = len(model.calls)
        closing = threading.Thread(target=made.close)
        closing.start()
        while not made._slots.wanted and not made.idle_work._closed:
            pass
        model.go.set()
        closing.join(20)
        assert len(model.calls) == n + 1
        assert not [t for t in threading.enumerate() if t.name == "edgespec-idle"]
    assert stored(model.fingerprint()) is None


@pytest.mark.parametrize("truncate", [True, False], ids=["truncates", "recurrent"])
def test_measuring_that_fails_is_logged_and_left_out(truncate, caplog):
    model = FileToy(truncate=truncate)
    model.fails = True
    with engine(model) as made:
        text = made.generate(PROMPT, max_tokens=8).text
        wait_for(made)
        assert "failed: no such kernel" in caplog.text
        done = made.generate(PROMPT + text + "abc", max_tokens=8)
        assert (done.text, done.stats.speculation) == ("defghabc", NOT_YET)


def test_two_engines_of_one_file_measure_it_once():
    one, other = FileToy(), FileToy()
    with engine(one) as first, engine(other) as second:
        assert first.measure()
        assert second.measure()
        assert not other.calls
        assert second.generate(PROMPT, max_tokens=60).stats.num_draft_steps > 0


def test_what_is_measured_beside_other_programs_is_used_and_not_kept(monkeypatch):
    others(monkeypatch, 0.8)
    model = FileToy()
    with engine(model) as made:
        assert made.measure()
        assert made.generate(PROMPT, max_tokens=60).stats.num_draft_steps > 0
    assert stored(model.fingerprint()) is None


def test_measure_has_a_time_limit_and_goes_on_later():
    model = FileToy()
    with engine(model) as made:
        assert not made.measure(time_limit_s=0)
        assert made.idle_work.left == (Learning.doing,)
        assert made.measure()
        assert made.measure()


def test_a_full_context_is_measured_later():
    model = FileToy()
    with engine(model) as made:
        made.generate("abcdefgh" * 49, max_tokens=8)
        assert not made.measure()
        made.generate(PROMPT, max_tokens=8)
        assert made.measure()


def test_a_gain_is_told_once_plain_steps_were_timed():
    with engine(FileToy()) as made:
        made.measure()
        few = made.generate(PROMPT, max_tokens=4).stats
        assert few.num_draft_steps
        assert few.speedup is None
        assert made.generate(PROMPT, max_tokens=80).stats.speedup > 0


def test_an_answer_without_drafts_has_no_gain():
    with engine(FileToy()) as made:
        made.measure()
        stats = made.generate(PROMPT, max_tokens=80, disable_spec_decode=True).stats
        assert (stats.num_draft_tokens, stats.to_dict()["speedup"]) == (0, None)
        stats.plain_s = stats.decode_s = 1.0  # whatever was timed
        assert stats.speedup is None


def test_the_gain_counts_every_token_since_the_first():
    with engine(FileToy()) as made:
        made.measure()
        stats = made.generate(PROMPT, max_tokens=200).stats
    per_token = stats.plain_s / (stats.num_emitted_tokens - 1)
    assert stats.speedup == pytest.approx(stats.tokens_per_second * per_token)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_nothing_is_measured_in_a_forked_process():
    model = FileToy()
    with engine(model) as made:
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
        else:
            made.idle_work.start()
            os._exit(any(t.name == "edgespec-idle" for t in threading.enumerate()))


def test_no_work_begins_after_close(monkeypatch):
    model = FileToy()
    made = engine(model)
    made.close()
    made.idle_work.start()
    assert not [t for t in threading.enumerate() if t.name == "edgespec-idle"]


def test_an_answer_needs_no_further_thread(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    with engine(FileToy()) as made:
        monkeypatch.setattr(threading.Thread, "start", start)
        assert made.generate(PROMPT, max_tokens=4).text == "abcd"
