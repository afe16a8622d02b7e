"""Files on this disk with the name or the size of one that the catalogue knows."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from edgespec import hub
from edgespec.errors import DownloadError, ModelNotFound
from edgespec.hub import hub_client, known_files, references
from tests.helpers.catalogue import TOML

CONTENT = b"GGUF of the catalogue"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, use_entry) -> Path:
    """Return our folder of models; the catalogue knows one model, and the cache holds none."""
    digest = hashlib.sha256(CONTENT).hexdigest()
    toml = TOML.replace("size = 4\n", f'size = {len(CONTENT)}\nsha256 = "{digest}"\n')
    use_entry(toml)
    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(references, "_accepted", set())
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def _fails(monkeypatch, error: Exception) -> None:
    def fail(*given: object) -> None:
        raise error

    monkeypatch.setattr(hub_client, "fetch", fail)


@pytest.mark.parametrize("name", ["toy-1b.gguf", "Toy-1B-q4_0.gguf"])
def test_a_file_called_like_the_model_is_taken(folder, name):
    (folder / name).write_bytes(CONTENT)
    assert hub.resolve("toy-1b") == folder / name
    assert hub.pull("toy-1b") == folder / name


def test_another_version_is_taken_where_no_hub_is_reached(folder, monkeypatch, caplog):
    (folder / "toy-1b.gguf").write_bytes(b"GGUF of others")
    _fails(monkeypatch, DownloadError("the hub cannot be reached"))
    assert hub.resolve("toy-1b") is None
    assert hub.pull("toy-1b") == folder / "toy-1b.gguf"
    assert "is used, though it differs from the catalogue's file: " in caplog.text
    assert hub.resolve("toy-1b") == folder / "toy-1b.gguf"  # and nothing is asked again


def test_another_version_is_taken_offline(folder):
    (folder / "toy-1b.gguf").write_bytes(b"GGUF of others")
    assert hub.pull("toy-1b", offline=True) == folder / "toy-1b.gguf"


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"<html>", DownloadError("no hub")), (b"GGUF of others", ModelNotFound("no such file"))],
)
def test_what_is_no_model_and_what_a_hub_lacks_is_not_replaced(folder, monkeypatch, content, error):
    (folder / "toy-1b.gguf").write_bytes(content)
    _fails(monkeypatch, error)
    with pytest.raises(type(error)):
        hub.pull("toy-1b")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("other.gguf", CONTENT, "same as the catalogue's toy-1b"),
        ("toy-1b.gguf", CONTENT, "same as the catalogue's toy-1b"),
        ("toy-1b.gguf", CONTENT[::-1], "differs from the catalogue's toy-1b: damaged or another"),
        ("toy-1b.gguf", b"GGUF", "differs from the catalogue's toy-1b: damaged or another version"),
        ("other.gguf", CONTENT[::-1], ""),
    ],
)
def test_a_file_is_compared_with_the_catalogues(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content)
    told = known_files.comparison(tmp_path / name)
    assert told.startswith(says)
    assert bool(told) == bool(says)
