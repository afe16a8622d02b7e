"""The models on this disk are listed, found and removed; the hub's are in test_downloads.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec import hub
from edgespec.errors import DownloadError, ModelNotFound
from tests.helpers.catalogue import TOML

FILES = {
    "toy-Q4_0.gguf": 4, "toy-Q8_0.gguf": 8, "mine-q5_k_m.gguf": 5, "x.gguf": 1,
    "two-Q6_K-00001-of-00002.gguf": 6, "two-Q6_K-00002-of-00002.gguf": 6,
    "half-00001-of-00002.gguf": 1,
    "toy-onnx-int4/model.onnx": 2, "toy-onnx-int4/model.onnx.data": 20,
    "toy-onnx-int4/tokenizer.json": 3,
    "many/onnx/a.onnx": 1, "many/onnx/b.onnx": 1, "toy-trained/eagle3-toy.gguf": 7,
    ".convert/model.onnx": 1, "toy-trained.partial/half.gguf": 1,
}  # fmt: skip


@pytest.fixture
def folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_entry: Callable[[str], hub.Entry]
) -> Path:
    import huggingface_hub.constants

    use_entry(TOML)
    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name, size in FILES.items():
        path = tmp_path / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    return tmp_path / "models"


def test_models_in_our_folder_have_the_names_that_load_them(folder: Path) -> None:
    found = {model.reference: (model.format, model.size) for model in hub.stored()}
    assert found == {
        "toy-1b": ("GGUF Q4_0", 4),
        "toy-1b:Q8_0": ("GGUF Q8_0", 8),
        f"{folder}/mine-q5_k_m.gguf": ("GGUF Q5_K_M", 5),
        f"{folder}/x.gguf": ("GGUF", 1),
        f"{folder}/two-Q6_K-00001-of-00002.gguf": ("GGUF Q6_K", 12),
        f"{folder}/toy-onnx-int4/model.onnx": ("ONNX INT4", 22),
        f"{folder}/toy-trained/eagle3-toy.gguf": ("GGUF", 7),
        f"{folder}/many/onnx/a.onnx": ("ONNX", 1),
        f"{folder}/many/onnx/b.onnx": ("ONNX", 1),
    }
    for reference in found:
        assert hub.resolve(reference) == hub.find(reference).path


@pytest.mark.parametrize(
    ("reference", "freed", "gone"),
    [
        ("toy-1b", 4, ["toy-Q4_0.gguf"]),
        ("toy-1b:q8_0", 8, ["toy-Q8_0.gguf"]),
        ("models/x.gguf", 1, ["x.gguf"]),
        ("models/two-Q6_K-00001-of-00002.gguf", 12, [n for n in FILES if n.startswith("two")]),
        ("models/toy-onnx-int4", 25, [n for n in FILES if n.startswith("toy-onnx")]),
        ("models/many/onnx/a.onnx", 1, ["many/onnx/a.onnx"]),
        ("models/toy-trained/eagle3-toy.gguf", 7, ["toy-trained/eagle3-toy.gguf"]),
    ],
)
def test_removing_deletes_the_files_of_one_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, reference: str, freed: int, gone: list[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    assert hub.remove(hub.find(reference)) == freed
    left = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert left == FILES.keys() - set(gone)


def test_what_is_not_ours_is_not_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = folder.parent / "own.gguf"
    outside.touch()
    with pytest.raises(ModelNotFound, match=r"is neither in .* so it is yours: delete it yourself"):
        hub.find(str(outside))
    (folder / "toy-Q4_0.gguf").unlink()
    with pytest.raises(ModelNotFound, match="'toy-1b' is not on this disk; there is toy-1b:Q8_0"):
        hub.find("toy-1b")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders here")
@pytest.mark.parametrize("ref", ["main", "pr/1"])
def test_a_pipe_in_the_hubs_cache_is_told_and_not_waited_for(
    folder: Path, caplog: pytest.LogCaptureFixture, ref: str
) -> None:
    pipe = folder.parent / "hub" / "models--a--b" / "refs" / ref
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    assert "toy-1b" in {model.reference for model in hub.stored()}
    assert "no regular file" in caplog.text
    with pytest.raises(DownloadError, match="is not on this device"):
        hub.pull("hf:a/b/m.gguf", offline=True)


def test_a_loop_of_links_for_the_hubs_cache_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder.parent / "hub").symlink_to("hub")
    assert "toy-1b" in {model.reference for model in hub.stored()}
    assert f"{folder.parent / 'hub'} cannot be read" in caplog.text
