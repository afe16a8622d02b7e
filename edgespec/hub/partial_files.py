"""Downloads from the hub that go on where an earlier one broke off.

The hub's client deletes a file that it did not fetch completely. If a connection breaks, it also
forgets up to 10 MB that had arrived. So large files are fetched here, with the client's function
for one file, into a partial file that is kept for the next try.
"""

from __future__ import annotations

import errno
import importlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlparse

from .catalogue import HubSource

_CHUNK = 1 << 16  # bytes; as many are lost at most if a connection breaks
_FULL = (errno.ENOSPC, errno.EDQUOT)


def fetch(
    source: HubSource, token: str | None, home: Path, folder: Path | None, bars: Mapping[str, Any]
) -> None:
    """Fetch a large file to where the hub's client looks for it before it downloads anything.

    Small files, and files that are too large for plain HTTP, are left to the client. home: the
    repository's folder in the hub's cache, which gets the file unless `folder` is given. bars: the
    client's options for progress bars. Raises the client's exceptions and OSError.
    """
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    utils: Any = importlib.import_module("huggingface_hub.utils")
    url = hf_hub_url(source.repo, source.file, revision=source.revision)
    known = get_hf_file_metadata(url, token=token)
    etag, size = known.etag or "", known.size or 0
    if not re.fullmatch("[0-9a-f]{64}", etag) or size > constants.MAX_HTTP_DOWNLOAD_SIZE:
        return  # only large files have a SHA-256 with which the result is checked
    if folder is None:
        final, lock = home / "blobs" / etag, home.parent / ".locks" / home.name / f"{etag}.lock"
    else:
        final, lock = folder / source.file, folder / ".cache" / f"{etag}.lock"
    partial = lock.with_suffix(".incomplete") if folder else final.with_name(f"{etag}.incomplete")
    for path in (final, lock):
        path.parent.mkdir(parents=True, exist_ok=True)
    with utils.WeakFileLock(lock):
        if final.exists():
            return
        _download(url, known.location, partial, size, token, bars)
        partial.replace(final)


def _download(
    url: str, location: str, partial: Path, size: int, token: str | None, bars: Mapping[str, Any]
) -> None:
    """Fetch what a partial file lacks, in several tries as long as each brings more bytes."""
    from huggingface_hub.file_download import http_get

    utils: Any = importlib.import_module("huggingface_hub.utils")
    headers = utils.build_hf_headers(token=token)
    if urlparse(location).netloc != urlparse(url).netloc:
        headers.pop("authorization", None)  # the token is not for other hosts
    with partial.open("ab") as file, _small_chunks():
        if file.tell() > size:
            _empty(file)  # it is not a part of this file
        while (done := file.tell()) < size:
            try:
                http_get(
                    location, file, resume_size=done, headers=headers, expected_size=size, **bars
                )
            except Exception as error:  # the client's exceptions differ by version
                if isinstance(error, OSError) and error.errno in _FULL:
                    _empty(file)
                if file.tell() <= done:
                    raise


def _empty(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()


@contextmanager
def _small_chunks() -> Iterator[None]:
    """Let the client write what arrives in small chunks; it has no option for this."""
    from huggingface_hub import constants

    before = constants.DOWNLOAD_CHUNK_SIZE
    constants.DOWNLOAD_CHUNK_SIZE = _CHUNK
    try:
        yield
    finally:
        constants.DOWNLOAD_CHUNK_SIZE = before
