"""Answers of the target that are recorded for training."""

import itertools
import threading

import pytest

import edgespec
from edgespec import ToyModel, ToyTokenizer
from edgespec.sampling.defaults import SamplingDefaults
from edgespec.train import answers
from edgespec.train.gently import Pauses
from edgespec.train.recordings import ALONE, Recording, Recordings

NEVER = Pauses(print, gently=False)
TEMPLATE = "{{ messages[-1].content }}"
WORDS = ["</s>", *"abcdefghij", " "]
PROMPTS = [[{"role": "user", "content": text}] for text in ("a", "b c", "d", "e f", "g", "h i")]


def engine(sampling=None, n_ctx=1024, next_token=None):
    """Return an engine over a toy whose answers are as long as wanted."""

    def probs(tokens):
        if next_token is not None:
            return [float(i == next_token) for i in range(len(WORDS))]
        return [0.02, *[0.98 / 11] * 11]

    target = ToyModel(probs, vocab_size=len(WORDS), n_ctx=n_ctx)
    drawn = SamplingDefaults({"temperature": 1.0}, "the model's own")
    return edgespec.assemble(
        target, ToyTokenizer(WORDS, [0], TEMPLATE), speculative_config={"method": "none"},
        sampling=sampling or drawn,
    )  # fmt: skip


@pytest.fixture
def recordings(tmp_path):
    return Recordings(tmp_path)


def test_half_of_the_answers_are_greedy_and_half_are_drawn(recordings):
    with engine() as own:
        answers.record(own, PROMPTS, recordings, 100_000, NEVER)
    by_round = {
        number: {each.prompt: each.drawn for each in group}
        for number, group in itertools.groupby(recordings.all, lambda each: each.round)
    }
    assert by_round[0] == {0: False, 1: True, 2: False, 3: True, 4: False, 5: True}
    assert by_round[1] == {0: True, 1: False, 2: True, 3: False, 4: True, 5: False}
    assert all(set(by_round[number].values()) == {True} for number in range(2, 8))
    drawn = {tuple(each.ids) for each in recordings.done if each.drawn and each.prompt == 0}
    assert len(drawn) == 7


def test_it_stops_at_the_tokens_wanted_and_goes_on_from_there(recordings, tmp_path):
    with engine() as own:
        answers.record(own, PROMPTS, recordings, 10, NEVER)
        n = len(recordings.all)
        assert recordings.n_tokens >= 10 > recordings.n_tokens - recordings.all[-1].n_answer
        again = Recordings(tmp_path)
        answers.record(own, PROMPTS, again, 200, NEVER)
    assert again.all[:n] == recordings.all
    assert again.n_tokens >= 200
    keys = [(each.prompt, each.round) for each in again.all]
    assert len(set(keys)) == len(keys)


def test_an_answer_that_repeats_itself_is_cut(recordings):
    with engine(next_token=3) as own:
        answers.record(own, PROMPTS, recordings, 1000, NEVER)
    assert not recordings.done
    assert {each.status for each in recordings.all} == {"skipped"}
    assert {each.why for each in recordings.all} == {"the answer has 0 tokens"}


def test_every_prompt_is_done_skipped_or_failed(recordings):
    prompts = [*PROMPTS, [{"role": "user", "content": "a" * 900}],
               [{"role": "user", "content": "z"}]]  # fmt: skip
    with engine() as own:
        answers.record(own, prompts, recordings, 100_000, NEVER)
    whys = {each.prompt: each.why for each in recordings.all if each.status != "done"}
    assert "the prompt has 900 tokens; with an answer, 1024 fit" in whys[6]
    assert "no entry for b'z'" in whys[7]
    counts = [recordings.n_prompts(status) for status in ("done", "skipped", "failed")]
    assert counts == [6, 1, 1]


def test_a_model_whose_own_sampling_is_greedy_answers_each_prompt_once(recordings):
    with engine(SamplingDefaults({"temperature": 0.0}, "greedy")) as own:
        answers.record(own, PROMPTS, recordings, 100_000, NEVER)
    assert [each.prompt for each in recordings.all] == list(range(6))
    assert not any(each.drawn for each in recordings.all)


def test_answers_made_alone_are_greedy_and_made_once(recordings, tmp_path):
    with engine() as own:
        answers.record(own, PROMPTS, recordings, 50, NEVER)
        before = recordings.n_tokens, recordings.n_answers
        answers.record_alone(own, PROMPTS, [1, 4], recordings, NEVER)
        again = Recordings(tmp_path)
        answers.record_alone(own, PROMPTS, [1, 4, 5], again, NEVER)
    assert again.all[: len(recordings.all)] == recordings.all
    alone = [each for each in again.all if each.round == ALONE]
    assert [(each.prompt, each.drawn) for each in alone] == [(1, False), (4, False), (5, False)]
    again.add(Recording(0, ALONE, "done", "", [2, 11, 3, 9, 3], 1))
    assert (again.n_tokens, again.n_answers) == before  # they count as no further answers


class Paused:
    """A pause that begins with the first token."""

    def __init__(self):
        self.began, self.over = threading.Event(), threading.Event()

    def pace(self, *_):
        return lambda n: None

    def wait(self):
        self.began.set()
        assert self.over.wait(30)

    def end(self):
        self.over.set()


def test_answers_that_are_being_written_pause_and_go_on(recordings):
    pauses = Paused()
    with engine() as own:
        given = own, PROMPTS[:1], recordings, 5, pauses
        thread = threading.Thread(target=answers.record, args=given)
        thread.start()
        assert pauses.began.wait(30)
        assert not recordings.all
        pauses.over.set()
        thread.join(30)
    assert recordings.n_tokens >= 5


def test_ctrl_c_ends_a_pause(recordings, monkeypatch):
    pauses = Paused()

    def interrupted(*_, **__):
        assert pauses.began.wait(30)
        raise KeyboardInterrupt

    monkeypatch.setattr(answers, "wait", interrupted)
    with engine() as own, pytest.raises(KeyboardInterrupt):
        answers.record(own, PROMPTS, recordings, 5, pauses)
    assert pauses.over.is_set()
