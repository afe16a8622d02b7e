"""Fetched files are compared with what the catalogue says of them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from edgespec import hub
from edgespec.errors import DownloadError
from tests.helpers.selection import first


def test_verify_names_what_was_expected_and_found(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    digest = hashlib.sha256(b"GGUF").hexdigest()
    seen: list[tuple[str, int, int | None]] = []
    file = hub.ModelFile("a.gguf", "Q4_0", (), 4, digest)
    found = hub.verify(path, file, progress=lambda *call: seen.append(call))
    assert found == digest
    assert seen == [("checking a.gguf", 4, 4)]
    assert hub.verify(path, hub.ModelFile("a.gguf", "Q4_0", ())) == digest
    with pytest.raises(DownloadError, match="has 4 bytes, expected 5"):
        hub.verify(path, hub.ModelFile("a.gguf", "Q4_0", (), 5))
    with pytest.raises(DownloadError, match=f"has SHA-256 {digest}, expected {'0' * 64}"):
        hub.verify(path, hub.ModelFile("a.gguf", "Q4_0", (), 4, "0" * 64))
    assert path.exists()  # verify deletes nothing


TEST_MODELS = Path(
    os.environ.get("EDGESPEC_TEST_MODELS") or Path.home() / ".cache/edgespec-test-models"
)


@pytest.mark.model
@pytest.mark.parametrize("name", first(
    1, ["smollm2-135m", "gemma-3-270m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"], "gigabytes"
))  # fmt: skip
def test_sizes_and_hashes_are_those_of_the_real_files(name: str) -> None:
    path = TEST_MODELS / f"{name}.gguf"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    file = hub.entry(name).file()
    assert hub.verify(path, file) == file.sha256
