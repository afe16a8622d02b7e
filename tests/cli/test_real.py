"""The CLI on real weights."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from edgespec.bench import traces
from edgespec.bench.traces import N_DRAFTED, N_TOP
from edgespec_cli.main import cli
from tests.helpers import libllama

libllama.require()


@pytest.fixture
def real(smollm2, tmp_path, monkeypatch):
    """Run the CLI with SmolLM2 as its model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGESPEC_MODEL", str(smollm2))
    monkeypatch.setenv("EDGESPEC_CTX_SIZE", "1024")

    def run(*args: str, input: str = ""):
        result = CliRunner().invoke(cli, args, input=input, prog_name="edgespec")
        assert result.exit_code == 0, result.stderr
        return result

    return run


def test_the_same_text_with_and_without_speculation(real):
    args = ("run", "--json", "-n", "48", "Repeat this five times: the cat sat on the mat.")
    texts = []
    for kind in ("none", "suffix"):
        done = json.loads(real(*args, "--spec-type", kind).stdout.splitlines()[-1])
        assert done["type"] == "done"
        texts.append(done["token_ids"])
    assert texts[0] == texts[1]


def test_a_conversation_is_saved_and_goes_on(real):
    first = real("chat", "-n", "24", input="My name is Ada.\n/save c.json\n")
    assert first.stdout.strip()
    then = real("chat", "-n", "24", input="/load c.json\nWhat is my name?\n/stats\n")
    assert "2 messages from c.json" in then.stderr
    assert "this session: answers 1" in then.stderr


def test_log_probabilities(real):
    output = real("run", "--raw", "--json", "--logprobs", "3", "-n", "4", "1, 2, 3, 4,").stdout
    tokens = [e for e in map(json.loads, output.splitlines()) if e["type"] == "token"]
    for token in tokens:
        best = token["logprob"]["top"][0]
        assert best == [token["token"], token["logprob"]["logprob"]]


def test_inspect(real, smollm2):
    data = json.loads(real("inspect", str(smollm2), "--json").stdout)
    assert (data["architecture"], data["vocab_size"]) == ("llama", 49152)


@pytest.mark.long("over 500 tokens of real weights")
def test_an_answer_without_end_is_ended(real):
    told = real("run", "--temp", "0", "What is the capital of France?")
    assert "stopped: it repeats itself" in told.stderr
    assert "accepted" not in told.stderr


@pytest.mark.long("records and replays real weights")
def test_a_recording_is_replayed(real, smollm2, small_draft, tmp_path):
    models = ("-m", str(smollm2), "-md", str(small_draft), "--no-requantize-draft")
    questions = ("--category", "file_editing", "--per-category", "1", "-n", "24")
    real("bench", "record", "out.gz", *models, *questions)
    for trace in traces.load(tmp_path / "out.gz"):
        drafts = trace.drafts["draft_model"]
        assert len(trace.output) == len(trace.top) == len(drafts.rows) <= 24
        assert [row[0][0] for row in trace.top] == trace.output
        assert all(len(row) == N_TOP and _falls(row) for row in trace.top)
        assert all(len(row) == N_DRAFTED and _falls(row) for row in drafts.rows)
        first = [row[0][0] for row in drafts.rows]
        assert set(drafts.tails) == {i for i, t in enumerate(trace.output) if t != first[i]}
        assert 0 < len(drafts.tails) < len(trace.output)
    replay = real(
        "bench", "replay", "--traces", "out.gz", "--no-fixed", "--json", "--profile", "gpu-flat"
    )
    speed = {row["policy"]: row["speedup"] for row in map(json.loads, replay.stdout.splitlines())}
    assert speed["auto"] > speed["plain"] == 1


def _falls(row):
    probs = [prob for _, prob in row]
    return probs == sorted(probs, reverse=True) and sum(probs) <= 1.01
