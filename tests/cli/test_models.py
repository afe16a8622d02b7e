"""`edgespec models`, `pull`, `inspect` and `completion`."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from click.shell_completion import ShellComplete

import edgespec
from edgespec import hub
from edgespec.costs.places import Place
from edgespec.decoding.kept import Kept
from edgespec.decoding.owners import OwnRates
from edgespec.drafters.base import Drafter
from edgespec.hub import catalogue, hub_client, ladder
from edgespec.loading.models import open_model
from edgespec_cli import loading, render
from edgespec_cli.loading import plain_progress
from edgespec_cli.main import cli
from tests.helpers import gguf_files, libllama, projector_files
from tests.helpers.catalogue import HEADS, PROJECTOR, TOML


def test_models_begins_with_what_to_take_and_lists_the_catalogue(edgespec_cli, monkeypatch):
    laptop = [Place("processor", 6_500_000_000, 24e9)]
    monkeypatch.setattr(ladder, "places", lambda: laptop)
    result = edgespec_cli("models")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "to take on this device (processor, 6.5 GB of memory free):"
    title = next(i for i, line in enumerate(lines) if line.split()[:1] == ["name"])
    taken = [line.strip() for line in lines[:title] if line.startswith("  ") and line[2] != " "]
    assert taken == ["qwen3-4b", "qwen3-0.6b:Q4_K_M", "qwen2.5-coder-1.5b"]
    assert "2.5 GB to fetch, 4.0 GB of memory, about 10 tokens/s (typical, not" in lines[4]
    assert "the draft model qwen3-0.6b:Q4_K_M (1.4 GB of memory more)" in lines[4]
    rows = [line.split() for line in lines[title + 1 :]]
    assert {row[0] for row in rows} == set(hub.entries())
    named = {row[0]: " ".join(row) for row in rows}
    assert named["smollm2-135m"] == "smollm2-135m draft 98.4 MB 587.1 MB 244 no Apache-2.0 –"
    assert "too large" in named["qwen3-8b"]
    uses = [hub.entry(row[0]).use for row in rows]
    assert uses == sorted(uses, key=["chat", "code", "reasoning", "draft", "base"].index)
    chat = [row[0] for row, use in zip(rows, uses, strict=True) if use == "chat"]
    assert chat[0] == "qwen3-vl-4b"  # the largest that is fast enough
    assert named["smolvlm-256m"].startswith("smolvlm-256m chat, pictures 175.1 MB 767.6 MB")
    assert set(chat[-3:]) == {"llama-3.1-8b", "qwen3-8b", "qwen2.5-7b"}  # those that are not
    assert "8192 tokens of context" in result.stderr


def test_models_as_json(edgespec_cli):
    hub.choose("qwen3-4b:Q8_0")
    rows = json.loads(edgespec_cli("models", "--json").stdout)
    assert [row["name"] for row in rows] == list(hub.entries())
    assert [row["name"] for row in rows if row["default"]] == ["qwen3-4b"]
    assert all(file["path"] is None for row in rows for file in row["files"])
    files = {row["name"]: row["files"][0] for row in rows}
    kv_cache = 2 * 2 * 30 * 3 * 64 * 8192  # keys and values, two bytes, layers, heads, their size
    assert files["smollm2-135m"]["memory"] == 98_362_432 + kv_cache + hub.WORK_SPACE
    assert all(file["memory"] > file["size"] for file in files.values())
    eyes = {"filename": "mmproj-model-f16.gguf", "size": 851_251_104}
    assert files["gemma-3-4b-it"]["projector"] == eyes
    assert files["gemma-3-1b-it"]["projector"] is None
    told = edgespec_cli("models", "gemma-3-4b-it").stdout
    assert "pictures    with mmproj-model-f16.gguf, 851.3 MB, which comes with it; no" in told


def test_a_name_that_the_catalogue_does_not_have_is_looked_up_at_the_hub(edgespec_cli, monkeypatch):
    asked = []
    monkeypatch.setattr(hub_client, "search", lambda name: asked.append(name) or ["org/New-GGUF"])
    for args in (("pull", "new-4b"), ("run", "-m", "new-4b", "hello"), ("models", "new-4b")):
        told = edgespec_cli(*args)
        assert told.exit_code == 1
        assert "The hub has hf:org/New-GGUF: give one of these instead" in told.stderr
    assert asked == ["new-4b"] * 3
    for args in (("pull", "./new.gguf"), ("pull", "new-4b", "--offline"), ("pull", "org/new")):
        assert "The hub has" not in edgespec_cli(*args).stderr
    assert len(asked) == 3


def test_models_shows_one_with_what_drafts_for_it(edgespec_cli, monkeypatch):
    entry = catalogue.parse(TOML + HEADS, "toy.toml")
    monkeypatch.setattr(catalogue, "load", lambda: {entry.name: entry})
    told = edgespec_cli("models", "toy-1b").stdout
    assert "head        eagle3, hf:org/toy_eagle3, a checkpoint to convert; licence: MIT\n" in told
    assert "dflash, hf:org/toy/dflash-toy-Q8_0.gguf@v2; licence: see its card\n" in told
    assert "Q8_0" in told
    assert all(file.filename in told for file in hub.entry("toy-1b").files)
    assert f"copied into {hub.models_dir()} under" in edgespec_cli("models", "toy-1b").stderr
    row = json.loads(edgespec_cli("models", "toy-1b:Q8_0", "--json").stdout)
    assert row["heads"][0] == {
        "kind": "eagle3", "reference": "hf:org/toy_eagle3", "licence": "MIT",
    }  # fmt: skip
    wrong = edgespec_cli("models", "toy-2b")
    assert (wrong.exit_code, "close to it: toy-1b" in wrong.stderr) == (1, True)


@pytest.fixture
def pulled(edgespec_cli, monkeypatch) -> list[str]:
    """`hub.pull` without a network."""
    asked: list[str] = []

    def pull(reference: str, *, progress, offline: bool) -> Path:
        asked.append(reference)
        progress("smollm2 from the hub", 0, 100_000_000)
        progress("smollm2 from the hub", 50_000_000, 100_000_000)
        path = edgespec_cli.folder / "pulled.gguf"
        path.touch()
        return path

    monkeypatch.setattr(hub, "pull", pull)
    return asked


def test_pull_says_what_comes_and_prints_the_path(edgespec_cli, pulled):
    result = edgespec_cli("pull", "smollm2-135m")
    assert result.exit_code == 0
    assert result.stdout == f"{edgespec_cli.folder / 'pulled.gguf'}\n"
    announced = "fetching smollm2-135m: SmolLM2 135M Instruct, 135M parameters, Q4_1, 98.4 MB"
    assert f"{announced}, licence Apache-2.0\n" in result.stderr
    assert "smollm2 from the hub: 0 bytes of 100.0 MB\n" in result.stderr
    assert "\x1b" not in result.stderr


def test_pull_of_a_file_that_is_there(edgespec_cli):
    result = edgespec_cli("pull", "toy.gguf")
    assert (result.exit_code, result.stdout) == (0, "toy.gguf\n")
    assert "already on disk" in result.stderr
    assert edgespec_cli("pull", "-q", "toy.gguf").stderr == ""


def test_pull_names_a_draft_and_the_hub(edgespec_cli, pulled):
    name = next(e.name for e in hub.entries().values() if e.drafts)
    assert "a draft model for it: edgespec pull " in edgespec_cli("pull", name).stderr
    assert "1.1 GB + 445.1 MB to see pictures, " in edgespec_cli("pull", "qwen3-vl-2b").stderr
    from_hub = edgespec_cli("pull", "hf:org/repo/file.gguf")
    assert "fetching hf:org/repo/file.gguf, size unknown (size and licence" in from_hub.stderr


def test_pull_lists_a_repository_and_says_what_it_takes(edgespec_cli, pulled, monkeypatch):
    sizes = {"r-Q2_K.gguf": 10_000_000, "r-Q4_K_M.gguf": 20_000_000, "r-Q8_0.gguf": 40_000_000}
    monkeypatch.setattr(hub_client, "sizes", lambda repo, revision, token: sizes)
    result = edgespec_cli("pull", "https://huggingface.co/org/r")
    assert pulled == ["hf:org/r/r-Q4_K_M.gguf"]
    assert result.stderr.splitlines()[:5] == [
        "  Q2_K      10.0 MB",
        "* Q4_K_M    20.0 MB",
        "  Q8_0      40.0 MB",
        "* is taken; hf:org/r:Q8_0 names another one",
        "fetching hf:org/r/r-Q4_K_M.gguf, 20.0 MB (licence: see its page on the hub)",
    ]
    assert edgespec_cli("run", "-hf", "org/r:q8_0", "hello").exit_code == 0
    assert pulled[1:] == ["hf:org/r/r-Q8_0.gguf"]


def test_pull_takes_the_projector_first(edgespec_cli, pulled, monkeypatch):
    sizes = {"r-Q4_K_M.gguf": 20_000_000, "mmproj-F16.gguf": 4_000_000, "mmproj-F32.gguf": 8}
    monkeypatch.setattr(hub_client, "sizes", lambda repo, revision, token: sizes)
    told = edgespec_cli("pull", "hf:org/r").stderr
    assert pulled == ["hf:org/r/mmproj-F16.gguf", "hf:org/r/r-Q4_K_M.gguf"]
    assert "it sees pictures with mmproj-F16.gguf, 4.0 MB, which comes with it\n" in told


def test_pull_tells_of_a_head_and_does_not_take_it_for_the_model(edgespec_cli, pulled, monkeypatch):
    sizes = {"eagle3-r-Q4_K_M.gguf": 10_000, "r-Q4_K_M.gguf": 20_000_000}
    monkeypatch.setattr(hub_client, "sizes", lambda repo, revision, token: sizes)
    told = edgespec_cli("pull", "hf:org/r").stderr
    assert pulled == ["hf:org/r/r-Q4_K_M.gguf"]
    head = "hf:org/r/eagle3-r-Q4_K_M.gguf"
    assert f"a trained head for it: edgespec pull {head}, then -md {head}" in told


@pytest.fixture
def stored(edgespec_cli, monkeypatch) -> Path:
    """Put one model into our folder, and nothing into the cache of the hub; return its path."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(edgespec_cli.folder / "hub"))
    folder = edgespec_cli.folder / "models"
    folder.mkdir()
    (folder / "mine-Q8_0.gguf").write_bytes(bytes(2000))
    return folder / "mine-Q8_0.gguf"


def test_models_on_disk_are_listed(edgespec_cli, stored):
    for command in ("list", "ls"):
        title, row = edgespec_cli(command).stdout.splitlines()
        assert title.split() == ["name", "format", "size", "file"]
        assert row.split() == [str(stored), "GGUF", "Q8_0", "2.0", "kB", "mine-Q8_0.gguf"]
    assert json.loads(edgespec_cli("list", "--json").stdout) == [
        {
            "name": str(stored),
            "format": "GGUF Q8_0",
            "size": 2000,
            "path": str(stored),
            "projector": None,
        }
    ]
    (eyes := stored.with_name("mmproj-mine-F16.gguf")).write_bytes(bytes(500))
    row = edgespec_cli("list").stdout.splitlines()[1]
    assert row.endswith("2.5 kB  mine-Q8_0.gguf + mmproj-mine-F16.gguf")
    (only,) = json.loads(edgespec_cli("list", "--json").stdout)
    assert (only["size"], only["projector"]) == (2500, str(eyes))
    eyes.unlink()
    stored.unlink()
    empty = edgespec_cli("list")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert "no model is on this disk yet; `edgespec pull MODEL` fetches one" in empty.stderr


def test_removing_asks_and_says_what_it_freed(edgespec_cli, stored, monkeypatch):
    refused = edgespec_cli("rm", str(stored))
    assert (refused.exit_code, stored.exists()) == (2, True)
    assert "no terminal to confirm deleting" in refused.stderr
    monkeypatch.setattr("edgespec_cli.stored.is_terminal", lambda stream: True)
    no = edgespec_cli("rm", str(stored), input="n\n")
    assert (no.exit_code, no.stdout, stored.exists()) == (0, "", True)
    assert f"delete {stored} ({stored}, 2.0 kB)? [y/N]" in no.stderr
    yes = edgespec_cli("rm", str(stored), input="y\n")
    assert (yes.exit_code, stored.exists()) == (0, False)
    assert yes.stdout == f"deleted {stored} ({stored}, 2.0 kB), 2.0 kB freed\n"


def test_the_copy_of_a_draft_model_goes_with_it(edgespec_cli, stored, monkeypatch, tmp_path):
    drafts = tmp_path / "drafts"
    monkeypatch.setenv("EDGESPEC_DRAFTS", str(drafts))
    digest = hashlib.sha256(os.fsencode(stored.resolve())).hexdigest()[:8]
    copy = drafts / f"{stored.stem}-q4_0-{digest}.gguf"
    other = drafts / f"{stored.stem}-q4_0-00000000.gguf"
    drafts.mkdir()
    copy.write_bytes(b"x" * 3000)
    other.write_bytes(b"x")
    done = edgespec_cli("rm", "-y", str(stored))
    assert done.stdout.endswith("2.0 kB) and its copy in a faster format, 5.0 kB freed\n")
    assert (copy.exists(), other.exists(), stored.exists()) == (False, True, False)


def test_what_was_learned_with_a_model_goes_with_it(edgespec_cli, stored, tmp_path):
    class Learner(Drafter):
        def learned(self):
            return {"suffix": []}

        def learned_tokens(self):
            return {"recycling": np.zeros((1, 9), np.int32)}

    for model in (stored, tmp_path / "other.gguf"):
        model.write_bytes(b"weights")
        kept = Kept(model, None)
        kept.recall(OwnRates([Learner()]))
        kept.save()
    assert len(list(tmp_path.glob("profiles/**/*.*"))) == 4
    edgespec_cli("rm", "-y", str(stored))
    assert len(list(tmp_path.glob("profiles/**/*.*"))) == 2


def test_what_is_not_ours_is_not_removed(edgespec_cli, stored):
    result = edgespec_cli("rm", "-y", "toy.gguf")
    assert result.exit_code == 1
    assert "so it is yours: delete it yourself" in result.stderr
    assert edgespec_cli.model.exists()
    both = edgespec_cli("rm", "-y", str(stored), "toy.gguf")
    assert (both.exit_code, stored.exists()) == (1, True)  # all of them are found first


def test_run_and_chat_pull_the_default_model_and_the_draft(edgespec_cli, pulled):
    assert edgespec_cli("run", "hello", "-md", "qwen2.5-0.5b").exit_code == 0
    assert pulled == ["smollm2-135m", "qwen2.5-0.5b"]
    assert edgespec_cli("chat", input="hello\n").exit_code == 0
    assert edgespec_cli.loaded["model"] == "smollm2-135m"


def test_plain_progress_is_a_line_now_and_then(capsys):
    show = plain_progress()
    for done in range(100):
        show("file", done, None)
    assert capsys.readouterr().err == "file\n"


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(loading, "is_terminal", lambda stream: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with loading.progress_bar() as show:
        show("file [one]", 1_000_000, 4_000_000)
        show("checking \x1b[2J", 1, None)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "file [one]" in printed.err
    assert "1.0/4.0 MB" in printed.err
    assert "\x1b[2J" not in printed.err


INFO = edgespec.ModelInfo(
    path="/models/x.gguf", architecture="llama", name="X \x1b[2J", quantisation="Q4_K_M",
    file_size=1_000_000_000, n_ctx_train=8192, vocab_size=32000, n_layer=32, n_head_kv=8,
    key_length=128, value_length=128, has_chat_template=False,
)  # fmt: skip


@pytest.fixture
def inspected(monkeypatch) -> None:
    fits = [
        edgespec.DraftFit("small", True, "same vocabulary"),
        edgespec.DraftFit("other.gguf", False, "token 5 is different"),
    ]
    monkeypatch.setattr("edgespec_cli.models._is_head", lambda reference: False)
    monkeypatch.setattr("edgespec_cli.models._is_projector", lambda reference: False)
    monkeypatch.setattr(edgespec, "inspect", lambda reference: INFO)
    monkeypatch.setattr(edgespec, "fitting_drafts", lambda reference: fits)


@pytest.mark.usefixtures("inspected")
def test_inspect_says_what_it_is_and_needs(edgespec_cli):
    result = edgespec_cli("inspect", "x.gguf")
    assert result.exit_code == 0
    for said in (
        "architecture  llama", "quantisation  Q4_K_M", "size          1.0 GB",
        "no (ChatML is used)", "context    8192  2.4 GB", "small: fits, same vocabulary",
        "other.gguf: does not fit, token 5 is different", "X ␛[2J",
    ):  # fmt: skip
        assert said in result.stdout


@pytest.mark.usefixtures("inspected")
def test_inspect_as_json(edgespec_cli):
    data = json.loads(edgespec_cli("inspect", "smollm2-135m", "--json").stdout)
    assert data["licence"] == "Apache-2.0"
    assert data["memory_bytes"]["2048"] == INFO.memory(2048)
    assert data["drafts"][1] == {
        "reference": "other.gguf", "fits": False, "why": "token 5 is different",
    }  # fmt: skip


def test_inspect_of_something_else(edgespec_cli):
    libllama.require()
    missing = edgespec_cli("inspect", "smollm2-135m")
    assert missing.exit_code == 1
    assert "not on this disk; fetch it with `edgespec pull" in missing.stderr
    (edgespec_cli.folder / "text.gguf").write_text("not a model", encoding="utf-8")
    result = edgespec_cli("inspect", "text.gguf")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("edgespec: error: ")


def test_inspect_names_the_projector(edgespec_cli):
    libllama.require()
    model = projector_files.write_text(edgespec_cli.folder / "toy-Q8_0.gguf", "gemma3", 512)
    path = projector_files.write(model.with_name("mmproj-toy.gguf"), "gemma3")
    size = render.size(path.stat().st_size)
    told = edgespec_cli("inspect", str(model)).stdout
    assert f"pictures      mmproj-toy.gguf (gemma3), at most 16 tokens a picture, {size}" in told
    assert "mmproj" not in told.partition("drafts")[2]
    alone = edgespec_cli("inspect", str(path)).stdout.splitlines()
    assert alone[1:] == [
        "kind          projector (gemma3), with which a model sees pictures",
        f"size          {size}",
        "tokens        at most 16 tokens a picture",
        "target        a model that reads embeddings of 32 numbers",
    ]
    data = json.loads(edgespec_cli("inspect", str(path), "--json").stdout)
    assert (data["kind"], data["width"]) == ("gemma3", 32)
    projector_files.write(path, "gemma3", 64)
    told = edgespec_cli("inspect", str(model)).stdout
    assert "pictures      none: mmproj-toy.gguf makes embeddings of 64 numbers" in told


def test_a_missing_projector_is_named_with_what_fetches_it(edgespec_cli, stored, monkeypatch):
    libllama.require()
    entry = catalogue.parse(TOML + PROJECTOR, "toy.toml")
    monkeypatch.setattr(catalogue, "load", lambda: {entry.name: entry})
    model = projector_files.write_text(stored.with_name("toy-Q8_0.gguf"), "gemma3", 512)
    fetch = "mmproj-a-Q8_0.gguf is missing; fetch it with `edgespec pull toy-1b:Q8_0`"
    name = "toy-1b:Q8_0"
    assert f"pictures      none: its projector {fetch}" in edgespec_cli("inspect", name).stdout
    opened = open_model(model, edgespec.EngineConfig(n_ctx=64, n_threads=1))
    assert opened.why_blind == f"toy-Q8_0.gguf reads text alone: its projector {fetch}"
    opened.close()
    findings = {each.subject: each for each in edgespec.diagnose(name, None, budget_s=1)}
    assert fetch in findings["pictures"].text
    eyes = model.with_name("mmproj-a-Q8_0.gguf")

    def fetch_eyes(file, source, progress, token, folder) -> Path:
        assert (file, folder) == (entry.file("Q8_0").projector, model.parent)
        return projector_files.write(eyes, "gemma3")

    monkeypatch.setattr(hub_client, "fetch", fetch_eyes)
    assert edgespec_cli("pull", name).stdout == f"{model}\n"
    assert f"pictures      {eyes.name} (gemma3), at most" in edgespec_cli("inspect", name).stdout


def test_names_cannot_steer_the_terminal(tmp_path, edgespec_cli):
    name = "evil\u202ename\u2066\x1b[31m\nsecond"
    folder = tmp_path / "a\u202eb"
    folder.mkdir()
    path = gguf_files.write(folder / "x.gguf", general__name=(gguf_files.STRING, name.encode()))
    told = edgespec_cli("inspect", str(path)).stdout
    assert "evil\\u202ename\\u2066␛[31m␊second" in told
    assert "a\\u202eb" in told
    path.write_bytes(b"something else")
    refused = edgespec_cli("inspect", str(path))
    assert "a\\u202eb" in refused.stderr
    assert "\u202e" not in told + refused.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(edgespec_cli, shell):
    result = edgespec_cli("completion", shell)
    assert result.exit_code == 0
    assert "_EDGESPEC_COMPLETE" in result.stdout


def test_model_names_complete():
    complete = ShellComplete(cli, {}, "edgespec", "_EDGESPEC_COMPLETE")
    for args, incomplete in (
        (["run", "-m"], "smol"),
        (["pull"], "smol"),
        (["chat", "-md"], "smol"),
    ):
        found = complete.get_completions(args, incomplete)
        assert "smollm2-135m" in [item.value for item in found if item.type == "plain"]
        assert "file" not in [item.type for item in found]  # bash would take these alone
        found = complete.get_completions(args, "./smol")
        assert [(item.type, item.value) for item in found] == [("file", "./smol")]
    for typed, whole in (
        ("suf", ["suffix"]),
        ("suffix,dr", ["suffix,draft-model"]),
    ):
        found = complete.get_completions(["chat", "--spec-type"], typed)
        assert [item.value for item in found] == whole
