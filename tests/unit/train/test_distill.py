"""Distilling: a small model is trained on the target's answers with its probabilities."""

import contextlib
import json
import subprocess

import numpy as np
import pytest

import edgespec
from edgespec import ConfigError, ConversionError, EngineConfig, hub
from edgespec.convert import tools
from edgespec.convert.heads.tensors import read_safetensors
from edgespec.loading.models import open_model
from edgespec.train import features, formats
from edgespec.train.gently import Pauses
from edgespec.train.kinds import distill
from edgespec.train.planning import TrainingPlan
from tests.helpers import (
    distill_checks,
    distill_jobs,
    libllama,
    tiny_models,
    train_jobs,
)
from tests.unit.train.test_planning import PLAN
from tests.unit.train.test_worker import kill_after

libllama.require()

pytestmark = pytest.mark.llama_cpp
NEVER = Pauses(print, gently=False)


def rows_of(path, ids, n):
    config = EngineConfig(n_ctx=64, type_k="f32", type_v="f32", flash_attn="off")
    with contextlib.closing(open_model(path, config)) as model:
        return model.decode(ids, n).logits.copy()


def test_the_rows_are_the_likeliest_tokens_of_the_target(tmp_path):
    path = tiny_models.write(tmp_path, "llama")
    known = distill_jobs.recordings()[:5]
    with contextlib.closing(open_model(path, EngineConfig(n_ctx=64))) as model:
        features.extract_likeliest(model, known, tmp_path, NEVER)
        whole = (tmp_path / "likeliest.bin").read_bytes()
        (tmp_path / "likeliest.bin").write_bytes(whole[:30_000])  # killed within a conversation
        features.extract_likeliest(model, known, tmp_path, NEVER)
    assert (tmp_path / "likeliest.bin").read_bytes() == whole
    rows = np.frombuffer(whole, formats.ROW)
    assert len(rows) == sum(each.n_answer for each in known)
    answers = np.split(rows, np.cumsum([each.n_answer for each in known]))
    for mine, each in zip(answers, known, strict=False):
        logits = rows_of(path, each.ids[:-1], len(each.ids) - 1)[-each.n_answer :]
        logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        expected = -np.sort(-logs, axis=1)[:, : formats.N_LIKELIEST]
        assert np.allclose(mine["logs"], expected, atol=0.02)  # in float16
        assert np.allclose(np.take_along_axis(logs, mine["ids"], 1), expected, atol=0.02)


def test_a_vocabulary_that_is_smaller_than_a_row():
    row = features.likeliest_of(np.log([[0.5, 0.3, 0.2]]))[0]
    assert row["ids"][:3].tolist() == [0, 1, 2]
    assert np.allclose(np.exp(row["logs"].astype(float))[:4], [0.5, 0.3, 0.2, 0], atol=1e-3)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_a_student_learns_a_language_and_is_written_as_it_was_trained(tmp_path, architecture):
    path = distill_jobs.job(tmp_path, architecture)
    result = train_jobs.run(path)
    lengths = [each["acceptance_length"][-1] for each in result["history"]]
    assert result["history"][0]["step"] == 0
    assert lengths[0] < 1.2
    assert result["checked"]["acceptance_length"][-1] == max(lengths) > 2.5
    checks = json.loads(subprocess.run(
        [train_jobs.python(), "-I", distill_checks.__file__, edgespec.__path__[0], path],
        capture_output=True, text=True, check=True,
    ).stdout)  # fmt: skip
    assert {name.split(".")[2] for name in checks["names"] if ".layers." in name} == {"1"}
    assert checks["gradients"]
    assert checks["loss"] == pytest.approx(checks["defined"], rel=1e-4)
    assert np.allclose(checks["trained"], checks["written"], atol=1e-4)
    row = rows_of(tmp_path / "new.gguf", distill_checks.TEXT, 1)[0]
    assert np.allclose(row, checks["trained"], atol=1e-4)


@pytest.mark.parametrize("saves", [1, 3])
def test_a_run_that_is_killed_ends_with_the_same_weights(tmp_path, saves):
    changed = {"n_steps": 64}
    whole = train_jobs.run(distill_jobs.job(tmp_path / "whole", **changed))
    path = distill_jobs.job(tmp_path / "killed", **changed)
    process = train_jobs.start(path)
    kill_after(process, path.with_name("state.pt"), saves)
    assert not path.with_name("result.json").exists()
    with path.with_name("states.bin").open("rb+") as file:
        file.truncate(5000)  # as if killed while they were written
    result = train_jobs.run(path)
    a, b = (read_safetensors(tmp_path / n / "model.safetensors") for n in ("whole", "killed"))
    assert a.keys() == b.keys()
    assert all(np.array_equal(a[name].array(), b[name].array()) for name in a)
    assert result == whole


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """Return a tiny target and a draft model; the folder of models is empty."""
    python = train_jobs.python()
    monkeypatch.setattr(hub, "models_dir", lambda: tmp_path / "models")
    plan = PLAN | {"n_tokens": 400, "disk": 1 << 20, "free_disk": 1 << 30}
    monkeypatch.setattr(distill, "plan_of_draft", lambda *_, **__: TrainingPlan(**plan))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"Drive to place {i}." for i in range(40)))
    target, draft = (tiny_models.write(tmp_path, "llama", n) for n in (6, 2))

    def trained(**options):
        given = {"python": python, "kind": "distill", "n_tokens": 400, "start": draft}
        return edgespec.train_head(target, [prompts], tmp_path / "out", **given | options)

    return target, draft, trained


def test_from_prompts_to_a_draft_model_that_loads_find(pair):
    *_, trained = pair
    made = trained(n_steps=2, rate=1e-12)  # it learns nothing
    assert made.path.name == "distilled-llama-2-False.gguf"
    assert made.paired.difference == pytest.approx(0, abs=0.05)
    assert made.paired.difference_low <= made.paired.difference <= made.paired.difference_high
    card = (made.checkpoint / "README.md").read_text()
    assert "| | simulated in training | served by edgespec (95% interval) | served before |" in card
    assert made.paired.sentence in card
    assert "llama-2-False.gguf; its last 4 layers" in card
    known = json.loads(json.dumps(made.to_dict()))
    assert known["paired"]["before"]["n_answers"] == made.served.n_answers
    better = made.paired.speed > 1
    assert (made.registered is not None) == better
    assert edgespec.forget_training(made.path.parents[1]) > 0
    left = sorted(path.name for path in made.path.parent.iterdir())
    assert left == ["distilled-llama-2-False.gguf", "draft", "manifest.json"]


def test_only_a_model_can_be_distilled(pair, tmp_path):
    from tests.helpers import tiny_heads

    _, _, trained = pair
    with pytest.raises(ConfigError, match="is a head, not a draft model"):
        trained(start=tiny_heads.write(tmp_path / "eagle3-tiny.gguf"))
    head, config = tmp_path / "head", {"architectures": ["LlamaForCausalLMEagle3"]}
    head.mkdir()
    (head / "config.json").write_text(json.dumps(config))
    (head / "model.safetensors").touch()
    with pytest.raises(ConfigError, match=r"holds LlamaForCausalLMEagle3; name the checkpoint"):
        trained(start=head)
    with pytest.raises(ConfigError, match=r"no draft model for .* name one: --from MODEL"):
        trained(start=None)


CHECKPOINT = """
import sys, torch, transformers
torch.manual_seed(1)
config = dict(vocab_size=int(sys.argv[3]), hidden_size=64, intermediate_size=96,
              num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=512, rope_theta=10000.0, initializer_range=0.2,
              eos_token_id=2)
kind = sys.argv[2]
config = getattr(transformers, kind + "Config")(**config)
model = getattr(transformers, kind + "ForCausalLM")(config)
for name, each in model.named_parameters():
    if name.endswith("bias"):
        torch.nn.init.normal_(each)
model.save_pretrained(sys.argv[1])
print(model(torch.tensor([[1, 40, 50, 60, 33]])).logits[0, -1].tolist())
"""


def checkpoint(folder, kind="Llama"):
    """Write a small model with random weights as a checkpoint; return its logits after a text."""
    size = str(tiny_models.VOCABULARY)
    command = [train_jobs.python(), "-c", CHECKPOINT, folder, kind, size]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
@pytest.mark.parametrize(("types", "most"), [("", 0.1), ("F32", 1e-4)])
def test_a_checkpoint_is_written_as_a_gguf(tmp_path, kind, types, most):
    expected = checkpoint(tmp_path / "small", kind)
    target, old = (tiny_models.write(tmp_path, kind.lower(), n) for n in (6, 2))
    job = {
        "folder": str(tmp_path / "small"),
        "vocabulary": str(target), "types": str(old) if types else "", "license": "mit",
        "name": "small", "out": str(tmp_path / "new.gguf"),
    }  # fmt: skip
    tools.run_worker(train_jobs.python(), job, tmp_path, print, {}, "edgespec.train.model_file")
    row = rows_of(tmp_path / "new.gguf", distill_checks.TEXT, 1)[0]
    assert np.abs(row - expected).max() < most * np.abs(expected).max()
    (tmp_path / "small" / "tokenizer.json").write_text('{"model": {"vocab": {"other": 40}}}')
    with pytest.raises(ConversionError, match="has other tokens than the target"):
        tools.run_worker(train_jobs.python(), job, tmp_path, print, {}, "edgespec.train.model_file")


def test_a_checkpoint_is_distilled(pair, tmp_path):
    _, _, trained = pair
    checkpoint(tmp_path / "small")
    options = {"start": tmp_path / "small", "n_steps": 2}
    made = trained(**options, rate=1e-12)  # it learns nothing
    assert made.path.name == "distilled-small.gguf"
    before, after = (rows_of(made.path.with_name(f"{name}.gguf"), distill_checks.TEXT, 1)
                     for name in ("small", "distilled-small"))  # fmt: skip
    assert np.allclose(before, after, atol=1e-3)
    assert made.paired.difference == pytest.approx(0, abs=0.05)
    assert "small; its last 4 layers were trained" in (made.checkpoint / "README.md").read_text()
    with pytest.raises(ConfigError, match=r"a checkpoint that no engine loads; leave --plan out"):
        edgespec.plan_training(
            pair[0], [tmp_path / "prompts.txt"], tmp_path / "new", kind="distill", **options
        )
