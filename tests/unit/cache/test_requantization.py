"""Copies of draft models where the library cannot make them."""

from edgespec import EngineConfig
from edgespec.cache.requantization import fastest, known
from tests.helpers import libllama


def test_a_library_that_cannot_requantise_is_not_asked_to(tmp_path, monkeypatch):
    backend = libllama.require()
    monkeypatch.setenv("EDGESPEC_DRAFTS", str(tmp_path / "drafts"))
    monkeypatch.setattr(backend, "can_requantize", lambda: False)
    monkeypatch.setattr(backend, "requantize", None)
    path = tmp_path / "draft.gguf"
    path.write_bytes(b"GGUF")
    assert fastest(path, EngineConfig()) == known(path, EngineConfig()) == path
    assert not (tmp_path / "drafts").exists()
