"""Folders of heads on onnxruntime: for other targets, and damaged."""

import json

import numpy as np
import pytest

from edgespec import ConfigError, EngineConfig, EngineMissing, ModelError, ModelNotFound
from tests.helpers import head_files as files

pytest.importorskip("onnx")
pytest.importorskip("gguf")
pytest.importorskip("edgespec.backends.llama_cpp", exc_type=EngineMissing)
backend = pytest.importorskip("edgespec.backends.onnx", exc_type=EngineMissing)
folders = pytest.importorskip("tests.helpers.head_folders")
opened_heads = pytest.importorskip("tests.helpers.opened_heads")


@pytest.fixture
def eagle3(tmp_path):
    made = files.eagle3()
    found = opened_heads.Opened(folders.converted(tmp_path, made), made)
    yield found
    found.head.close()


@pytest.fixture
def dflash(tmp_path):
    made = files.dflash()
    found = opened_heads.Opened(folders.converted(tmp_path / "dflash", made), made)
    yield found
    found.head.close()


def test_heads_for_other_targets_say_how_they_differ(eagle3):
    for field, found, said in (
        ("hidden_size", 48, "32 numbers a state, and this one has 48"),
        ("vocab_size", 65, "259 tokens of vocabulary, and this one has 65"),
        ("n_layer", 30, "8 layers, and this one has 30"),
    ):
        target = folders.target()
        setattr(target, field, found)
        with pytest.raises(ConfigError, match=said):
            backend.open_head(eagle3.folder, EngineConfig(n_threads=1), target)


def test_is_head(eagle3, tmp_path):
    assert backend.is_head(eagle3.folder)
    assert backend.is_head(eagle3.folder / "head.onnx")
    assert not backend.is_head(tmp_path / "model.onnx")
    (tmp_path / "head.json").write_text("{")
    with pytest.raises(ModelError, match="no JSON"):
        backend.is_head(tmp_path / "model.onnx")


def test_folders_that_are_damaged(eagle3, tmp_path):
    note = json.loads((eagle3.folder / "head.json").read_text())

    def refused(said, error=ModelError):
        with pytest.raises(error, match=said):
            eagle3.another()

    for changed, said in (
        ({"format": 2}, "of format 2, expected 1"),
        ({"kind": "lorem"}, "kind must be"),
        ({"color": 3}, "unknown field 'color'"),
        ({"layers": "2"}, "layers must be a list"),
    ):
        (eagle3.folder / "head.json").write_text(json.dumps(note | changed))
        refused(said)
    (eagle3.folder / "head.json").write_text(json.dumps(note))
    ids = eagle3.folder / "d2t.npy"
    content = ids.read_bytes()
    for wrong, said in (
        (content[:40], "damaged"), (b"", "damaged"), (content[:-8], "damaged"),
    ):  # fmt: skip
        ids.write_bytes(wrong)
        refused(said)
    np.save(ids, files.D2T.astype(np.int32))
    refused("no list of int64")
    np.save(ids, files.D2T + 200)
    refused("ids outside 259 tokens")
    np.save(ids, files.D2T[:-1])
    refused("rows of 20 tokens, and its configuration and d2t.npy say 19")
    ids.unlink()
    refused("rows of 20 tokens, and its configuration and d2t.npy say 259")
    (eagle3.folder / "head.onnx").unlink()
    refused("cannot read", ModelNotFound)
    (eagle3.folder / "head.json").unlink()
    refused(r"has no head\.json", ModelNotFound)


def test_graphs_that_are_of_another_kind(eagle3, dflash):
    for folder, other, said in (
        (eagle3.folder, "dflash", "lacks 'edgespec.mask_token'"),
        (dflash.folder, "eagle3", "lacks 'states'|lacks 'past_key_values.0.key'"),
        (eagle3.folder, "moa", "lacks 'past_key_values.1.key'"),
    ):
        note = json.loads((folder / "head.json").read_text())
        changed = note | {"kind": other}
        (folder / "head.json").write_text(json.dumps(changed))
        with pytest.raises(ModelError, match=said):
            backend.open_head(folder, EngineConfig(n_threads=1), folders.target())
        (folder / "head.json").write_text(json.dumps(note))
