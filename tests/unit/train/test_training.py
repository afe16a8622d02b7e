"""A whole training with a tiny target, from prompts to a registered head."""

import json
import logging

import pytest

import edgespec
from edgespec import ConfigError, EdgeSpecError, hub
from edgespec.train import features, training
from edgespec.train.planning import TrainingPlan
from tests.helpers import libllama, tiny_models, train_jobs
from tests.unit.train.test_planning import PLAN

libllama.require()

pytestmark = pytest.mark.llama_cpp
N_TOKENS = 600


@pytest.fixture
def python():
    """Return the Python of the tools; `target` hides the folder of models that has them."""
    return train_jobs.python()


@pytest.fixture
def target(tmp_path, monkeypatch):
    """Return a tiny target. The folder of models is empty, and no time is spent on measuring."""
    monkeypatch.setattr(hub, "models_dir", lambda: tmp_path / "models")
    monkeypatch.setattr(training, "make_plan", lambda *_: TrainingPlan(**plan))
    plan = PLAN | {"n_tokens": N_TOKENS, "disk": 1 << 20, "free_disk": 1 << 30}
    return tiny_models.write(tmp_path, "llama")


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(f"Drive to place {i}." for i in range(40)))
    return path


def test_from_prompts_to_a_registered_head_in_two_runs(
    python, target, prompts, tmp_path, monkeypatch
):
    out, said = tmp_path / "out", []
    given = {"python": python, "n_tokens": N_TOKENS, "n_steps": 8, "vocabulary": 100}

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "extract", killed)
    with pytest.raises(KeyboardInterrupt):
        edgespec.train_head(target, [prompts], out, progress=said.append, **given)
    monkeypatch.setattr(training, "extract", features.extract)
    recorded = (out / "answers.jsonl").read_bytes()
    made = edgespec.train_head(target, [prompts], out, progress=said.append, **given)
    assert (out / "answers.jsonl").read_bytes() == recorded
    assert made.n_tokens >= N_TOKENS
    assert made.n_done + made.n_skipped + made.n_failed == 40
    assert len(made.served.acceptance) == len(made.simulated) == 3
    assert edgespec.inspect_head(made.path).n_drafted == 100
    assert json.loads(json.dumps(made.to_dict()))["path"] == str(made.path)
    card = (made.checkpoint / "README.md").read_text()
    assert f"{made.n_tokens} tokens in {made.n_answers} answers" in card
    with edgespec.load(target) as engine:
        assert engine.describe()["draft"]["file"] == made.path.name
    assert said.index("answers") < said.index("hidden states") < said.index("training")
    written = made.path.stat().st_mtime_ns
    again = edgespec.train_head(target, [prompts], out, progress=said.append, **given)
    assert said.count("training") == 1
    assert again.path.stat().st_mtime_ns > written
    assert again.simulated == made.simulated


def test_what_cannot_pay_is_not_begun_unless_it_is_forced(target, prompts, tmp_path, monkeypatch):
    plan = TrainingPlan(**PLAN | {"good_gain": 0.8, "n_tokens": N_TOKENS})
    monkeypatch.setattr(training, "make_plan", lambda *_: plan)
    with pytest.raises(EdgeSpecError, match="does not pay here"):
        edgespec.train_head(target, [prompts], tmp_path / "out", python=tmp_path, n_tokens=N_TOKENS)
    assert not (tmp_path / "out" / "answers.jsonl").exists()


def test_a_plan_records_nothing(target, prompts, tmp_path):
    planned = edgespec.plan_training(target, [prompts], tmp_path / "out", n_tokens=N_TOKENS)
    assert planned.pays
    assert not (tmp_path / "out").exists()


def test_a_head_that_exists_is_checked(target, prompts, tmp_path):
    from tests.helpers import tiny_heads

    head = tiny_heads.write(tmp_path / "eagle3-tiny.gguf")
    served = edgespec.check_head(target, [prompts], head, n_prompts=3, max_tokens=20)
    assert served.n_answers == 3
    assert served.gain_low <= served.gain <= served.gain_high
    assert 1 <= served.acceptance_length <= 4


@pytest.mark.parametrize(("options", "message"), [
    ({"kind": "moa"}, "unknown kind 'moa'"),
    ({"n_tokens": 0}, "n_tokens must be more than 0"),
    ({"minutes": -1}, "minutes must be at least 0"),
    ({"rate": float("nan")}, "rate must be more than 0"),
])  # fmt: skip
def test_impossible_options(target, prompts, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        edgespec.plan_training(target, [prompts], tmp_path / "out", **options)


def test_other_prompts_are_not_mixed_in(target, prompts, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    training._Work(target, [prompts], tmp_path / "out", training.TrainOptions(), print)
    prompts.write_text("Something else.\nAnd more.")
    with pytest.raises(ConfigError, match="begun with another prompts"):
        training._Work(target, [prompts], tmp_path / "out", training.TrainOptions(), print)
