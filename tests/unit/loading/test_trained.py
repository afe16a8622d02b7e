"""Heads that were trained here are found by loads of their target."""

import logging

import pytest

from edgespec import hub
from edgespec.config import EngineConfig
from edgespec.costs import profiles
from edgespec.decoding.kept import _key, _Learned, _stamps
from edgespec.loading import companions
from edgespec.loading.trained import NOTE, faster, is_private, register, trained_for
from tests.helpers import gguf_files, tiny_heads, tiny_models


@pytest.fixture
def target(tmp_path, monkeypatch):
    """Return a target in a folder of its own; the folder of models is another one."""
    monkeypatch.setattr(hub, "models_dir", lambda: tmp_path / "models")
    (tmp_path / "mine").mkdir()
    return tiny_models.write(tmp_path / "mine", "llama")


@pytest.fixture
def head(tmp_path):
    return tiny_heads.write(tmp_path / "eagle3-tiny.gguf")


def test_a_registered_head_is_found_for_its_target_alone(target, head, tmp_path):
    assert list(trained_for(target)) == []
    copy = register(head, target, 1.2)
    assert copy.read_bytes() == head.read_bytes()
    assert list(trained_for(target)) == [copy]
    found = companions.found(target, target)
    assert [(each.path, each.role) for each in found] == [(copy, "head")]
    assert companions.best(target, target, EngineConfig(), needed=True) == [copy]
    other = gguf_files.write(tmp_path / "other.gguf")
    assert list(trained_for(other)) == []


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_is_known_of_its_acceptance_comes_along(
    target, head, tmp_path, monkeypatch, is_folder
):
    monkeypatch.setenv("EDGESPEC_PROFILES", str(tmp_path / "profiles"))
    made = file = head
    if is_folder:
        made, file = tmp_path / "onnx", tmp_path / "onnx" / "head.onnx"
        made.mkdir()
        file.write_bytes(b"graph")
    rates = {"outcomes": [[10, 3, 4]], "drafts": [1.0] * 11}
    before = {"learned": {"draft_model": rates}, "of": _stamps((target, file))}
    assert profiles.keep(_key((target, file)), before)
    copy = register(made, target, 1.2)
    assert profiles.kept(_key((target, copy)), _Learned).learned == before["learned"]


def test_a_target_that_has_changed_gets_a_warning_and_no_head(target, head, caplog):
    register(head, target, 1.2)
    target.write_bytes(target.read_bytes() + bytes(32))
    with caplog.at_level(logging.WARNING):
        assert list(trained_for(target)) == []
    assert "has changed since its head" in caplog.text
    assert "train it anew: edgespec train" in caplog.text


def test_a_new_head_takes_the_place_of_the_old_one(target, head, tmp_path):
    register(head, target, 1.2)
    new = tiny_heads.write(tmp_path / "eagle3-new.gguf", tiny_heads.head_weights(seed=2))
    copy = register(new, target, 1.3)
    assert list(trained_for(target)) == [copy]
    assert sorted(path.name for path in copy.parent.iterdir()) == ["eagle3-new.gguf", NOTE]


def test_a_damaged_note_is_left_out(target, head, caplog):
    copy = register(head, target, 1.2)
    (copy.parent / NOTE).write_text("{")
    assert list(trained_for(target)) == []
    assert "is damaged" in caplog.text


def test_a_private_head_leaves_the_public_one_and_stays_private(target, head):
    public, private = register(head, target, 1.2), register(head, target, 1.2, private=True)
    assert sorted(trained_for(target)) == sorted([public, private])
    assert (is_private(public), is_private(private)) == (False, True)
    (private.parent / NOTE).write_text("{")
    assert list(trained_for(target)) == [public]  # the damaged note is removed
    assert is_private(private)


def test_the_fastest_draft_stays_whatever_its_kind(target, head, tmp_path):
    model = tiny_models.write(tmp_path, "llama", 2)
    assert faster(0.5, target) == ""
    copy = register(model, target, 1.2)
    assert "llama-2-False.gguf stays: it was 1.20 times as fast" in faster(1.1, target)
    assert faster(1.2, target) == faster(1.1, target, private=True) == ""
    better = register(head, target, 1.3)
    assert list(trained_for(target)) == [better]
    assert not copy.exists()
    better.unlink()
    assert faster(1.0, target) == ""
    register(head, target, 1.3)
    target.write_bytes(target.read_bytes() + bytes(32))
    assert faster(1.0, target) == ""
