"""References become files, without any network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec import hub
from edgespec.errors import ConfigError, DownloadError, ModelNotFound
from edgespec.hub import references
from tests.helpers.catalogue import TOML


@pytest.fixture(autouse=True)
def no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No model of this machine is seen: neither in our folder nor in the hub's cache."""
    import huggingface_hub.constants

    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "models"


@pytest.fixture
def toy(use_entry: Callable[[str], hub.Entry]) -> hub.Entry:
    return use_entry(TOML)


def test_models_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_MODELS", "~/m")
    assert hub.models_dir() == Path.home() / "m"
    monkeypatch.delenv("EDGESPEC_MODELS")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert hub.models_dir() == Path("/x/edgespec/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert hub.models_dir() == Path.home() / ".cache/edgespec/models"


def test_a_path_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"GGUF")
    assert hub.resolve(path) == path
    assert hub.resolve(str(path)) == path
    assert hub.resolve("mine.gguf") == Path("mine.gguf")
    assert hub.pull(path, offline=True) == path


def test_a_name_is_found_in_the_folder_of_models(toy: hub.Entry, no_caches: Path) -> None:
    assert hub.resolve("toy-1b") is None
    no_caches.mkdir()
    small, large = no_caches / "toy-Q4_0.gguf", no_caches / "toy-Q8_0.gguf"
    small.write_bytes(b"1234")
    large.write_bytes(b"12345678")
    assert hub.resolve("toy-1b") == small
    assert hub.resolve("TOY-1B") == small
    assert hub.resolve("toy-1b:q8_0") == large
    assert hub.resolve("toy-1b", quantisation="Q8_0") == large
    assert hub.resolve("toy-1b:Q8_0", quantisation="q8_0") == large
    assert hub.pull("toy-1b", offline=True) == small


def test_a_file_of_the_wrong_size_is_not_used(toy: hub.Entry, no_caches: Path) -> None:
    no_caches.mkdir()
    (no_caches / "toy-Q4_0.gguf").write_bytes(b"123")
    assert hub.resolve("toy-1b") is None


def test_a_name_wins_over_a_file_of_the_same_name(toy: hub.Entry, tmp_path: Path) -> None:
    (tmp_path / "toy-1b").write_bytes(b"1234")
    assert hub.resolve("toy-1b") is None
    assert hub.resolve("./toy-1b") == Path("toy-1b")
    assert hub.resolve(Path("toy-1b")) == Path("toy-1b")


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("qwen3-40b", r"no model is called 'qwen3-40b'; close to it: qwen3-.*hf:org/repo/file"),
        ("zzz", r"no model is called 'zzz'; .edgespec models. lists all"),
        ("", "no model is called ''"),
        ("./qwen3-4b.gguf", r"there is no file './qwen3-4b.gguf'; close to it: qwen3-4b,"),
        ("Qwen3-4B-Q5_K_M.gguf", r"there is no file .*; close to it: qwen3-4b,"),
        ("org/repo/a.gguf", r"If it is a file of the hub: hf:org/repo/a.gguf$"),
        ("qwen3-4b:Q1_0", r"no Q1_0 of qwen3-4b; it has: Q4_K_M, Q8_0"),
        ("org/repo:Q4_K_M", r"If it is a repository of the hub: hf:org/repo:Q4_K_M$"),
        ("hf:org", "is none of hf:org/repo, hf:org/repo:Q4_K_M and hf:org/repo/file.gguf"),
        ("hf:org/repo/../x.gguf", "is none of"),
        ("https://huggingface.co/org/repo/blob/main/README.md", "'hf:org/repo/README.md' is none"),
        ("hf:org/-repo/x.gguf", "the hub can have no org/-repo/x.gguf: "),
        ("hf:org/repo/a-00002-of-00002.gguf", "name the first: a-00001-of-00002.gguf"),
    ],
)
def test_what_is_nothing_says_what_else_would_work(reference: str, expected: str) -> None:
    with pytest.raises(ModelNotFound, match=expected):
        hub.resolve(reference)
    with pytest.raises(ModelNotFound, match=expected):
        hub.pull(reference, offline=True)


def test_a_path_object_is_never_a_name() -> None:
    with pytest.raises(ModelNotFound, match="there is no file 'qwen3-4b'"):
        hub.resolve(Path("qwen3-4b"))


def test_a_folder_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelNotFound, match=r"is a folder.*: a.gguf$"):
        hub.resolve(tmp_path)


def test_a_quantisation_is_given_once_and_only_to_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.touch()
    with pytest.raises(ConfigError, match="asks for Q8_0, the quantisation option for Q4_K_M"):
        hub.resolve("qwen3-4b:Q8_0", quantisation="Q4_K_M")
    for reference in (path, "hf:org/repo/a.gguf"):
        with pytest.raises(ConfigError, match="is one file already"):
            hub.resolve(reference, quantisation="Q8_0")


def test_a_hub_file_is_known_but_not_here() -> None:
    assert hub.resolve("hf:org/repo/sub/a.gguf") is None
    assert hub.resolve("hf:org/repo/a.gguf@refs/pr/1") is None


FILE, REPO = "hf:org/repo/a/x.gguf", "hf:org/repo"


@pytest.mark.parametrize(
    ("address", "reference"),
    [
        ("https://huggingface.co/org/repo", REPO),
        ("https://huggingface.co/org/repo/", REPO),
        ("https://huggingface.co/org/repo?library=gguf", REPO),
        ("huggingface.co/org/repo/tree/main", REPO),
        ("hf.co/org/repo:Q4_K_M", f"{REPO}:Q4_K_M"),
        ("https://hf.co/org/repo/tree/v2", f"{REPO}@v2"),
        ("https://huggingface.co/org/repo/blob/main/a/x.gguf", FILE),
        ("https://huggingface.co/org/repo/resolve/main/a/x.gguf?download=true", FILE),
        ("https://www.huggingface.co/org/repo/blob/refs%2Fpr%2F1/a/x.gguf", f"{FILE}@refs/pr/1"),
        ("hf://org/repo/a/x.gguf", FILE),
    ],
)
def test_an_address_of_the_hub_is_what_it_shows(address: str, reference: str) -> None:
    assert references.locate(address, None) == references.locate(reference, None)
    assert hub.names_model(address)


def test_what_names_a_model_by_its_form(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.onnx").touch()
    for text in ("qwen3-4b", "Qwen3-4B:q8_0", "no.gguf", "./x.onnx", "hf:org/repo", "folder"):
        assert hub.names_model(text), text
    for text in ("hello", "llama3.2:1b", "What is in x.gguf", "read my x.gguf", "", "org/repo"):
        assert not hub.names_model(text), text


def test_offline_says_where_to_put_the_file(toy: hub.Entry, no_caches: Path) -> None:
    with pytest.raises(DownloadError, match=r"toy-Q4_0.gguf is not on this device") as error:
        hub.pull("toy-1b", offline=True)
    assert str(no_caches) in str(error.value)


def test_a_revision_is_of_the_hub_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DownloadError, match="has no hub source, so there is no revision 'v2'"):
        hub.pull("smollm2-135m", revision="v2")


def test_another_revision_is_not_what_lies_in_our_folder(toy: hub.Entry, no_caches: Path) -> None:
    no_caches.mkdir()
    (no_caches / "toy-Q4_0.gguf").write_bytes(b"1234")
    assert hub.pull("toy-1b", revision="main", offline=True)
    with pytest.raises(DownloadError, match="is not on this device"):
        hub.pull("toy-1b", revision="v2", offline=True)
