"""Copies of draft models that a CPU evaluates faster."""

import contextlib
import os
import shutil

import pytest

import edgespec
from edgespec import requantization
from edgespec.backends import llama_cpp
from edgespec.config import EngineConfig
from edgespec.errors import ModelError, ModelNotFound, NotAGGUF, OutOfMemory
from edgespec.loading import load_draft, open_draft, open_model
from edgespec.policies.profile import Curve


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setenv("EDGESPEC_DRAFTS", str(tmp_path / "drafts"))
    return tmp_path / "drafts"


@pytest.fixture
def measured(monkeypatch):
    """What copies and files take, by name, in place of a clock; and how often it was asked."""
    seconds, asked = {"copy": (1.0, 1.0), "file": (2.0, 2.0)}, []

    def measure(model, **_):
        kind = "copy" if "-q4_0-" in model.path.name else "file"
        asked.append(kind)
        return Curve((64,), (1, 64), (seconds[kind],))

    monkeypatch.setattr(requantization, "measure", measure)
    seconds["asked"] = asked
    return seconds


def fastest(path, **options):
    return requantization.fastest(path, EngineConfig(**options), open_model)


def test_a_faster_copy_is_made_once(smollm2, empty, measured):
    copy = fastest(smollm2)
    assert copy.parent == empty
    assert copy.name.startswith(f"{smollm2.stem}-q4_0-")
    made = copy.stat()
    assert llama_cpp.inspect_metadata(copy)["general.file_type"] == "2"
    assert fastest(smollm2) == copy
    assert copy.stat().st_mtime_ns == made.st_mtime_ns
    assert len(measured["asked"]) == 2
    assert [file.name for file in empty.iterdir()] == [copy.name]


@pytest.mark.parametrize("times", [(1.9, 2.0), (1.0, 2.1)], ids=["hardly faster", "reads slower"])
def test_a_copy_that_is_no_faster_is_forgotten(smollm2, empty, measured, times):
    measured["copy"] = times
    assert fastest(smollm2) == fastest(smollm2) == smollm2
    assert not list(empty.iterdir())
    assert len(measured["asked"]) == 2


def test_a_copy_that_was_deleted_is_made_again(smollm2, measured):
    copy = fastest(smollm2)
    copy.unlink()
    assert fastest(smollm2) == copy
    assert copy.exists()


def test_a_copy_that_was_cut_off_is_made_again(smollm2, measured):
    copy = fastest(smollm2)
    size = copy.stat().st_size
    with copy.open("r+b") as file:
        file.truncate(size // 2)
    assert requantization.known(smollm2, EngineConfig()) is None
    assert fastest(smollm2) == copy
    assert copy.stat().st_size == size


def test_what_a_killed_process_left_is_removed(smollm2, measured):
    copy = fastest(smollm2)
    copy.unlink()
    abandoned, under_way = copy.with_suffix(".123"), copy.with_suffix(".124")
    other = copy.with_name("other-q4_0-12345678.123")
    for file in (abandoned, under_way, other):
        file.write_bytes(b"half a copy")
    for file in (abandoned, other):
        os.utime(file, (0, 0))
    assert fastest(smollm2) == copy
    assert set(copy.parent.iterdir()) == {copy, under_way, other}


def test_a_file_that_changed_gets_another_copy(smollm2, tmp_path, measured):
    path = tmp_path / "model.gguf"
    shutil.copy(smollm2, path)
    first = fastest(path)
    path.touch()
    assert fastest(path) != first


def test_what_is_as_small_already_stays(small_draft, empty, measured, monkeypatch):
    assert fastest(small_draft) == small_draft
    monkeypatch.delattr(llama_cpp, "requantizable")  # it is not asked again
    assert fastest(small_draft) == small_draft
    assert not empty.exists()
    assert not measured["asked"]


def test_a_gpu_takes_the_file(smollm2, measured, monkeypatch):
    monkeypatch.setattr(llama_cpp, "supports_gpu_offload", lambda: True)
    assert fastest(smollm2) == smollm2
    assert fastest(smollm2, n_gpu_layers=0) != smollm2


def test_no_room(smollm2, empty, measured, monkeypatch):
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000)
    )
    assert fastest(smollm2) == smollm2
    assert not list(empty.iterdir())


def test_no_folder(smollm2, empty, measured):
    empty.write_text("a file")
    assert fastest(smollm2) == smollm2


def test_a_file_that_cannot_be_requantised(smollm2, empty, measured, monkeypatch):
    def fail(path, target):
        target.write_bytes(b"half")
        raise ModelError("no such tensor")

    monkeypatch.setattr(llama_cpp, "requantize", fail)
    assert fastest(smollm2) == smollm2
    assert not list(empty.iterdir())


def test_where_nothing_can_be_kept(smollm2, empty, measured, monkeypatch):
    monkeypatch.setattr(requantization, "keep", lambda *_: None)
    assert fastest(smollm2) == smollm2
    assert not list(empty.iterdir())


def test_a_copy_that_cannot_be_measured(smollm2, empty, monkeypatch):
    def fail(*_, **__):
        raise OutOfMemory("no room for a second model")

    monkeypatch.setattr(requantization, "measure", fail)
    assert fastest(smollm2) == smollm2
    assert not list(empty.iterdir())


def test_what_is_no_model(tmp_path, empty):
    text, damaged = tmp_path / "text.gguf", tmp_path / "damaged.gguf"
    text.write_text("a text")
    damaged.write_bytes(b"GGUF and nothing else")
    for path, error in ((tmp_path / "no.gguf", ModelNotFound), (text, NotAGGUF)):
        with pytest.raises(error):
            fastest(path)
    with pytest.raises(ModelError):
        fastest(damaged)
    assert not empty.exists()


def test_requantising_a_damaged_file(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF and nothing else")
    with pytest.raises(ModelError):
        llama_cpp.requantize(path, tmp_path / "copy.gguf")


def test_drafts_of_a_copy_change_nothing(smollm2, measured):
    prompt = "The seven colours of the rainbow are"
    config = {"method": "draft_model", "num_speculative_tokens": 4, "draft_p_min": 0.0}
    options = {"n_ctx": 512, "batch_invariant": True, "speculative_config": config}
    with edgespec.load(smollm2, smollm2, **options) as engine:
        drafted = engine.generate(prompt, max_tokens=40)
        assert "-q4_0-" in engine.describe()["draft"]["file"]
        plain = engine.generate(prompt, max_tokens=40, disable_spec_decode=True)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.num_accepted_draft_tokens > 10


def test_who_only_looks_makes_no_copy(smollm2, empty, measured):
    config = EngineConfig(n_ctx=128)
    with contextlib.closing(open_draft(smollm2, config, make_copy=False)) as draft:
        assert draft.path == smollm2
    edgespec.diagnose(smollm2, smollm2)
    assert not empty.exists()
    copy = fastest(smollm2)
    with contextlib.closing(open_draft(smollm2, config, make_copy=False)) as draft:
        assert draft.path == copy


def test_a_user_may_want_the_file_itself(smollm2, empty, measured):
    target = open_model(smollm2, EngineConfig(n_ctx=128))
    try:
        for options in ({"requantize": False}, {}):
            draft = load_draft(smollm2, EngineConfig(n_ctx=128), options, target)
            assert (draft.path == smollm2) == bool(options)
            draft.close()
    finally:
        target.close()
