"""Projector files are checked before the engine opens them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from edgespec import ConfigError, ModelError, TruncatedModel
from edgespec.backends import files
from tests.helpers import libllama, projector_files
from tests.helpers.gguf_files import (
    ARRAY,
    BOOL,
    FLOAT32,
    INT32,
    STRING,
    UINT32,
    damaged,
    gguf_bytes,
)
from tests.helpers.projector_files import KINDS
from tests.helpers.selection import share

libllama.require()

from edgespec.backends.llama_cpp import projectors  # noqa: E402

_V = "clip.vision."
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_tells_the_width_of_its_embeddings(tmp_path, kind):
    found = projectors.check(projector_files.write(tmp_path / "p.gguf", kind, 48))
    deep = 1 + (kind == "qwen3vl_merger")  # embeddings for the first layers, too
    assert (found.kind, found.width) == (kind, 48 * deep)
    assert found.size == (tmp_path / "p.gguf").stat().st_size


@pytest.mark.parametrize(
    ("kind", "more", "most"),
    [
        ("mlp", {}, 16),
        ("mlp", {"image_grid_pinpoints": (ARRAY, (INT32, [56, 112]))}, 0),
        ("gemma3", {}, 16),
        ("gemma3", {"projector.scale_factor": None}, 4),
        ("idefics3", {}, 0),  # tiles as large pictures need them
        ("idefics3", {"preproc_image_size": (UINT32, 336)}, 160),
        ("idefics3", {"preproc_image_size": (UINT32, 560)}, 416),
        ("qwen2vl_merger", {}, 1024),
    ],
)
def test_the_most_tokens_of_a_picture(tmp_path, kind, more, most):
    told = {_V + key: value for key, value in more.items()}
    assert projectors.check(changed(tmp_path / "p.gguf", kind, told)).most_tokens == most


def changed(path, kind="mlp", told=None, made=None):
    """Write a projector with other metadata and tensors; None leaves one out."""
    metadata = projector_files.metadata(kind, 32) | (told or {})
    weights = projector_files.weights(kind, 32) | (made or {})
    path.write_bytes(
        gguf_bytes(
            {key: value for key, value in metadata.items() if value is not None},
            {key: value for key, value in weights.items() if value is not None},
        )
    )
    return path


def zeros(*shape):
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("told", "made", "message"),
    [
        ({"general.architecture": (STRING, b"llama")}, {}, "not a projector"),
        ({"clip.has_vision_encoder": (BOOL, False)}, {}, "hears and does not see"),
        ({"clip.projector_type": None}, {}, "no clip.projector_type"),
        ({_V + "image_size": (UINT32, 0)}, {}, "image_size 0, expected 1 to"),
        ({_V + "image_size": None}, {}, "image_size None"),
        ({_V + "image_size": (UINT32, 7)}, {}, "pictures of 7 pixels"),
        ({_V + "patch_size": (UINT32, 0)}, {}, "patch_size 0"),
        ({_V + "block_count": (UINT32, 1 << 30)}, {}, "block_count 1073741824"),
        ({_V + "block_count": (UINT32, 3)}, {}, "no tensor v.blk.2.attn_q.weight"),
        ({_V + "attention.head_count": (UINT32, 0)}, {}, "head_count 0"),
        ({_V + "attention.head_count": (UINT32, 7)}, {}, "for 7 attention heads"),
        ({_V + "embedding_length": (FLOAT32, 64.0)}, {}, "embedding_length 64.0"),
        ({_V + "image_mean": None}, {}, "image_mean None, expected three numbers"),
        ({_V + "image_std": (9, (FLOAT32, [0.0, 1.0, 1.0]))}, {}, "numbers other than 0"),
        ({}, {"v.patch_embd.weight": None}, "no tensor v.patch_embd.weight"),
        ({}, {"v.patch_embd.weight": zeros(64, 3, 14, 7)}, r"v.patch_embd.weight of \[7, 14"),
        ({}, {"v.position_embd.weight": zeros(5, 64)}, r"v.position_embd.weight of \[64, 5\]"),
        ({}, {"v.blk.1.attn_k.weight": zeros(64, 32)}, "v.blk.1.attn_k.weight"),
        ({}, {"v.blk.0.ffn_down.bias": zeros(63)}, r"v.blk.0.ffn_down.bias of \[63\]"),
        ({}, {"v.blk.0.ln1.weight": None}, "no tensor v.blk.0.ln1.weight"),
        ({}, {"mm.0.weight": zeros(32, 63)}, r"mm.0.weight of \[63, 32\]"),
        ({}, {"mm.2.weight": zeros(32, 31)}, r"mm.2.weight of \[31, 32\]"),
        ({}, {"mm.2.weight": None}, "no tensor mm.2.weight"),
        ({"clip.has_vision_encoder": (STRING, b"yes")}, {}, "expected true or false"),
        ({"clip.projector_type": (STRING, b"x" * 1000)}, {}, "expected a name"),
        ({"clip.projector_type": (STRING, b"mlp\x1b[31m")}, {}, "expected a name"),
        ({"clip.projector_type": (UINT32, 3)}, {}, "no clip.projector_type"),
        ({_V + "attention.layer_norm_epsilon": (FLOAT32, NAN)}, {}, "nan, expected 0 to 1"),
        ({_V + "attention.layer_norm_epsilon": (FLOAT32, -1.0)}, {}, "-1.0, expected 0 to 1"),
        ({_V + "image_mean": (ARRAY, (FLOAT32, [NAN] * 3))}, {}, "expected three numbers"),
        ({_V + "image_mean": (ARRAY, (FLOAT32, [0.5] * 2))}, {}, "expected three numbers"),
        ({_V + "image_std": (ARRAY, (FLOAT32, [INF] * 3))}, {}, "expected three numbers"),
        ({_V + "image_grid_pinpoints": (ARRAY, (INT32, [56]))}, {}, "widths and heights"),
        ({_V + "image_grid_pinpoints": (ARRAY, (INT32, [0, -5]))}, {}, "widths and heights"),
        ({_V + "image_grid_pinpoints": (STRING, b"x")}, {}, "widths and heights"),
        ({_V + "preproc_image_size": (INT32, -5)}, {}, "preproc_image_size -5"),
        ({_V + "preproc_image_size": (UINT32, 1 << 31)}, {}, "preproc_image_size 2147483648"),
        ({}, {"v.patch_embd.bias": zeros(63)}, r"v.patch_embd.bias of \[63\]"),
        ({}, {"v.pre_ln.weight": zeros(1)}, r"v.pre_ln.weight of \[1\]"),
        ({}, {"v.post_ln.bias": zeros(65)}, r"v.post_ln.bias of \[65\]"),
        ({}, {"v.class_embd": zeros(9)}, r"v.class_embd of \[9\]"),
        ({}, {"v.blk.0.ln2.bias": zeros(9)}, r"v.blk.0.ln2.bias of \[9\]"),
        ({}, {"mm.0.bias": zeros(9)}, r"mm.0.bias of \[9\]"),
        ({}, {"mm.2.bias": zeros(9)}, r"mm.2.bias of \[9\]"),
        ({}, {"mm.0.bias": None}, "no tensor mm.0.bias"),
        ({}, {"mm.0.weight": zeros(64)}, r"mm.2.weight of \[32, 32\]"),
    ],
)  # fmt: skip
def test_what_would_end_the_process_is_refused(tmp_path, told, made, message):
    with pytest.raises((ModelError, ConfigError), match=message):
        projectors.check(changed(tmp_path / "p.gguf", "mlp", told, made))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("qwen2vl_merger", "v.blk.0.attn_q.bias"),
        ("qwen2.5vl_merger", "v.blk.1.attn_v.bias"),
        ("qwen3vl_merger", "v.blk.0.attn_qkv.bias"),
        ("qwen3vl_merger", "v.patch_embd.bias"),
        ("qwen3vl_merger", "v.position_embd.weight"),
        ("qwen3vl_merger", "v.deepstack.0.norm.weight"),
        ("qwen3vl_merger", "v.deepstack.0.fc1.weight"),
        ("qwen3vl_merger", "v.deepstack.0.fc2.weight"),
    ],
)
def test_tensors_that_only_some_kinds_need(tmp_path, kind, name):
    with pytest.raises(ModelError, match=f"no tensor {name}"):
        projectors.check(changed(tmp_path / "p.gguf", kind, made={name: None}))


@pytest.mark.parametrize("kind", ["idefics3", "gemma3"])
@pytest.mark.parametrize("scale", [0, 3, 16, 64])  # a row of a tile has eight patches
def test_a_merge_with_a_remainder_is_refused(tmp_path, kind, scale):
    told = {_V + "projector.scale_factor": (UINT32, scale)}
    made = {"mm.model.fc.weight": zeros(32, scale * scale * 64)} if kind == "idefics3" else {}
    with pytest.raises(ModelError, match=f"scale_factor {scale}, expected a divisor of 8"):
        projectors.check(changed(tmp_path / "p.gguf", kind, told, made))


def test_truncated_files_are_refused(tmp_path):
    whole = projector_files.write(tmp_path / "p.gguf", "mlp").read_bytes()
    for n in (100, 2000, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.gguf").write_bytes(whole[:n])
        with pytest.raises(TruncatedModel):
            projectors.check(tmp_path / "cut.gguf")


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("kind", KINDS)
def test_random_damage_ends_no_process_and_takes_little_memory(tmp_path, kind):
    n, text = share(60, 6), projector_files.write_text(tmp_path / "text.gguf", kind)
    whole = projector_files.write(tmp_path / "p.gguf", kind).read_bytes()
    made = projector_files.weights(kind, 32)
    head = len(whole) - sum(each.nbytes for each in made.values())
    (folder := tmp_path / "damaged").mkdir()
    without = [name for name in made if "blk.1" not in name][:: 1 if n > 10 else 9]
    for name in without:
        changed(folder / f"without {name}.gguf", kind, made={name: None})
    for i, data in enumerate(damaged(whole, head, n)):
        (folder / f"{i:03}.gguf").write_bytes(data)
    command = [sys.executable, "-m", "tests.helpers.hostile_projectors", str(text), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout[-200:], done.stderr[-2000:])
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["refused"] + told["seen with"] == 1 + n + len(without)
    assert told["refused"] >= n // 2
    assert all(said and "\n" not in said for said in told["says"])
    assert told["events"] == []
    assert told["bytes"] < 100 << 20, told["largest"]


def test_files_that_are_no_projectors_at_all(tmp_path):
    whole = projector_files.write(tmp_path / "p.gguf", "mlp").read_bytes()
    many = (1 << 60).to_bytes(8, "little")
    for data, message in (
        (b"", "is empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(99), "is not a GGUF"),
        (whole[:4], "incomplete"),
        (whole[:4] + b"\x09" + whole[5:], "of version 9"),
        (b"GGUF\0\0\0\3" + whole[8:], "big-endian"),
        (whole[:8] + many + whole[16:], "1152921504606846976 tensors"),
        (whole[:16] + many + whole[24:], "1152921504606846976 metadata keys"),
    ):
        (tmp_path / "p.gguf").write_bytes(data)
        with pytest.raises(ModelError, match=message):
            projectors.check(tmp_path / "p.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    for name in ("pipe.gguf", "", "no.gguf"):
        with pytest.raises(ModelError, match="cannot read"):
            projectors.check(tmp_path / name)


def test_a_kind_that_was_never_tried_is_left_to_the_engine(tmp_path, caplog):
    told = {"clip.projector_type": (STRING, b"from_tomorrow")}
    assert projectors.check(changed(tmp_path / "p.gguf", "mlp", told)).width == 0
    assert "from_tomorrow were never tried" in caplog.text


def test_of_several_files_the_one_with_the_models_words_is_taken(tmp_path):
    model = tmp_path / "SmolVLM-256M-Instruct-Q8_0.gguf"
    assert files.projectors(model) == []
    for name in ("mmproj-gemma-3-4b-f16.gguf", "mmproj-SmolVLM-256M-Instruct-f16.gguf"):
        (tmp_path / name).touch()
    assert files.projectors(model)[0].name == "mmproj-SmolVLM-256M-Instruct-f16.gguf"
    model.touch()
    assert files.neighbours(model) == [model]  # none of them may draft


def test_in_the_hubs_cache_a_projector_is_found_in_the_whole_repository(tmp_path):
    home = tmp_path / "models--org--m" / "snapshots" / "abc"
    for name in ("Q4_0/m.gguf", "Q8_0/m.gguf", "Q8_0/mmproj.gguf", "mmproj-F16.gguf"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    (other := home.parent / "def" / "mmproj.gguf").parent.mkdir()
    other.touch()
    mine = [home / "Q8_0/mmproj.gguf", home / "mmproj-F16.gguf"]
    assert files.projectors(home / "Q8_0/m.gguf") == mine
    assert files.projectors(home / "Q4_0/m.gguf")[0].parent in (home, home / "Q8_0")
    elsewhere = tmp_path / "snapshots" / "Q4_0" / "m.gguf"
    elsewhere.parent.mkdir(parents=True)
    (elsewhere.parent / "deeper").mkdir()
    (elsewhere.parent / "deeper" / "mmproj.gguf").touch()
    assert files.projectors(elsewhere) == []
