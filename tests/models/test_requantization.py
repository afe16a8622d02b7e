"""Copies of draft models that a CPU evaluates faster."""

import contextlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import edgespec
from edgespec.cache import requantization
from edgespec.config import EngineConfig
from edgespec.costs.curves import Curve
from edgespec.errors import ModelError, ModelNotFound, NotAGGUF, OutOfMemory, VocabularyMismatch
from edgespec.loading.drafts import load_draft, open_draft
from edgespec.loading.models import open_model
from tests.helpers import libllama

llama_cpp = libllama.require()
pytestmark = [pytest.mark.llama_cpp, libllama.needs_requantising()]


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setenv("EDGESPEC_DRAFTS", str(tmp_path / "drafts"))
    return tmp_path / "drafts"


@pytest.fixture
def measured(monkeypatch):
    """Set the seconds of copies and of files in place of a clock, and note what was measured."""
    seconds, asked = {"copy": (1.0, 1.0), "file": (2.0, 2.0)}, []

    def measure(model, **_):
        kind = "copy" if "-q4_0-" in model.path.name else "file"
        asked.append(kind)
        return Curve((64,), (1, 64), (seconds[kind],))

    monkeypatch.setattr(requantization, "measure", measure)
    seconds["asked"] = asked
    return seconds


def fastest(path, **options):
    return requantization.fastest(path, EngineConfig(**options))


def test_a_faster_copy_is_made_once(smollm2, empty, measured):
    copy = fastest(smollm2)
    assert copy.parent == empty
    assert copy.name.startswith(f"{smollm2.stem}-q4_0-")
    made = copy.stat()
    assert llama_cpp.inspect_metadata(copy)["general.file_type"] == "2"
    assert fastest(smollm2) == copy
    assert copy.stat().st_mtime_ns == made.st_mtime_ns
    assert measured["asked"] == ["copy", "file"] * 3  # in turns
    assert list(empty.glob("*.gguf")) == [copy]


@pytest.mark.parametrize("times", [(1.9, 2.0), (1.0, 2.1)], ids=["hardly faster", "reads slower"])
def test_a_copy_that_is_no_faster_is_forgotten(smollm2, empty, measured, times):
    measured["copy"] = times
    assert fastest(smollm2) == fastest(smollm2) == smollm2
    assert not list(empty.glob("*.gguf"))
    assert measured["asked"] == ["copy", "file"] * 3  # in turns


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


def test_what_a_killed_process_left_is_written_over(smollm2, measured):
    copy = fastest(smollm2)
    copy.unlink()
    copy.with_suffix(".partial").write_bytes(b"half a copy")
    assert fastest(smollm2) == copy
    assert set(copy.parent.iterdir()) <= {copy, copy.with_suffix(".lock")}


def test_a_file_that_changed_gets_a_new_copy_in_place_of_the_old_one(smollm2, tmp_path, measured):
    path = tmp_path / "model.gguf"
    shutil.copy(smollm2, path)
    copy = fastest(path)
    made, changed = copy.stat().st_mtime_ns, path.stat().st_mtime_ns
    path.touch()
    assert fastest(path) == copy
    assert copy.stat().st_mtime_ns > made
    os.utime(path, ns=(changed, changed))  # the copy is not of this one any more
    assert requantization.known(path, EngineConfig()) is None
    assert list(copy.parent.glob("*.gguf")) == [copy]


def test_a_damaged_copy_is_left_for_the_file(smollm2, measured, caplog):
    config = EngineConfig(n_ctx=128)
    copy = fastest(smollm2)
    found = copy.stat()
    with copy.open("r+b") as file:
        file.write(bytes(100))
    os.utime(copy, ns=(found.st_atime_ns, found.st_mtime_ns))
    with contextlib.closing(open_draft(smollm2, config, make_copy=True)) as draft:
        assert draft.path == smollm2
    assert "is left for the file itself" in caplog.text
    assert fastest(smollm2) == copy
    with contextlib.closing(open_draft(smollm2, config)) as draft:
        assert draft.path == copy


def test_two_at_a_time_make_one_copy(smollm2, measured):
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(fastest, [smollm2] * 2)
    assert first == second != smollm2
    assert first.exists()
    assert measured["asked"] == ["copy", "file"] * 3  # in turns


def test_what_is_as_small_already_stays(small_draft, empty, measured, monkeypatch):
    assert fastest(small_draft) == small_draft
    monkeypatch.setattr(llama_cpp, "requantizable", None)  # it is not asked again
    assert fastest(small_draft) == small_draft
    assert not empty.exists()
    assert not measured["asked"]


def test_a_gpu_takes_the_file(smollm2, measured, monkeypatch):
    monkeypatch.setattr(llama_cpp, "gpus", lambda config: ["a GPU"] if config.n_gpu_layers else [])
    assert fastest(smollm2) == smollm2
    assert fastest(smollm2, n_gpu_layers=0) != smollm2


def test_no_room(smollm2, empty, measured, monkeypatch):
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1000)
    )
    assert fastest(smollm2) == smollm2
    assert not list(empty.glob("*.[gp]*"))


def test_no_folder(smollm2, empty, measured):
    empty.write_text("a file")
    assert fastest(smollm2) == smollm2


def test_a_file_that_cannot_be_requantised(smollm2, empty, measured, monkeypatch):
    def fail(path, target):
        target.write_bytes(b"half")
        raise ModelError("no such tensor")

    monkeypatch.setattr(llama_cpp, "requantize", fail)
    assert fastest(smollm2) == smollm2
    assert not list(empty.glob("*.[gp]*"))


def test_where_nothing_can_be_kept(smollm2, empty, measured, monkeypatch):
    monkeypatch.setattr(requantization, "keep", lambda *_: None)
    monkeypatch.setattr(llama_cpp, "requantize", None)
    assert fastest(smollm2) == smollm2
    assert not list(empty.glob("*.gguf"))


def test_a_copy_that_cannot_be_measured(smollm2, empty, monkeypatch):
    def fail(*_, **__):
        raise OutOfMemory("no room for a second model")

    monkeypatch.setattr(requantization, "measure", fail)
    assert fastest(smollm2) == smollm2
    assert not list(empty.glob("*.[gp]*"))


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
    fastest(smollm2)
    options = {"n_ctx": 512, "batch_invariant": True, "speculative_config": config}
    with edgespec.load(smollm2, smollm2, **options) as engine:
        drafted = engine.generate(prompt, max_tokens=40)
        assert "-q4_0-" in engine.describe()["draft"]["file"]
        plain = engine.generate(prompt, max_tokens=40, disable_spec_decode=True)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.num_accepted_draft_tokens > 10


def test_what_cannot_draft_is_not_copied(smollm2, empty, measured):
    target = SimpleNamespace(path=smollm2, n_ctx=128, tokenizer=edgespec.ToyTokenizer(["a", "b"]))
    with pytest.raises(VocabularyMismatch):
        load_draft(smollm2, EngineConfig(), {}, target, make_copy=True)
    assert not list(empty.glob("*.[gp]*"))
    assert not measured["asked"]


def test_who_only_looks_makes_no_copy(smollm2, empty, measured):
    config = EngineConfig(n_ctx=128)
    with contextlib.closing(open_draft(smollm2, config)) as draft:
        assert draft.path == smollm2
    edgespec.diagnose(smollm2, smollm2)
    assert not empty.exists()
    copy = fastest(smollm2)
    with contextlib.closing(open_draft(smollm2, config)) as draft:
        assert draft.path == copy


def test_a_user_may_want_the_file_itself(smollm2, empty, measured):
    target = open_model(smollm2, EngineConfig(n_ctx=128))
    try:
        for options in ({"requantize": False}, {}):
            config = EngineConfig(n_ctx=128)
            draft = load_draft(smollm2, config, options, target, make_copy=True)
            assert (draft.path == smollm2) == bool(options)
            draft.close()
    finally:
        target.close()


def test_a_copy_is_made_in_a_process_that_gives_way(smollm2, empty):
    config = EngineConfig(n_ctx=256, n_threads=1)
    work = requantization.Copying(smollm2, config)
    looks = iter(range(1000))

    def abort():
        return "cancelled" if next(looks) else None

    assert not work.run(abort)
    assert requantization.known(smollm2, config) is None
    assert not list(empty.glob("*.partial"))
    assert work.run(lambda: None)
    assert requantization.known(smollm2, config) is not None


def test_load_opens_the_draft_model_once_and_copies_it_later(smollm2, empty, monkeypatch):
    opened, open_native = [], llama_cpp.open_model
    monkeypatch.setattr(
        llama_cpp,
        "open_model",
        lambda path, config: opened.append(path) or open_native(path, config),
    )
    options = {"n_ctx": 256, "n_threads": 1, "speculative_config": {"method": "draft_model"}}
    with edgespec.load(smollm2, smollm2, **options) as engine:
        assert opened == [smollm2] * 2
        assert engine.idle_work.left[-1] == requantization.Copying.doing
        assert not list(empty.glob("*.gguf"))
