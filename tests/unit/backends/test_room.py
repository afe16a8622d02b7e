"""Weights are repacked only where there is memory for a second copy."""

import pytest

from edgespec import EngineConfig
from tests.helpers import libllama

llama_cpp = libllama.require()
from edgespec.backends.llama_cpp import context  # noqa: E402

pytestmark = pytest.mark.llama_cpp
SIZE = 1 << 20


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(context, "chosen", lambda config: [])
    (tmp_path / "m.gguf").write_bytes(bytes(SIZE))
    return tmp_path / "m.gguf"


@pytest.mark.parametrize(("free", "repacks"), [(SIZE + context._SPARE, True), (SIZE, False)])
def test_a_second_copy_needs_room(path, monkeypatch, caplog, free, repacks):
    monkeypatch.setattr(context, "available_memory", lambda: free)
    assert context.with_room(path, EngineConfig()).use_extra_bufts is repacks
    assert ("not repacked" in caplog.text) is not repacks


def test_what_lies_on_a_gpu_or_nowhere_needs_none(path, monkeypatch):
    monkeypatch.setattr(context, "available_memory", lambda: 0)
    assert context.with_room(path.parent / "nothing.gguf", EngineConfig()).use_extra_bufts
    monkeypatch.setattr(context, "chosen", lambda config: ["a GPU"])
    assert context.with_room(path, EngineConfig()).use_extra_bufts
    assert not context.with_room(path, EngineConfig(n_gpu_layers=0)).use_extra_bufts


def test_a_model_without_room_answers_and_is_measured_as_it_is(smollm2, monkeypatch):
    monkeypatch.setattr(context, "available_memory", lambda: 200 << 20)
    model = llama_cpp.LlamaCppModel(smollm2, EngineConfig(n_ctx=256))
    assert model.fingerprint()["settings"]["use_extra_bufts"] is False
    assert "CPU_REPACK" not in str(model.placement)
    model.close()
