"""Whether a process uses ik_llama.cpp, which is right for some models only."""

from types import SimpleNamespace

import pytest

from edgespec import ConfigError, EngineConfig, SpeculativeConfig
from edgespec.backends import fork
from edgespec.loading import companions, drafts, library
from tests.helpers import libllama

llama_cpp = libllama.require()


@pytest.fixture
def ggufs(tmp_path, monkeypatch):
    """Make a target and a draft model that were not compared yet, and an installed fork."""
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.delenv("EDGESPEC_LIBLLAMA", raising=False)
    monkeypatch.setattr(fork, "library", lambda: tmp_path / "libllama.so")
    monkeypatch.setattr(fork, "_asked", [])
    for name in ("target", "draft"):
        (tmp_path / f"{name}.gguf").write_text(name)
    return [tmp_path / "target.gguf", tmp_path / "draft.gguf"]


@pytest.fixture
def in_fork(ggufs, monkeypatch):
    fork.ask()
    monkeypatch.setattr(llama_cpp, "is_fork", lambda: True)
    return ggufs


def right(path, *, faster=True):
    library.keep_compared(path, is_right=True, is_faster=faster, ms=[2.0, 1.0])


def test_it_is_used_once_it_is_right_for_all_and_faster_for_the_target(ggufs):
    target, draft = ggufs
    assert not library.choose(ggufs)
    right(target)
    assert not library.choose(ggufs)
    right(draft, faster=False)
    assert not fork.is_asked()
    assert library.choose(ggufs)
    assert fork.is_asked()


def test_it_is_not_used_where_it_is_slower_wrong_or_of_another_version(ggufs, monkeypatch):
    target, draft = ggufs
    right(target, faster=False)
    assert not library.choose([target])
    right(target)
    library.keep_compared(draft, is_right=False)
    assert not library.choose(ggufs)
    monkeypatch.setattr(fork, "VERSION", "9.9")
    assert library.compared(target) is None


def test_a_comparison_ends_with_the_file_and_with_the_other_library(ggufs, monkeypatch):
    target, _ = ggufs
    right(target)
    monkeypatch.setattr(llama_cpp, "first", lambda: "llama-cpp-python 9")
    assert library.compared(target) is None
    monkeypatch.undo()
    target.write_text("another")
    assert library.compared(target) is None


def named(target, monkeypatch, role=None, **options):
    """Return the files that ik_llama.cpp would evaluate, with a companion on the disk."""
    beside = [companions.Companion(target.parent / "draft.gguf", role, 1)] if role else []
    monkeypatch.setattr(companions, "found", lambda model, path: beside)
    monkeypatch.setattr(drafts, "is_head", lambda path: role == "head")
    config = EngineConfig(**options)
    return drafts.ggufs_for_fork("m", target, "auto", config, SpeculativeConfig())


def test_a_load_with_a_head_or_untried_settings_is_for_llama_cpp(ggufs, monkeypatch):
    target, draft = ggufs
    assert named(target, monkeypatch) == [target]
    assert named(target, monkeypatch, "sibling") == [target, draft]
    assert named(target, monkeypatch, "head") == []
    assert named(target, monkeypatch, batch_invariant=True) == []
    assert named(target, monkeypatch, type_v="q8_0") == []
    monkeypatch.setenv("EDGESPEC_LIBLLAMA", "mine.so")
    assert named(target, monkeypatch) == []


@pytest.mark.parametrize(("record", "config", "why"), [
    (None, {}, "was not compared"), (False, {}, "something else than llama.cpp"),
    (True, {"batch_invariant": True}, "batch_invariant was not tried"), (True, {}, ""),
])  # fmt: skip
def test_a_process_that_uses_it_opens_only_what_it_is_right_for(in_fork, record, config, why):
    target, _ = in_fork
    if record is not None:
        library.keep_compared(target, is_right=record, is_faster=record)
    if not why:
        return library.check(target, EngineConfig(**config))
    with pytest.raises(ConfigError, match=why) as refused:
        library.check(target, EngineConfig(**config))
    assert "process of its own" in str(refused.value)
    return library.check(target.parent / "model.onnx", EngineConfig())  # another engine's


def test_without_the_package_nothing_is_compared(ggufs, monkeypatch):
    monkeypatch.setattr(fork, "library", lambda: None)
    assert named(ggufs[0], monkeypatch) == []


def test_only_the_version_that_edgespec_knows_counts(tmp_path, monkeypatch):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libllama.so").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(fork, "_version", lambda: fork.VERSION)
    assert fork.library() == tmp_path / "lib/libllama.so"
    monkeypatch.setattr(fork, "_version", lambda: "0.1.6")
    assert fork.library() is None
