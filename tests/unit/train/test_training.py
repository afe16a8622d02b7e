"""A whole training with a tiny target, from prompts to a registered head."""

import errno
import json
import os
import shutil
import stat
from types import SimpleNamespace

import numpy as np
import pytest

import edgespec
from edgespec import ConfigError, ConversionError, EdgeSpecError, EngineMissing, backends, hub
from edgespec.config import EngineConfig, SpeculativeConfig
from edgespec.convert.heads import tensors
from edgespec.convert.heads.conversion import convert_head
from edgespec.convert.heads.target_weights import matrix_of
from edgespec.costs import profiles
from edgespec.loading import drafts, trained
from edgespec.train import features, kinds, training, work
from edgespec.train.comparisons import agreement
from edgespec.train.gently import Pauses
from edgespec.train.kinds import eagle3, heads, medusa
from edgespec.train.opening import opened
from edgespec.train.planning import TrainingPlan
from edgespec.train.recordings import Recording, Recordings, alone
from tests.helpers import libllama, tiny_models, train_jobs
from tests.unit.train.test_planning import PLAN

libllama.require()

pytestmark = pytest.mark.llama_cpp
NEVER = Pauses(print, gently=False)
N_TOKENS, WEIGHTS = 600, "model.safetensors"


@pytest.fixture
def python():
    """Return the Python of the tools; `target` hides the folder of models that has them."""
    return train_jobs.python()


@pytest.fixture
def target(tmp_path, monkeypatch):
    """Return a tiny target. The folder of models is empty, and no time is spent on measuring."""
    monkeypatch.setattr(hub, "models_dir", lambda: tmp_path / "models")
    monkeypatch.setattr(heads, "make_plan", lambda *_: TrainingPlan(**plan))
    plan = PLAN | {"n_tokens": N_TOKENS, "disk": 1 << 20, "free_disk": 1 << 30}
    return tiny_models.write(tmp_path, "llama")


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(f"Drive to place {i}." for i in range(40)))
    return path


def learned_with(target, draft):
    """Return what is kept of a draft for its first answers."""
    models = [str(path.resolve()) for path in (target, draft)]
    entries = [json.loads(path.read_text()) for path in profiles.folder().glob("*.json")]
    [learned] = [e["learned"] for e in entries if e["fingerprint"].get("models") == models]
    return learned


def test_from_prompts_to_a_registered_head_in_two_runs(
    python, target, prompts, tmp_path, monkeypatch
):
    out, said = tmp_path / "out", []
    given = {"python": python, "n_tokens": N_TOKENS, "n_steps": 8, "vocabulary": 100}

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(heads, "extract", killed)
    with pytest.raises(KeyboardInterrupt, match="same command again"):
        edgespec.train_head(target, [prompts], out, progress=said.append, **given)
    monkeypatch.setattr(heads, "extract", features.extract)
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
    for path in (made.path, made.registered):
        assert list(learned_with(target, path)) == ["eagle3"]
    with edgespec.load(target) as engine:
        assert engine.describe()["draft"]["file"] == made.path.name
    before = learned_with(target, made.registered)
    edgespec.check_head(target, [prompts], made.registered, n_prompts=1, max_tokens=8)
    assert learned_with(target, made.registered) == before
    assert said.index("answers") < said.index("hidden states") < said.index("training")
    written = made.path.stat().st_mtime_ns
    trained.register(made.path, target, 99.0)
    again = edgespec.train_head(target, [prompts], out, progress=said.append, **given)
    assert said.count("training") == 1
    assert again.path.stat().st_mtime_ns > written
    assert again.simulated == made.simulated
    assert again.registered is None
    assert "stays: it was 99.00 times as fast" in again.not_registered
    more = given | {"n_tokens": made.n_tokens + 50}
    assert edgespec.train_head(target, [prompts], out, progress=said.append, **more).n_answers > (
        made.n_answers
    )
    assert said.count("training") == 2


def test_graphs_without_their_engine_are_refused_before_anything_is_measured(
    target, prompts, tmp_path, monkeypatch
):
    get = backends.get

    def without_onnx(name):
        if name == "onnx":
            raise EngineMissing("no engine onnx")
        return get(name)

    monkeypatch.setattr(backends, "get", without_onnx)
    with pytest.raises(EngineMissing, match="no engine onnx"):
        edgespec.train_head(target, [prompts], tmp_path / "out", kind="medusa")
    edgespec.plan_training(target, [prompts], tmp_path / "out", n_tokens=N_TOKENS)  # a GGUF


@pytest.mark.parametrize(("gain", "stays"), [(1.05, False), (1.15, True)])
def test_an_earlier_draft_stays_if_it_was_clearly_faster(target, tmp_path, gain, stays):
    from tests.helpers import tiny_heads

    trained.register(tiny_heads.write(tmp_path / "eagle3-tiny.gguf"), target, gain)
    made = SimpleNamespace(path=target, is_private=False)
    served = SimpleNamespace(gain=1.0, gain_high=1.1)
    assert bool(training._why_not_registered(made, served, None)) is stays


def test_as_much_is_accepted_as_was_simulated(python, target, tmp_path, monkeypatch):
    prompts, out = tmp_path / "many.txt", tmp_path / "out"
    prompts.write_text("\n".join(f"Bring box {i} to place {i % 7}." for i in range(120)))
    n_tokens = 4000
    monkeypatch.setattr(work, "_HELD_OUT", 3)  # a flip of one guess is 1% of a single answer
    plan = TrainingPlan(**PLAN | {"n_tokens": n_tokens, "disk": 1 << 20, "free_disk": 1 << 30})
    monkeypatch.setattr(heads, "make_plan", lambda *_: plan)
    options = {"n_tokens": n_tokens, "n_steps": 200}
    made = edgespec.train_head(target, [prompts], out, python=python, **options)
    chosen = training.TrainOptions(**options)
    kind = kinds.make(work.Work(target, [prompts], (), out, chosen, print))
    exact = out / "exact.gguf"
    train_jobs.write_gguf(made.checkpoint, target, kind.shape, "F32", exact)
    served = training.serve(target, exact, kind.work.asked, NEVER)
    result = json.loads((kind.folder / "result.json").read_text())
    found = agreement(result["checked"]["counts"][2], served)
    assert made.simulated_length > 1.2
    assert found.n_answers > 0.8 * served.n_answers
    assert found.low <= found.ratio <= found.high
    assert found.ratio == pytest.approx(1, rel=0.01)
    assert found.by_place[0] == pytest.approx(1, rel=0.01)
    assert made.agreement.ratio == pytest.approx(1, rel=0.05)
    card = (made.checkpoint / "README.md").read_text()
    assert f"{made.agreement.ratio:.3f} times as many drafted tokens a step were accepted" in card


def test_an_earlier_head_is_trained_further(python, target, prompts, tmp_path):
    given = {"python": python, "n_tokens": N_TOKENS, "vocabulary": 100}
    made = edgespec.train_head(target, [prompts], tmp_path / "out", n_steps=8, **given)
    still = {"n_steps": 1, "rate": 1e-12, "start": made.checkpoint}
    further = edgespec.train_head(target, [prompts], tmp_path / "further", **given, **still)
    a, b = (
        {name: each.array() for name, each in tensors.read_safetensors(path).items()}
        for path in (made.checkpoint / WEIGHTS, further.checkpoint / WEIGHTS)
    )
    assert a.keys() == b.keys()
    assert all(np.allclose(a[name], b[name], rtol=1e-5) for name in a)
    assert further.simulated == pytest.approx(made.simulated, abs=0.02)
    with pytest.raises(ConfigError, match="begun with another --from, or none"):
        edgespec.train_head(target, [prompts], tmp_path / "further", n_steps=1, **given)


@pytest.mark.parametrize(("name", "output"), [
    ("eagle3", "lm_head.weight"), ("medusa", "0.1.weight"), ("mlp", "speculator.head.0.weight"),
])  # fmt: skip
def test_an_earlier_head_drafts_the_tokens_of_the_new_answers(
    python, target, prompts, tmp_path, name, output
):
    if name != "eagle3":
        pytest.importorskip("onnxruntime")
    others = tmp_path / "others.txt"
    others.write_text("\n".join(f"{i} words, and no more" for i in range(50, 90)))
    given = {"python": python, "n_tokens": N_TOKENS, "vocabulary": 60, "kind": name}
    made = edgespec.train_head(target, [prompts], tmp_path / "out", n_steps=8, **given)
    still = {"n_steps": 1, "rate": 1e-12, "start": made.checkpoint}
    further = edgespec.train_head(target, [others], tmp_path / "further", **given, **still)
    rows = []
    for path in (made.checkpoint / WEIGHTS, further.checkpoint / WEIGHTS):
        known = {name: each.array() for name, each in tensors.read_safetensors(path).items()}
        drafted = (known["d2t"] + np.arange(len(known["d2t"]))).tolist()
        rows.append(dict(zip(drafted, known[output], strict=True)))
    before, after = rows
    assert 0 < len(before.keys() & after.keys()) < 60
    matrix = matrix_of(target, "lm_head")
    for token, row in after.items():
        assert np.allclose(row, before.get(token, matrix[token]), rtol=1e-5)
    answers = work.Work(
        target, [others], (), tmp_path / "further", training.TrainOptions(), print
    ).answers  # fmt: skip
    counts = np.bincount([token for each in answers for token in each])
    often = np.argsort(-counts)[:20]
    assert counts[often].min() > 0
    assert set(often.tolist()) <= after.keys()


@pytest.mark.parametrize(("kind", "changed", "message"), [
    (None, {}, "has no head to train further: .* holds no checkpoint"),
    (eagle3.Eagle3, {"hidden_size": "wide"}, "has no head to train further: .*hidden_size"),
    (eagle3.Eagle3, {"target_num_hidden_layers": 3}, "another target: its target_num_hidden"),
    (medusa.Medusa, {}, r"holds a head of another kind \(Medusa\); name its kind"),
])  # fmt: skip
def test_what_is_no_earlier_head_of_the_target(target, prompts, tmp_path, kind, changed, message):
    found = tmp_path / "head"
    found.mkdir()
    if kind:
        train_jobs.write_head(found, kind, **changed)
    with pytest.raises(ConfigError, match=message):
        edgespec.plan_training(target, [prompts], tmp_path / "out", start=found)


def test_what_cannot_pay_is_not_begun_unless_it_is_forced(target, prompts, tmp_path, monkeypatch):
    plan = TrainingPlan(**PLAN | {"good_gain": 0.8, "n_tokens": N_TOKENS})
    monkeypatch.setattr(heads, "make_plan", lambda *_: plan)
    with pytest.raises(EdgeSpecError, match="does not pay here"):
        edgespec.train_head(target, [prompts], tmp_path / "out", python=tmp_path, n_tokens=N_TOKENS)
    assert not (tmp_path / "out" / "answers.jsonl").exists()


def test_a_plan_that_is_not_reliable_is_made_again(target, prompts, tmp_path, monkeypatch):
    given = {"python": tmp_path, "n_tokens": N_TOKENS}
    plans = [PLAN | {"good_gain": 0.8, "others": 1.4}, PLAN | {"good_gain": 0.7}]
    monkeypatch.setattr(heads, "make_plan", lambda *_: TrainingPlan(**plans.pop(0)))
    with pytest.raises(EdgeSpecError, match=r"pay here.*0\.80.*used 1\.4 cores.*plan again"):
        edgespec.train_head(target, [prompts], tmp_path / "out", **given)
    with pytest.raises(EdgeSpecError, match=r"0\.70 .* on this device\. To train all .* --force"):
        edgespec.train_head(target, [prompts], tmp_path / "out", **given)


def test_a_plan_that_is_not_reliable_counts_once_all_answers_are_there(
    target, prompts, tmp_path, monkeypatch
):
    plans = [PLAN | {"others": 1.4, "n_tokens": 100}] * 2
    monkeypatch.setattr(heads, "make_plan", lambda *_: TrainingPlan(**plans.pop()))

    def killed(*_):
        raise KeyboardInterrupt

    for stage in ("answer", "answer_alone", "answer_alone"):
        with monkeypatch.context() as patched:
            patched.setattr(work.Work, stage, killed)
            with pytest.raises(KeyboardInterrupt):
                edgespec.train_head(
                    target, [prompts], tmp_path / "out", python=tmp_path, n_tokens=100
                )
    assert not plans  # made before and after the first stop, and not after the others


@pytest.mark.parametrize(
    ("module", "stage"), [(work, "record"), (heads, "extract"), (training, "register")]
)
def test_a_full_disk_is_a_sentence_and_later_runs_go_on(
    python, target, prompts, tmp_path, monkeypatch, module, stage
):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    given = {"python": python, "n_tokens": N_TOKENS, "n_steps": 2, "vocabulary": 100}
    with monkeypatch.context() as patch:
        patch.setattr(module, stage, full)
        with pytest.raises(EdgeSpecError, match=r"disk is full .* run the same command again"):
            edgespec.train_head(target, [prompts], tmp_path / "out", **given)
    assert edgespec.train_head(target, [prompts], tmp_path / "out", **given).registered.exists()


def test_a_tool_that_had_no_room_is_a_full_disk(python, target, prompts, tmp_path, monkeypatch):
    def failed(*_, **__):
        raise ConversionError("training failed: no reason given")

    given = {"python": python, "n_tokens": N_TOKENS, "n_steps": 2, "vocabulary": 100}
    monkeypatch.setattr(training.tools, "run_worker", failed)
    with pytest.raises(ConversionError, match="no reason given"):
        edgespec.train_head(target, [prompts], tmp_path / "out", **given)
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(training.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(EdgeSpecError, match="disk is full"):
        edgespec.train_head(target, [prompts], tmp_path / "out", **given)


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


def test_a_check_names_the_draft_next_to_a_checkpoint(target, prompts, tmp_path):
    checkpoint, draft = tmp_path / "eagle3" / "head", tmp_path / "eagle3" / "eagle3-a.gguf"
    checkpoint.mkdir(parents=True)
    for path in (checkpoint / WEIGHTS, draft):
        path.touch()
    with pytest.raises(ConfigError, match=f"is a checkpoint: name the draft .*{draft.name}"):
        edgespec.check_head(target, [prompts], checkpoint)


@pytest.mark.parametrize(("n", "chosen"), [
    (3, [0, 3, 6]),
    (9, range(9)),
    (10, range(10)),
    (24, range(10)),
])  # fmt: skip
def test_a_check_asks_prompts_of_all_parts_of_the_file(target, tmp_path, monkeypatch, n, chosen):
    asked = []
    monkeypatch.setattr(
        training, "serve", lambda _target, _head, given, _pauses: asked.extend(given)
    )
    file = tmp_path / "ten.txt"
    file.write_text("\n".join("a" * (i + 1) for i in range(10)))
    edgespec.check_head(target, [file], target, n_prompts=n)
    with training.opened(target, 64) as model:
        known = [
            training.prompt_ids(model.tokenizer, each) for each in training.read_prompts([file])
        ]
    assert [ids for ids, _ in asked] == [known[i] for i in chosen]


@pytest.mark.parametrize(("options", "message"), [
    ({"kind": "moa"}, "unknown kind 'moa'"),
    ({"n_tokens": 0}, "n_tokens must be more than 0"),
    ({"minutes": -1}, "minutes must be at least 0"),
    ({"rate": float("nan")}, "rate must be at least 0"),
])  # fmt: skip
def test_impossible_options(target, prompts, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        edgespec.plan_training(target, [prompts], tmp_path / "out", **options)


def test_another_target_and_other_prompts_are_not_mixed_in(target, prompts, tmp_path, monkeypatch):
    plan = TrainingPlan(**PLAN | {"good_gain": 0.8, "n_tokens": N_TOKENS})
    monkeypatch.setattr(heads, "make_plan", lambda *_: plan)

    def begin(message, target=target, without=()):
        given = {"python": tmp_path, "without": without, "n_tokens": N_TOKENS}
        with pytest.raises(EdgeSpecError, match=message):
            edgespec.train_head(target, [prompts], tmp_path / "out", **given)

    begin("does not pay")
    begin("begun with another model", tiny_models.write(tmp_path, "qwen2"))
    without = tmp_path / "without.txt"
    without.write_text("Drive to place 3.")
    begin("begun with other prompts", without=[without])
    prompts.write_text("Something else.\nAnd more.")
    begin("begun with other prompts")


def test_no_prompt_of_an_evaluation_is_recorded(target, prompts, tmp_path, monkeypatch):
    evaluation, out = tmp_path / "evaluation.jsonl", tmp_path / "out"
    evaluation.write_text('{"turns": ["drive to place 3.", "Drive  to place 5."]}\n')

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(heads, "extract", killed)
    with pytest.raises(KeyboardInterrupt):
        edgespec.train_head(
            target, [prompts], out, python=tmp_path, without=[evaluation], n_tokens=10**6
        )
    with backends.of(target).vocabulary(target) as tokenizer:
        asked = {b"".join(map(tokenizer.piece, each.ids[: each.n_prompt])) for each in
                 Recordings(out).done}  # fmt: skip
    texts = {each.decode().replace("\u2581", " ") for each in asked}
    places = [i for i in range(40) if any(f"Drive to place {i}." in each for each in texts)]
    assert places == [i for i in range(40) if i not in (3, 5)]


def test_a_head_made_of_own_texts_is_private(python, target, tmp_path, monkeypatch):
    chats = [[{"role": "user", "content": f"Where is box {i}?"}] for i in range(40)]
    monkeypatch.setattr(work, "own_prompts", lambda _: list(chats))
    given = {"python": python, "n_tokens": N_TOKENS, "n_steps": 2, "vocabulary": 100}
    out = tmp_path / "out"
    made = edgespec.train_head(target, [], out, from_corpus=True, **given)
    for folder in (out, made.registered.parent):
        everything = [folder, *(path for path in folder.rglob("*") if path.suffix != ".lock")]
        assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in everything} == {0}
    assert "Private: do not publish" in (made.checkpoint / "README.md").read_text()
    for corpus, paths in ((None, [made.registered]), ((), [])):  # however large the head is
        spec = SpeculativeConfig(method="draft_model", draft_corpus=corpus)
        assert drafts.draft_paths(target, "auto", EngineConfig(), spec) == paths
    chats.append([{"role": "user", "content": "Said since then."}])
    again = edgespec.train_head(target, [], out, from_corpus=True, **given)
    assert again.n_tokens == made.n_tokens
    assert edgespec.forget_training(out)
    assert not (out / "own-prompts.json").exists()


@pytest.mark.parametrize("name", ["medusa", "mlp"])
def test_heads_without_a_cache_accept_as_much_as_was_simulated(
    python, target, prompts, tmp_path, name
):
    pytest.importorskip("onnxruntime")
    given = {"python": python, "n_tokens": N_TOKENS, "kind": name, "vocabulary": 150}
    made = edgespec.train_head(target, [prompts], tmp_path / "out", n_steps=150, **given)
    facts = edgespec.inspect_head(made.path)
    assert facts.kind == {"medusa": "medusa", "mlp": "mlp_speculator"}[name]
    assert facts.n_drafted == 150
    assert facts.max_depth == 3
    exact = convert_head(
        made.checkpoint, target, tmp_path / "exact", precision="fp32", python=python
    ).path
    options = training.TrainOptions(n_tokens=N_TOKENS, kind=name)
    own = work.Work(target, [prompts], (), tmp_path / "out", options, print)
    served = training.serve(target, exact, own.asked, NEVER)
    assert made.simulated_length > 1.2
    assert served.acceptance_length - 1 == pytest.approx(made.simulated_length - 1, rel=0.01)
    still = {"n_steps": 1, "rate": 1e-12, "start": made.checkpoint}
    further = edgespec.train_head(target, [prompts], tmp_path / "further", **given, **still)
    assert further.simulated == pytest.approx(made.simulated, abs=0.02)


@pytest.mark.skipif(os.name != "posix", reason="files have no modes")
def test_a_training_that_begins_with_a_private_draft_is_private(target, prompts, tmp_path):
    start = tmp_path / "model.safetensors"
    start.touch()
    options = training.TrainOptions(start=start)
    for mode, is_private in ((0o644, False), (0o600, True)):
        start.chmod(mode)
        made = work.Work(target, [prompts], (), tmp_path / "out", options, print)
        assert made.is_private == is_private


def test_prompts_count_in_the_plan_with_their_length(target, tmp_path):
    short, long = tmp_path / "short.txt", tmp_path / "long.txt"
    short.write_text("one\ntwo\nthree\n")
    long.write_text("\n".join(f"{i} " + "word " * (2000 if i % 2 else 40) for i in range(200)))
    made = [
        work.Work(target, [file], (), tmp_path / file.stem, training.TrainOptions(), print)
        for file in (short, long)
    ]
    with opened(target) as model:
        few, many = (each.longer(model.tokenizer) for each in made)
        assert 1 < few < 1.5 < many < 5  # prompts that do not fit are not asked
        each, ids = made[0], list(range(30))
        with alone(each.folder):
            each.recordings.add(Recording(0, 0, "done", ids=ids, n_prompt=20))
            each.recordings.add(Recording(1, 0, "done", ids=ids, n_prompt=10))
        assert each.longer(model.tokenizer) == 60 / 30  # of what was recorded


def test_the_tokens_of_the_answers_are_drafted_first(target, prompts, tmp_path):
    made = work.Work(target, [prompts], (), tmp_path / "out", training.TrainOptions(), print)
    with alone(made.folder):
        for number in range(2):
            answer = Recording(number, 0, "done", ids=[9, 30, 31, 31], n_prompt=1)
            made.recordings.add(answer)
    assert made.frequent(2, 50) == [30, 31]
    assert made.frequent(4, 50) == [0, 1, 30, 31]
    assert made.frequent(4, 50, rather=[40, 30, 41]) == [30, 31, 40, 41]
    assert made.frequent(3, 50, rather=[40, 41], always=[7]) == [7, 30, 31]


@pytest.mark.parametrize("text", ["{", '{"n_tokens": 600}', '{"unknown": 1}'])
def test_a_plan_that_cannot_be_read_is_made_anew(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert training._kept_plan(path, N_TOKENS) is None
    path.write_text(json.dumps(PLAN | {"n_tokens": N_TOKENS}))
    assert training._kept_plan(path, N_TOKENS).n_tokens == N_TOKENS
