"""`edgespec tune` and `edgespec doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import edgespec
from edgespec.costs.curves import Curve
from edgespec.costs.profiles import Profile
from edgespec_cli import tuning
from tests.helpers import libllama

TARGET = Curve((64, 1024), (1, 2, 4, 8), ((0.03, 0.05, 0.08, 0.12), (0.04, 0.06, 0.1, 0.14)))
DRAFT = Curve((64,), (1, 8), ((0.005, 0.01),))


@pytest.fixture
def tuned(monkeypatch) -> list[dict]:
    """`edgespec.tune` without a model; what it was given."""
    asked: list[dict] = []

    def tune(model, draft=None, *, progress, **arguments):
        asked.append({"model": model, "draft": draft} | arguments)
        progress("loading")
        one = edgespec.Candidate(1, "1 thread", 61.2, 0.5, 5)
        two = edgespec.Candidate(2, "2 threads", 33.4, 0.5, 5)
        choice = edgespec.Choice("n_threads", "one token", (one, two), 2, "83% faster")
        profile = Profile(TARGET, DRAFT if draft else None)
        name = "draft \x1b[2J" if draft else None
        options = {"n_threads": 2}
        return edgespec.Tuning("m.gguf", name, (choice,), options, profile, 12.0, Path("kept/x"))

    monkeypatch.setattr(edgespec, "tune", tune)
    return asked


def test_tune_says_what_it_tried_and_chose(edgespec_cli, tuned):
    result = edgespec_cli("tune", "-m", "toy.gguf", "-md", "draft.gguf", "-c", "2048")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(
        "Speculation pays here, because checking 5 tokens at once takes"
    )
    for said in (
        "m.gguf, 12 s", "1 thread 61.2 ms, 2 threads 33.4 ms: 2 threads", "83% faster",
        "t(8)/t(1)", "1024", "lookup drafts: at most", "draft ␛[2J takes 5.0 ms a token",
        "later loads:   n_threads 2; kept in kept",
    ):  # fmt: skip
        assert said in result.stdout
    assert tuned == [{
        "model": "toy.gguf", "draft": "draft.gguf", "n_ctx": 2048, "draft_options": None,
        "budget_s": 25.0, "keep_busy": False,
    }]  # fmt: skip


def test_tune_beside_other_programs(edgespec_cli, monkeypatch):
    found = edgespec.Tuning("m.gguf", None, (), {}, Profile(TARGET), 12.0, None, others=1.9)
    monkeypatch.setattr(edgespec, "tune", lambda *args, **options: found)
    result = edgespec_cli("tune", "-m", "toy.gguf", "-md", "none")
    assert "later loads:   as before: nothing was kept, because other programs" in result.stdout
    assert "other programs used 1.9 cores meanwhile: run it again" in result.stderr
    assert result.exit_code == 1


def test_tune_beside_others_says_so_before_it_measures(edgespec_cli, tuned, busy_machine):
    assert "other programs use 1.5 cores" in edgespec_cli("tune", "-m", "toy.gguf", "--busy").stderr


@pytest.mark.parametrize(("command", "function"), [("tune", "tune"), ("doctor", "diagnose")])
def test_ctrl_c_leaves_whole_json(edgespec_cli, monkeypatch, command, function):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(edgespec, function, interrupted)
    done = edgespec_cli(command, "-m", "toy.gguf", "--json")
    assert done.exit_code == 130
    assert json.loads(done.stdout)["error"] == "KeyboardInterrupt"


def test_tune_that_did_not_begin(edgespec_cli, monkeypatch):
    found = edgespec.Tuning("m.gguf", None, (), {}, None, 1.0, None, others=1.9)
    monkeypatch.setattr(edgespec, "tune", lambda *args, **options: found)
    result = edgespec_cli("tune", "-m", "toy.gguf", "-md", "none")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing was measured: other programs use 1.9 cores; stop them" in result.stderr
    assert "--busy" in result.stderr
    done = edgespec_cli("tune", "-m", "toy.gguf", "--json")
    assert (done.exit_code, json.loads(done.stdout)["target"]) == (1, None)


def test_tune_names_what_it_left_out_and_refused(edgespec_cli, monkeypatch):
    found = edgespec.Tuning(
        "m.gguf", None, (), {}, None, 3.0, Path("kept/x"), others=1.9,
        left_out=("flash_attn off", "the times of m.gguf"), refused="m.gguf: they varied",
    )  # fmt: skip
    monkeypatch.setattr(edgespec, "tune", lambda *args, **options: found)
    result = edgespec_cli("tune", "-m", "toy.gguf", "--busy")
    assert result.exit_code == 0
    assert "left out:      flash_attn off, the times of m.gguf; a longer --budget" in result.stdout
    assert "not kept:      the measured times of m.gguf: they varied" in result.stdout


def test_tune_as_json(edgespec_cli, tuned):
    result = edgespec_cli("tune", "-m", "toy.gguf", "-md", "none", "--json", "--budget", "5")
    report = json.loads(result.stdout)
    assert report["options"] == {"n_threads": 2}
    assert report["choices"][0]["candidates"][1]["label"] == "2 threads"
    assert (report["target"]["lengths"], report["draft_speedup"]) == ([64, 1024], None)
    assert tuned[0]["draft"] is None
    assert tuned[0]["budget_s"] == 5


def test_tune_of_what_cannot_be(edgespec_cli):
    libllama.require()
    assert edgespec_cli("tune", "-m", "toy.gguf", "--budget", "0").exit_code == 2
    assert edgespec_cli("tune", "-m", "toy.gguf", "-t", "-4").exit_code == 2
    result = edgespec_cli("tune", "-m", "toy.gguf")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "edgespec: error: toy.gguf is empty; fetch it again\n"


@pytest.fixture
def findings(monkeypatch) -> list[edgespec.Finding]:
    found = [
        edgespec.Finding("ok", "processor", "Z80 x1"),
        edgespec.Finding("note", "draft", "slow \x1b[2J", "leave it out"),
    ]

    def diagnose(model=None, *, report, **arguments):
        for finding in found:
            report(finding)
        return found

    monkeypatch.setattr(edgespec, "diagnose", diagnose)
    return found


def test_doctor_says_what_it_found(edgespec_cli, findings):
    result = edgespec_cli("doctor", "-m", "toy.gguf")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines == [
        ["ok", "processor", "Z80", "x1"],
        ["note", "draft", "slow", "␛[2J"],
        ["→", "leave", "it", "out"],
    ]


def test_doctor_prints_each_finding_when_it_is_known(edgespec_cli, monkeypatch):
    printed, after = [], []

    def diagnose(model=None, *, budget_s, report, **arguments):
        assert budget_s == 7
        for text in ("first", "second"):
            report(edgespec.Finding("ok", "processor", text))
            after.append(len(printed))
        return []

    monkeypatch.setattr(edgespec, "diagnose", diagnose)
    monkeypatch.setattr(tuning, "show", printed.append)
    assert edgespec_cli("doctor", "-m", "toy.gguf", "--budget", "7").exit_code == 0
    assert after == [1, 2]


def test_doctor_begins_with_the_verdict(edgespec_cli, findings):
    findings.insert(0, edgespec.Finding("note", "verdict", "Speculation seldom pays here."))
    lines = edgespec_cli("doctor", "-m", "toy.gguf").stdout.splitlines()
    assert [line.strip() for line in lines[:2]] == ["Speculation seldom pays here.", ""]
    assert lines[2].split() == ["ok", "processor", "Z80", "x1"]


def test_doctor_as_json_and_when_something_is_broken(edgespec_cli, findings):
    findings.append(edgespec.Finding("problem", "model", "gone", "fetch it", broken=True))
    result = edgespec_cli("doctor", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)[-1] == {
        "level": "problem", "subject": "model", "text": "gone", "remedy": "fetch it",
        "broken": True,
    }  # fmt: skip


def test_the_temperature_is_not_for_a_verifier(edgespec_cli, monkeypatch):
    monkeypatch.setattr(edgespec, "diagnose_verifier", lambda **arguments: [])
    given = ("doctor", "--verifier", "ws://127.0.0.1:9", "-m", "toy.gguf")
    done = edgespec_cli(*given, "--temp", "0.8")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--temp has no effect with --verifier" in done.stderr
    assert edgespec_cli(*given, env={"EDGESPEC_TEMP": "0.8"}).exit_code == 0


def test_doctor_without_a_model(edgespec_cli):
    engine = libllama.require().engine()
    result = edgespec_cli("doctor")
    assert result.exit_code == 0
    assert f"{engine}, with " in result.stdout
    assert edgespec_cli("doctor", "--temp", "-1").exit_code == 2
    broken = edgespec_cli("doctor", "-m", "toy.gguf")
    assert broken.exit_code == 1
    assert "toy.gguf is empty; fetch it again" in broken.stdout


def test_both_on_real_weights(smollm2, edgespec_cli, monkeypatch, tmp_path):
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    given = ("-m", str(smollm2), "-md", "none", "-c", "512")
    tuned = edgespec_cli("tune", *given, "-t", "1", "--budget", "5", "--busy", "--json")
    assert tuned.exit_code == 0, tuned.stderr
    report = json.loads(tuned.stdout)
    assert report["target"] is None or report["target"]["widths"][0] == 1  # if there was time
    looked = edgespec_cli("doctor", *given)
    assert looked.exit_code == 0, looked.stderr
    assert looked.stdout.startswith(("Speculation", "Whether speculation pays"))
    assert " ms now" in looked.stdout
