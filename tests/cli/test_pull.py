"""`edgespec pull` of trained heads: what is fetched, converted and said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import edgespec
from edgespec import hub
from edgespec.convert import tools
from edgespec.hub import catalogue, hub_client
from edgespec.loading import companions
from tests.helpers import head_files, head_folders, libllama, tiny_models
from tests.helpers.catalogue import HEADS, TOML

libllama.require()
pytest.importorskip("onnxruntime")
HEAD = "hf:org/toy_eagle3"


@pytest.fixture
def published(edgespec_cli, monkeypatch) -> Path:
    """Return the folder of a head's checkpoint, which a hub serves."""
    source = head_files.write(edgespec_cli.folder / "hub", head_files.eagle3(), "specforge")
    (source / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(edgespec_cli.folder / "no"))

    def fetch(file, found, progress, token, folder):
        folder.mkdir(parents=True, exist_ok=True)
        progress(f"fetching {file.filename}", file.size, file.size)
        shutil.copy(source / file.filename, folder)

    monkeypatch.setattr(
        hub_client, "sizes", lambda *_: {f.name: f.stat().st_size for f in source.iterdir()}
    )
    monkeypatch.setattr(hub_client, "fetch", fetch)
    monkeypatch.setattr(tools, "run_worker", head_folders.run_here)
    return source


@pytest.fixture
def target(edgespec_cli) -> Path:
    return head_folders.gguf_target(edgespec_cli.folder / "target.gguf")


def test_a_head_is_fetched_and_converted_for_its_target(edgespec_cli, published, target):
    done = edgespec_cli("pull", HEAD, "--target", "target.gguf")
    assert done.exit_code == 0, done.stderr
    made = edgespec_cli.folder / "models" / "org--toy_eagle3-head-int8"
    assert done.stdout == f"{made}\n"
    assert "fetching hf:org/toy_eagle3: the checkpoint of a trained head, " in done.stderr
    assert "licence of the head, as its card names it: cc-by-4.0\n" in done.stderr
    assert "it drafts for target.gguf: edgespec chat -m target.gguf\n" in done.stderr
    note = json.loads((made / "head.json").read_text())
    assert (note["target"], note["precision"]) == ("target.gguf", "int8")
    assert [c.path for c in companions.found("target.gguf", target)] == [made / "head.onnx"]
    assert hub.resolve(HEAD) == made / "head.onnx"
    assert not list((edgespec_cli.folder / "models").glob("**/*.py"))
    again = edgespec_cli("pull", "-q", HEAD)
    assert (again.exit_code, again.stdout) == (0, f"{made / 'head.onnx'}\n")


def test_without_a_target_it_says_how_to_convert(edgespec_cli, published):
    done = edgespec_cli("pull", HEAD)
    folder = edgespec_cli.folder / "models" / "org--toy_eagle3"
    assert (done.exit_code, done.stdout) == (0, f"{folder}\n")
    assert f"to draft with it: edgespec convert {folder} --head --target MODEL\n" in done.stderr
    offline = edgespec_cli("pull", "--offline", HEAD)
    assert offline.stdout == f"{folder}\n"


def test_the_catalogue_knows_the_target(edgespec_cli, published, target, monkeypatch):
    entry = catalogue.parse(TOML.replace("size = 4\n", "") + HEADS, "toy.toml")
    monkeypatch.setattr(catalogue, "load", lambda: {entry.name: entry})
    told = edgespec_cli("pull", HEAD).stderr
    assert "edgespec pull toy-1b, then edgespec convert" in told
    models = edgespec_cli.folder / "models"
    shutil.copy(target, models / "toy-Q4_0.gguf")
    done = edgespec_cli("pull", HEAD)
    assert "it drafts for toy-1b" in done.stderr
    note = json.loads((models / "org--toy_eagle3-head-int8" / "head.json").read_text())
    assert note["target"] == "toy-1b"
    found = companions.found("toy-1b:Q4_0", models / "toy-Q4_0.gguf")
    assert [each.role for each in found] == ["head"]
    edgespec_cli("pull", HEAD, "--target", "toy-1b")
    assert edgespec_cli("pull", HEAD, "--target", "toy-1b").exit_code == 0  # it is there already


def test_a_head_of_another_target_is_refused_and_stays_fetched(edgespec_cli, published):
    head_folders.gguf_target(edgespec_cli.folder / "other.gguf", n_layer=2)
    published.joinpath("config.json").write_text(
        json.dumps(head_files.eagle3(target_num_hidden_layers=8).config)
    )
    refused = edgespec_cli("pull", HEAD, "--target", "other.gguf")
    assert refused.exit_code == 2
    assert "was made for another target: for one with 8 layers, and this one has 2" in (
        refused.stderr
    )
    assert hub.checkpoint_on_disk(HEAD)
    assert hub.resolve(HEAD) is None


def test_a_target_for_a_model_is_refused(edgespec_cli, target):
    refused = edgespec_cli("pull", "toy.gguf", "--target", "target.gguf")
    assert refused.exit_code == 2
    assert "--target is for the checkpoint of a trained head" in refused.stderr


def test_a_checkpoint_named_as_a_model_says_what_to_do(edgespec_cli, published):
    refused = edgespec_cli("run", "-m", HEAD, "hello")
    assert refused.exit_code == 1
    assert "if it is a trained head, `edgespec pull hf:org/toy_eagle3 --target MODEL`" in (
        refused.stderr
    )
    edgespec_cli("pull", HEAD)
    assert edgespec.hub.resolve(HEAD) is None  # what is not converted drafts for nothing


@pytest.fixture
def suggesting(edgespec_cli, monkeypatch):
    """Let the engine know a head that this disk lacks."""
    load = edgespec.load

    def loaded(*args, **options):
        engine = load(*args, **options)
        engine._description["suggestion"] = HEAD
        return engine

    monkeypatch.setattr(edgespec, "load", loaded)
    return edgespec_cli


def test_what_may_make_it_faster_is_told_once(suggesting):
    line = "what may make it faster: edgespec pull hf:org/toy_eagle3 (told once)\n"
    quiet = suggesting.run("hello", "--quiet")
    assert "edgespec pull" not in quiet.stderr
    first, second = suggesting.run("hello"), suggesting.run("hello")
    assert line in first.stderr
    assert line not in first.stdout
    assert line not in second.stderr


def test_in_a_chat_it_is_told_below_the_first_answer(suggesting):
    told = suggesting.chat("hello", "hello").stderr
    assert told.count("edgespec pull hf:org/toy_eagle3") == 1
    assert "edgespec pull" not in suggesting.chat("hello").stderr


def test_the_doctor_tells_it_every_time(published, monkeypatch, edgespec_cli):
    entry = catalogue.parse(TOML.replace("size = 4\n", "") + HEADS, "toy.toml")
    monkeypatch.setattr(catalogue, "load", lambda: {entry.name: entry})
    models = edgespec_cli.folder / "models"
    models.mkdir()
    tiny_models.write(models, "llama").rename(models / "toy-Q4_0.gguf")
    for _ in range(2):
        found = edgespec.diagnose("toy-1b", n_ctx=256)
        (draft,) = [each for each in found if each.subject == "draft"]
        assert draft.remedy == "edgespec pull hf:org/toy_eagle3 may help"
