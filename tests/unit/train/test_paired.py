"""A draft model before and after a change."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

import edgespec
from edgespec import hub
from edgespec.costs.curves import Curve
from edgespec.train import comparisons, draft_models, work
from edgespec.train.serving import ServedHead
from tests.helpers import libllama, tiny_models
from tests.unit.train.test_planning import CHEAP, FLAT


def served(*answers):
    steps, accepted = map(sum, zip(*answers, strict=True))
    return ServedHead(
        len(answers), 0, 1 + accepted / steps, (0.5, 0.4, 0.3), 1.0, 1.0, 1.0, 1.0, answers
    )


@pytest.fixture
def times(monkeypatch):
    """Let four tokens of the target take a second, and a token of the draft models a tenth; return
    the times of the latter in two copies.
    """
    rounds = np.full((2, 2), 0.1)
    monkeypatch.setattr(comparisons, "opened", contextlib.nullcontext)
    monkeypatch.setattr(comparisons, "curve_of", lambda _: Curve((0,), (1, 4), ((0.5, 1.0),)))
    monkeypatch.setattr(comparisons, "_token_times", lambda _: rounds)
    return rounds


def compare(before, after):
    paths = (Path(name) for name in ("target", "before", "after"))
    return comparisons.paired(*paths, served(*before), served(*after))


def test_a_gain_that_all_questions_share(times):
    found = compare([(10, 10), (20, 20)], [(10, 20), (20, 40)])
    assert (found.difference, found.difference_low, found.difference_high) == (1, 1, 1)
    assert (found.speed, found.speed_low) == (1.5, 1.5)
    assert found.sentence.startswith("It pays: drafting is 1.500")


def test_a_token_that_takes_half_the_time(times):
    times[1] = 0.05
    found = compare([(10, 10), (20, 20)], [(10, 10), (20, 20)])
    assert (found.token_s_before, found.token_s) == (0.1, 0.05)
    assert found.speed == pytest.approx(1.3 / 1.15)
    assert found.sentence.startswith("It pays")


def test_times_that_vary_show_no_gain(times):
    times[1] = 0.05, 0.14
    found = compare([(10, 10), (20, 20)], [(10, 10), (20, 20)])
    assert found.speed_low < 1 < found.speed < found.speed_high
    assert found.sentence.startswith("No gain was shown")


def test_questions_that_disagree_show_no_gain(times):
    found = compare([(10, 10)] * 4, [(10, 14), (10, 7), (10, 12), (10, 9)])
    assert found.difference == pytest.approx(0.05)
    assert found.difference_low < 0 < found.difference_high
    assert found.sentence.startswith("No gain was shown")


def test_a_loss_is_a_loss(times):
    assert compare([(10, 10)] * 3, [(10, 5)] * 3).sentence.startswith("It does not pay")


@pytest.mark.llama_cpp
def test_tokens_are_timed_in_turns(tmp_path):
    libllama.require()
    paths = [tiny_models.write(tmp_path, "llama", n) for n in (2, 6)]
    times = comparisons._token_times(paths)
    assert times.shape == (2, comparisons._COPIES)
    assert (times > 0).all()


def test_each_model_is_loaded_several_times_as_the_first_and_as_the_last(monkeypatch):
    loads, times_of = [], {"slow": iter((1, 1, 2, 9, 9)), "fast": iter((7, 7, 7, 8, 7))}

    def load(path):
        loads.append(path)
        return contextlib.nullcontext(next(times_of[path]))

    monkeypatch.setattr(comparisons, "opened", load)
    monkeypatch.setattr(comparisons, "_token_s", lambda model: model)
    times = comparisons._token_times(("slow", "fast"))
    assert times.tolist() == [[1, 1, 2, 9, 9], [7, 7, 7, 8, 7]]
    assert loads[:4] == ["slow", "fast", "fast", "slow"]


@pytest.mark.llama_cpp
def test_the_plan_names_the_present_acceptance_length_and_opens_no_projector(tmp_path, monkeypatch):
    libllama.require()
    from edgespec.backends.llama_cpp import seeing

    mmproj = []
    monkeypatch.setattr(seeing, "open_eyes", lambda _, name, *__: mmproj.append(name) or (None, ""))
    monkeypatch.setattr(hub, "models_dir", lambda: tmp_path / "models")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Go left.\nStop.\n")
    target = tiny_models.write(tmp_path, "llama")
    planned = edgespec.plan_training(
        target, [prompts], tmp_path / "out", kind="distill", start=target, n_tokens=1000
    )
    assert set(mmproj) == {"none"}
    assert list(planned.seconds) == ["answers", "probabilities", "training"]
    assert planned.expected > 3  # its own draft
    assert planned.training_per_s > 0
    assert not (tmp_path / "out").exists()


@pytest.mark.llama_cpp
def test_a_draft_model_that_is_there_is_a_rival(tmp_path, monkeypatch):
    libllama.require()
    prompts, target = tmp_path / "prompts.txt", tiny_models.write(tmp_path, "llama")
    prompts.write_text("Go left.\nStop.\n")
    monkeypatch.setattr(hub, "models_dir", lambda: tmp_path / "models")
    own = work.Work(target, [prompts], (), tmp_path / "out", work.TrainOptions(), print)
    assert draft_models.rival(own, FLAT) is None
    monkeypatch.setattr(draft_models, "siblings", lambda _: [target])
    monkeypatch.setattr(draft_models, "curve_of", lambda _: CHEAP)
    name, length, gain = draft_models.rival(own, FLAT)
    assert (name, length > 3) == (target.name, True)  # its own draft
    assert gain > 2
    monkeypatch.setattr(draft_models, "curve_of", lambda _: FLAT)  # as slow as the target
    assert draft_models.rival(own, FLAT)[2] == 1
