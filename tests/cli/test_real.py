"""The CLI on real weights."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

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
