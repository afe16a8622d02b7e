"""Disks that are full or read-only: what was asked for and is not kept is an error."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import pytest

from edgespec import hub, kept_files
from edgespec.hub import wheels


@pytest.fixture
def full(monkeypatch):
    """Let nothing be written any more."""

    def fail(path: Path, parts: Iterable[bytes]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(kept_files, "replace", fail)
    monkeypatch.setattr(
        kept_files, "refusal", lambda folder, variable="": f"{folder} is full; set {variable}"
    )


def test_a_default_that_is_not_kept(edgespec_cli, full):
    result = edgespec_cli("default", "toy.gguf")
    assert result.exit_code == 1
    state = edgespec_cli.folder / "state" / "edgespec"
    assert f"the choice is not kept: {state} cannot be written: the disk is full" in result.stderr
    assert "EDGESPEC_MODEL=NAME" in result.stderr
    assert "no model is chosen yet" not in result.stderr


def test_a_default_that_is_not_forgotten(edgespec_cli):
    (edgespec_cli.folder / "state" / "edgespec" / "default-model.json").mkdir(parents=True)
    assert edgespec_cli("default", "auto").exit_code == 1


def test_a_model_answers_though_its_choice_is_not_kept(edgespec_cli, full, monkeypatch):
    monkeypatch.setattr("edgespec_cli.default_model._downloaded", lambda *_, **__: ("toy.gguf", ""))
    result = edgespec_cli("run", "hello")
    assert (result.exit_code, result.stdout) == (0, "Hi, what can I do?\n")
    assert "the choice is not kept: " in result.stderr


def test_nothing_is_measured_that_cannot_be_kept(edgespec_cli, full, monkeypatch):
    monkeypatch.setattr("edgespec.tune", lambda *_, **__: pytest.fail("it was measured"))
    result = edgespec_cli("tune", "-m", "toy.gguf")
    assert result.exit_code == 1
    assert f"{edgespec_cli.folder / 'profiles'} is full; set EDGESPEC_PROFILES" in result.stderr


def test_a_download_says_which_folder_and_what_names_another(edgespec_cli):
    (edgespec_cli.folder / "models").write_text("a file where the folder has to be")
    result = edgespec_cli("pull", hub.vocabulary_model)
    assert result.exit_code == 1
    assert f"{edgespec_cli.folder / 'models'} cannot be written: a file is where" in result.stderr
    assert "set EDGESPEC_MODELS to a folder elsewhere" in result.stderr
    assert "[Errno" not in result.stderr


def test_no_download_is_announced_that_cannot_be_kept(edgespec_cli):
    (edgespec_cli.folder / "models").write_text("a file where the folder has to be")
    result = edgespec_cli("pull", hub.vocabulary_model)
    assert "cannot be fetched: " in result.stderr
    assert "fetching" not in result.stderr


def test_a_corpus_that_cannot_be_kept_is_a_failure(edgespec_cli, monkeypatch):
    def fail(*given: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (edgespec_cli.folder / "notes.txt").write_text("hello")
    monkeypatch.setattr("edgespec.backends.of", mock.MagicMock())
    monkeypatch.setattr("edgespec.corpus.collection.add", fail)
    result = edgespec_cli("corpus", "add", "notes.txt", "-m", "toy.gguf")
    assert result.exit_code == 1
    assert "nothing can be kept: " in result.stderr
    assert "the disk is full (No space left on device); free some space there" in result.stderr


def test_a_corpus_says_why_it_needs_a_model(edgespec_cli):
    (edgespec_cli.folder / "notes.txt").write_text("hello")
    result = edgespec_cli("corpus", "add", "notes.txt", "--offline")
    assert result.exit_code == 1
    assert f"no model was named whose vocabulary is used: {hub.vocabulary_model}" in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_stdout_on_a_full_disk(edgespec_cli, program):
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [*program, "run", "-m", "toy.gguf", "hello"], stdout=full, stderr=subprocess.PIPE
        )
    said = ended.stderr.decode()
    assert ended.returncode == 1
    assert "error: what stdout goes to, or a file, cannot be used: the disk is full (No" in said
    assert "Exception ignored" not in said


def test_a_folder_that_can_and_one_that_cannot_be_written(tmp_path):
    assert kept_files.refusal(tmp_path / "new" / "folder") == ""
    assert not list((tmp_path / "new" / "folder").iterdir())
    (tmp_path / "file").touch()
    why = kept_files.refusal(tmp_path / "file", "EDGESPEC_PROFILES")
    assert why.startswith(f"{tmp_path / 'file'} ")
    assert "EDGESPEC_PROFILES" in why


def test_an_interrupted_download_says_what_becomes_of_it(edgespec_cli, monkeypatch):
    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(wheels, "_pip_download", interrupt)
    result = edgespec_cli("pull", hub.vocabulary_model)
    assert result.exit_code == 130
    assert "error: interrupted: what had come of the file is deleted, and the" in result.stderr
