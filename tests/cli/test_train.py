"""`edgespec train`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import edgespec

SERVED = edgespec.ServedHead(24, 3000, 1.456, (0.31, 0.1, 0.046), 1.0, 1.07, 1.02, 1.12)
PLAN = edgespec.TrainingPlan(
    30_000, 45.0, 230.0, 900.0, {"answers": 667.0, "hidden states": 196.0, "training": 100.0},
    200_000_000, 5_000_000_000, 400_000_000, 1.53, None, 1.33, 1.0, 1.14,
)  # fmt: skip


@pytest.fixture
def given(monkeypatch):
    """Replace the functions of the API by some that do nothing; return what they are given."""
    found = {}

    def standing_in(name, made):
        def call(*arguments, progress=None, **options):
            found.update(name=name, arguments=arguments, **options)
            if progress:
                progress("answers: 5 of 10 tokens")
            return made

        monkeypatch.setattr(edgespec, name, call)

    head = edgespec.TrainedHead(
        Path("DIR/eagle3-a.gguf"), Path("DIR/head"), Path("models/a/eagle3-a.gguf"), PLAN, 30_100,
        210, 198, 1, 1, 1.46, (0.31, 0.1, 0.05), SERVED,
    )  # fmt: skip
    standing_in("train_head", head)
    standing_in("plan_training", PLAN)
    standing_in("check_head", SERVED)
    standing_in("forget_training", 2_000_000)
    return found


@pytest.fixture
def prompts(edgespec_cli):
    path = edgespec_cli.folder / "prompts.txt"
    path.write_text("Go left.\nStop.\n")
    return str(path)


def test_training_says_what_it_made(edgespec_cli, given, prompts):
    done = edgespec_cli(
        "train", str(edgespec_cli.model), "--prompts", prompts, "--tokens", "30000", "--minutes",
        "5", "--vocabulary", "4096", "--force", "--without", prompts, "--kind",
        "eagle3", "-o", "DIR",
    )  # fmt: skip
    assert done.exit_code == 0
    assert "made          DIR/eagle3-a.gguf" in done.stdout
    assert "registered    models/a/eagle3-a.gguf" in done.stdout
    assert "30100 tokens in 210 answers to 198 prompts; 1 prompts skipped, 1 failed" in done.stdout
    assert "simulated     acceptance length 1.46" in done.stdout
    assert "served        acceptance length 1.46" in done.stdout
    assert "31%, 10%, 5% of the drafts (24 answers)" in done.stdout
    assert "1.07 times as fast as plain decoding (1.02–1.12)" in done.stdout
    assert given["name"] == "train_head"
    assert (given["n_tokens"], given["minutes"], given["vocabulary"]) == (30000, 5.0, 4096)
    assert (given["force"], given["kind"]) == (True, "eagle3")
    assert given["without"] == (Path(prompts),)


def test_a_changed_draft_model_is_compared_with_the_one_before(edgespec_cli, monkeypatch, prompts):
    paired = edgespec.PairedDraft(SERVED, 0.21, -0.04, 0.5, 0.025, 0.024, 1.06, 0.99, 1.13)
    made = edgespec.TrainedHead(
        Path("DIR/distill/a.gguf"), Path("DIR/distill/draft"), None, PLAN, 30_100, 210, 198, 1, 1,
        0.0, (), SERVED, paired, not_registered="models/a/b.gguf stays: it was faster",
    )  # fmt: skip
    monkeypatch.setattr(edgespec, "train_head", lambda *_, **__: made)
    done = edgespec_cli(
        "train", str(edgespec_cli.model), "--prompts", prompts, "--kind", "distill", "--from",
        "b.gguf", "-o", "DIR",
    )  # fmt: skip
    assert "registered    no: models/a/b.gguf stays: it was faster" in done.stdout
    assert "before        acceptance length 1.46; now +0.21 (-0.04 to +0.50)" in done.stdout
    assert "result        No gain was shown: drafting is 1.060 (0.990–1.130) times" in done.stdout
    assert "simulated" not in done.stdout


def test_a_plan_is_a_sentence_and_a_table(edgespec_cli, given, prompts):
    done = edgespec_cli(
        "train", str(edgespec_cli.model), "--prompts", prompts, "--plan", "-o", "DIR"
    )
    assert given["name"] == "plan_training"
    assert "plan          In about 16 minutes" in done.stdout
    assert "answers       11 min, 45 tokens/s" in done.stdout
    assert "disk          200.0 MB of 5.0 GB that are free" in done.stdout
    assert "break even    acceptance length 1.53, as fast as plain decoding\n" in done.stdout
    assert "1.15 times    not reached by any draft" in done.stdout
    assert "draft model" not in done.stdout


def test_a_plan_compares_with_the_draft_model_that_is_there(edgespec_cli, prompts, monkeypatch):
    plan = replace(PLAN, draft_model="small.gguf", draft_length=2.1, draft_gain=1.3, as_draft=1.9)
    monkeypatch.setattr(edgespec, "plan_training", lambda *_, **__: plan)
    model = str(edgespec_cli.model)
    done = edgespec_cli("train", model, "--prompts", prompts, "--plan", "-o", "DIR")
    assert "draft model   small.gguf is there: acceptance length 2.10, at best 1.30" in done.stdout
    assert "as fast as it acceptance length 1.90\n" in done.stdout
    assert "1.15 times it not reached by any draft\n" in done.stdout


def test_a_plan_beside_other_programs_warns(edgespec_cli, given, prompts, monkeypatch):
    monkeypatch.setattr(edgespec, "plan_training", lambda *_, **__: replace(PLAN, others=1.2))
    model = str(edgespec_cli.model)
    done = edgespec_cli("train", model, "--prompts", prompts, "--plan", "-o", "DIR")
    assert "warning       Other programs used 1.2 cores" in done.stdout


def test_checking_a_head_beside_other_programs_warns(edgespec_cli, prompts, monkeypatch):
    monkeypatch.setattr(edgespec, "check_head", lambda *_, **__: replace(SERVED, others=1.2))
    done = edgespec_cli("train", str(edgespec_cli.model), "--prompts", prompts, "--check", "a.gguf")
    assert "warning       Other programs used 1.2 cores meanwhile, so the speed" in done.stdout


def test_own_texts_need_no_file_of_prompts(edgespec_cli, given):
    done = edgespec_cli("train", str(edgespec_cli.model), "--from-corpus", "--gently", "-o", "DIR")
    assert done.exit_code == 0
    assert given["from_corpus"] is True
    assert given["gently"] is True


def test_checking_a_head_shows_the_interval_of_each_token(edgespec_cli, monkeypatch, prompts):
    intervals = ((0.28, 0.34), (0.08, 0.12), (0.04, 0.06))
    served = replace(SERVED, intervals=intervals)
    monkeypatch.setattr(edgespec, "check_head", lambda *_, **__: served)
    model = str(edgespec_cli.model)
    done = edgespec_cli("train", model, "--prompts", prompts, "--check", model)
    assert "accepted in 31% (28%–34%), 10% (8%–12%), 5% (4%–6%) of the drafts" in done.stdout


def test_checking_a_head_as_json(edgespec_cli, given, prompts):
    model = str(edgespec_cli.model)
    done = edgespec_cli("train", model, "--prompts", prompts, "--check", model, "--json")
    assert given["name"] == "check_head"
    assert json.loads(done.stdout)["acceptance_length"] == 1.456


def test_forgetting_needs_no_target(edgespec_cli, given):
    (edgespec_cli.folder / "DIR").mkdir()
    done = edgespec_cli("train", "--forget", str(edgespec_cli.folder / "DIR"))
    assert done.stdout == "deleted 2.0 MB; finished drafts stay\n"


@pytest.mark.parametrize(("arguments", "message"), [
    ((), "the model to draft for"),
    (("MODEL",), "--prompts PATH"),
    (("MODEL", "--prompts", "PROMPTS"), "-o DIR"),
    (("MODEL", "--prompts", "PROMPTS", "--check", "MODEL", "-o", "DIR"), "leave --plan, -o"),
    (("MODEL", "--from-corpus", "--check", "MODEL"), "--from-corpus out"),
    (("MODEL", "--prompts", "nowhere.txt", "-o", "DIR"), "nowhere.txt"),
    (("MODEL", "--prompts", "PROMTS", "-o", "DIR"), "prompts.txt'?"),
    (("MODEL", "--prompts", f"{'a' * 400}/b", "-o", "DIR"), "does not exist"),
    (("MODEL", "--prompts", "PROMPTS", "--kind", "moa", "-o", "DIR"), "moa"),
    (("MODEL", "--prompts", "PROMPTS", "--tokens", "0", "-o", "DIR"), "--tokens"),
])  # fmt: skip
def test_wrong_arguments(edgespec_cli, given, prompts, arguments, message):
    misspelt = prompts.replace("prompts.txt", "promts.txt")
    named = {"MODEL": str(edgespec_cli.model), "PROMPTS": prompts, "PROMTS": misspelt}
    done = edgespec_cli("train", *(named.get(each, each) for each in arguments))
    assert done.exit_code == 2
    assert message in done.stderr
