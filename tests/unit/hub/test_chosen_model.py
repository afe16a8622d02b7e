"""The choice of a model that is kept, and a hub that is asked once."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgespec import hub
from edgespec.hub import chosen_model, hub_client


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which choices are kept."""
    monkeypatch.setattr(chosen_model, "state_folder", lambda: tmp_path)
    return tmp_path


def test_a_choice_is_kept_until_it_is_forgotten() -> None:
    assert hub.chosen() == ""
    hub.choose("qwen3-4b")
    hub.note_silence()
    assert hub.chosen() == "qwen3-4b"
    hub.forget_choice()
    hub.forget_choice()
    assert hub.chosen() == ""


@pytest.mark.parametrize("content", ["", "{", '{"model": 3}', '{"silent_at": -1}', "[]"])
def test_a_damaged_choice_is_none(state: Path, content: str) -> None:
    (state / "default-model.json").write_text(content, encoding="utf-8")
    assert (hub.chosen(), hub.was_silent()) == ("", False)
    hub.choose("qwen3-4b")
    assert hub.chosen() == "qwen3-4b"


def test_a_choice_that_cannot_be_written_is_an_error(state: Path) -> None:
    (state / "default-model.json").mkdir()
    with pytest.raises(OSError, match="no regular file"):
        hub.choose("qwen3-4b")
    hub.note_silence()  # which nobody asked for
    assert hub.chosen() == ""


def test_silence_counts_for_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not hub.was_silent()
    hub.note_silence()
    now = time.time()
    for later, expected in ((60, True), (90_000, False), (-90_000, False)):
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        assert hub.was_silent() is expected


def test_a_hub_answers_or_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(repo: str, timeout: float) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(
        "huggingface_hub.model_info", lambda repo, timeout: SimpleNamespace(id=repo)
    )
    assert hub_client.answers("org/repo")
    monkeypatch.setattr("huggingface_hub.model_info", fail)
    assert not hub_client.answers("org/repo")


def test_a_hub_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    monkeypatch.setattr("huggingface_hub.model_info", lambda repo, timeout: never.wait(20))
    monkeypatch.setattr("huggingface_hub.list_models", lambda **asked: never.wait(20))
    began = time.monotonic()
    assert not hub_client.answers("org/repo", 0.05)
    assert hub_client.search("name", 0.05) == []
    assert time.monotonic() - began < 10
    never.set()


def test_a_search_names_repositories_and_none_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    def list_models(**given: object) -> list[SimpleNamespace]:
        asked.append(given)
        return [SimpleNamespace(id="org/A-GGUF"), SimpleNamespace(id="other/A-GGUF")]

    monkeypatch.setattr("huggingface_hub.list_models", list_models)
    assert hub_client.search("a") == ["org/A-GGUF", "other/A-GGUF"]
    assert (asked[0]["search"], asked[0]["filter"]) == ("a", "gguf")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert hub_client.search("a") == []
    assert len(asked) == 1


def test_the_clients_retries_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    client, said = logging.getLogger("huggingface_hub.utils._http"), []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", said.append)
    client.addHandler(handler)

    def ask(**given: object) -> list[object]:
        client.warning("Retrying in 1s")
        return []

    monkeypatch.setattr("huggingface_hub.list_models", ask)
    assert hub_client.search("a") == []
    assert said == []
    client.warning("of another thread")
    client.removeHandler(handler)
    assert len(said) == 1
