"""The program that trains, in the Python of the tools if it is installed."""

import json
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import edgespec
from edgespec.convert.heads.reading import read_head
from edgespec.convert.heads.tensors import read_safetensors
from edgespec.train.formats import PAUSE, conversations
from edgespec.train.kinds import eagle3, heads
from tests.helpers import train_checks, train_jobs


@pytest.fixture(scope="module")
def checks():
    """Return what the helper found that compares torch with NumPy."""
    program = Path(train_checks.__file__)
    done = subprocess.run(
        [str(train_jobs.python()), "-I", str(program), edgespec.__path__[0]],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_training_time_attention_is_inference_with_a_cropped_cache(checks):
    assert checks["apart"] <= 1e-5


def test_the_loss_is_the_mean_over_guesses_and_padding_does_not_count(checks):
    assert checks["padded"] <= 1e-6
    assert checks["mean"] <= 1e-5
    assert checks["gradients"]


def test_the_first_token_of_an_answer_is_learnt_and_nothing_after_the_last(checks):
    for step, of_both in enumerate(checks["guessed"]):
        for positions, prompt, n in zip(
            of_both, train_checks.PROMPTS, train_checks.LENGTHS, strict=True
        ):
            assert positions == list(range(prompt + step, n))


def test_fifty_conversations_are_learnt_by_heart(tmp_path):
    result = train_jobs.run(train_jobs.job(tmp_path, n_steps=500))
    assert result["checked"]["acceptance"][0][0] >= 0.95
    assert result["checked"]["acceptance_length"][0] >= 1.95
    config = train_jobs.config(eagle3.Eagle3)
    (tmp_path / "config.json").write_text(json.dumps(config))
    head = read_head(tmp_path / "model.safetensors")
    assert head.kind == "eagle3"
    assert head.head_vocab_size == train_jobs.VOCABULARY


def test_heads_are_measured_in_each_precision(tmp_path):
    everything = list(range(train_jobs.N_CONVERSATIONS))
    path = train_jobs.job(tmp_path, n_steps=300, held_out=everything[:10], checked=everything[:10])
    result = train_jobs.run(path)
    lengths = result["precisions"]
    assert list(lengths) == ["F32", "Q8_0", "Q4_0"]
    assert lengths["F32"] == pytest.approx(result["held_out"]["acceptance_length"][2])
    assert len(set(lengths.values())) > 1, "the weights were not rounded"


@pytest.mark.parametrize(("lengths", "chosen"), [
    ((1.5, 1.5, 1.495), "Q4_0"), ((1.5, 1.495, 1.4), "Q8_0"), ((1.5, 1.4, 1.4), "F32"),
    ((1.0, 1.0, 1.0), "Q4_0"), ((1.5, 1.4, 1.6), "Q4_0"),
])  # fmt: skip
def test_the_smallest_precision_that_guesses_as_well_is_taken(lengths, chosen):
    assert heads.precision_of(dict(zip(("F32", "Q8_0", "Q4_0"), lengths, strict=True))) == chosen


@pytest.mark.parametrize("saves", [1, 4])
def test_a_run_that_is_killed_ends_with_the_same_weights(tmp_path, saves):
    changed = {"n_steps": 96, "held_out": [0, 1], "checked": [0]}
    whole = train_jobs.run(train_jobs.job(tmp_path / "whole", **changed))
    path = train_jobs.job(tmp_path / "killed", **changed)
    process = train_jobs.start(path)
    kill_after(process, path.with_name("state.pt"), 1 + saves)
    assert not path.with_name("result.json").exists()
    result = train_jobs.run(path)
    a, b = (read_safetensors(tmp_path / n / "model.safetensors") for n in ("whole", "killed"))
    assert a.keys() == b.keys()
    assert all(np.array_equal(a[name].array(), b[name].array()) for name in a)
    assert result == whole


@pytest.mark.parametrize("is_orphan", [False, True])
def test_it_waits_while_its_parent_pauses_it(tmp_path, is_orphan):
    path, pause = train_jobs.job(tmp_path, n_steps=4), tmp_path / PAUSE
    pause.touch()
    process = train_jobs.start(path, is_orphan=is_orphan)
    if is_orphan:  # it must not wait for a parent that is gone
        wait_for(tmp_path / "result.json")
        return
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(10)
    assert not (tmp_path / "state.pt").exists()
    pause.unlink()
    assert process.wait(60) == 0
    assert (tmp_path / "result.json").exists()


def wait_for(path):
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def kill_after(process, path, n_changes):
    """Kill a process once it has written a file so many times."""
    seen, end = set(), time.monotonic() + 120
    while len(seen) < n_changes:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < end
        if path.exists():
            seen.add(path.stat().st_mtime_ns)
        time.sleep(0.001)
    process.kill()
    process.wait()


def test_minutes_decide_how_many_steps_there_are(tmp_path):
    result = train_jobs.run(train_jobs.job(tmp_path, n_steps=0, seconds=0.5))
    assert 1 <= result["n_steps"] < 1000
    result = train_jobs.run(train_jobs.job(tmp_path / "passes", n_steps=0, passes=2))
    n_tokens = sum(map(len, lengths(tmp_path / "passes")))
    assert 2 * n_tokens / 256 <= result["n_steps"] <= 3 * n_tokens / 256 + 2


def lengths(folder):
    return [each["ids"] for each in conversations(folder)]
