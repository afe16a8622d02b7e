"""Collections of documents on disk: tokenised once, indexed, mapped into memory to draft from."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from .. import kept_files
from ..backends.base import Tokenizer
from ..errors import ConfigError
from .documents import NO_TEXT, find, located, read, texts_of
from .folder import folder, vocabulary_folder
from .suffix_array import SEPARATOR, SuffixArray, suffix_order

logger = logging.getLogger("edgespec.corpus")

ADDED = "added"  # the collection of `edgespec corpus add`; all others belong to single runs
_MOST_NAMED = 8  # collections of single runs kept for a vocabulary, the most recently used ones
_VERSION = 1
_MOST_MANIFEST = 64 << 20  # bytes
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_END = np.array([SEPARATOR], np.int32)

Progress = Callable[[int, int], None]
"""A function called with the number of bytes processed so far and the total number."""


class Document(msgspec.Struct, frozen=True, array_like=True):
    """A file in a collection: it has the tokens `first` … first + n_tokens - 1."""

    path: str
    size: Count
    mtime_ns: int
    digest: str
    first: Count
    n_tokens: Count


class Collection(msgspec.Struct, frozen=True, tag_field="format", tag="edgespec-corpus"):
    """Documents that were tokenised with one vocabulary.

    name: ADDED, or the name of a collection for single runs. model: the name of the model whose
    tokenizer was used. roots: the files and folders that the user named. data: the name of the file
    with the tokens and their suffix order, int32 [2, n_tokens].
    """

    version: int
    name: str
    model: str
    roots: tuple[str, ...]
    data: str
    n_tokens: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]
    documents: tuple[Document, ...]

    def tokens(self, folder: Path) -> np.ndarray:
        """Return the tokens and their suffix order, int32 [2, n_tokens], mapped from the file.

        folder: the folder that the file is in. Raises ValueError or OSError if it is damaged.
        """
        path = folder / self.data
        if Path(self.data).name != self.data or not _has_size(path, self.n_tokens):
            raise ValueError(f"{path.name} has not the size that it was written with")
        if any(d.first + d.n_tokens > self.n_tokens for d in self.documents):
            raise ValueError("its documents have more tokens than there are")
        return np.memmap(path, "<i4", "r", shape=(2, self.n_tokens))


class Made(NamedTuple):
    """The result of making a collection. n_tokenised: the number of files that had to be tokenised.
    left_out: the number of skipped files by reason. unreadable: the files and folders that could
    not be read.
    """

    collection: Collection
    n_tokenised: int
    left_out: Counter[str]
    unreadable: list[Path]

    def without_text(self, paths: Sequence[str | os.PathLike[str]]) -> list[str]:
        """Return those files and folders among `paths` in which there was no text."""
        texts = [Path(each.path) for each in self.collection.documents if each.n_tokens]
        return [
            str(path)
            for path in located(paths)
            if not any(text.is_relative_to(path) for text in texts)
        ]


def make(
    tokenizer: Tokenizer,
    name: str,
    paths: Sequence[str | os.PathLike[str]],
    *,
    model: str = "",
    progress: Progress = lambda done, total: None,
) -> Made:
    """Tokenise and index the files and folders `paths`; store the result as the collection `name`.

    A file that was tokenised with this vocabulary before, and has not changed, is not tokenised
    again. Raises ConfigError if there is no text or too much text.
    """
    roots, where = tuple(map(str, located(paths))), vocabulary_folder(tokenizer)
    files = find(roots)
    reader = _Reader(tokenizer, where, files.n_bytes, progress)
    for path, stat in files.files.items():
        reader.read(path, stat)
    unreadable = files.unreadable + reader.unreadable
    if not reader.n_tokens:
        why = f": {listed(unreadable)} cannot be read" if unreadable else ""
        raise ConfigError(f"there is no UTF-8 text in {', '.join(map(str, paths))}{why}")
    tokens = np.concatenate(reader.parts)
    data = f"{name}-{hashlib.sha256(tokens.data).hexdigest()[:12]}.i32"
    if not _has_size(where / data, len(tokens)):  # it is not there already
        kept_files.replace(where / data, [tokens.data, suffix_order(tokens).data])
    made = Collection(_VERSION, name, model, roots, data, len(tokens), tuple(reader.documents))
    kept_files.replace(_manifest(where, name), [msgspec.json.encode(made)])
    for old in where.glob(f"{name}-*.i32"):
        if old.name != data:
            delete(old)
    return Made(made, reader.n_tokenised, files.left_out + reader.left_out, unreadable)


class _Reader:
    """Reads files into arrays of tokens; files with the same content are stored once."""

    def __init__(self, tokenizer: Tokenizer, where: Path, total: int, progress: Progress) -> None:
        self._tokenizer, self._total, self._progress = tokenizer, total, progress
        self.parts: list[np.ndarray] = []
        self.documents: list[Document] = []
        self.left_out: Counter[str] = Counter()
        self.unreadable: list[Path] = []
        self.n_tokens = self.n_tokenised = self._done = 0
        self._places: dict[str, tuple[int, int]] = {}  # texts in `parts`, by digest
        self._kept: dict[str, np.ndarray] = {}  # tokens of texts tokenised earlier, by digest
        self._digests: dict[tuple[str, int, int], str] = {}
        for collection in collections(where):
            try:
                self._know(collection, collection.tokens(where)[0])
            except (OSError, ValueError) as error:
                said = kept_files.one_line(error)
                logger.warning("the corpus in %s is damaged and made again (%s)", where, said)
                delete(where / collection.data)

    def _know(self, collection: Collection, tokens: np.ndarray) -> None:
        if not SEPARATOR <= tokens.min() <= tokens.max() < self._tokenizer.vocab_size:
            raise ValueError(f"{collection.data} holds ids that the vocabulary has not")
        for known in collection.documents:
            if known.digest:  # it could be read
                self._kept[known.digest] = tokens[known.first : known.first + known.n_tokens]
                self._digests[known.path, known.size, known.mtime_ns] = known.digest

    def read(self, path: Path, stat: os.stat_result) -> None:
        """Add a file as it is now."""
        self._done += stat.st_size
        digest, data = self._digests.get((str(path), stat.st_size, stat.st_mtime_ns)), b""
        if digest is None:
            try:
                data = read(path, stat)
            except (OSError, ValueError):
                self._add(path, stat, "", "")
                self.unreadable.append(path)
                return
            digest = hashlib.sha256(data).hexdigest()[:32]
        if digest not in self._places:
            tokens = self._kept[digest] if digest in self._kept else self._tokenised(data)
            self._places[digest] = self.n_tokens, len(tokens)
            self.parts.append(tokens)
            self.n_tokens += len(tokens)
        self._add(path, stat, digest, "" if self._places[digest][1] else NO_TEXT)
        self._progress(self._done, self._total)

    def _add(self, path: Path, stat: os.stat_result, digest: str, left_out: str) -> None:
        place = self._places.get(digest, (0, 0))
        document = Document(str(path), stat.st_size, stat.st_mtime_ns, digest, *place)
        self.documents.append(document)
        if left_out:
            self.left_out[left_out] += 1

    def _tokenised(self, data: bytes) -> np.ndarray:
        """Return the tokens of a file's texts, each with a separator after it."""
        parts: list[np.ndarray] = []
        for text in texts_of(data):
            pieces = self._tokenizer.encode_pieces(text, add_special=False, parse_special=False)
            parts += [np.array(ids, np.int32) for ids in pieces]
            parts.append(_END)
        self.n_tokenised += bool(parts)
        tokens = np.concatenate(parts or [_END])
        return tokens if (tokens != SEPARATOR).any() else tokens[:0]


def add(
    tokenizer: Tokenizer,
    paths: Sequence[str | os.PathLike[str]],
    *,
    model: str = "",
    progress: Progress = lambda done, total: None,
) -> Made:
    """Add files and folders to the collection ADDED, which every run drafts from by default.

    Files that were added before are read again if they have changed, and removed from the
    collection if they no longer exist. Raises ConfigError as `make` does, and if there is no text
    in any of `paths`; files that were added before then stay.
    """
    before = _opened(vocabulary_folder(tokenizer), ADDED)
    earlier = [root for root in (before.roots if before else ()) if _is_there(root)]
    roots = dict.fromkeys([*earlier, *map(str, located(paths))])
    made = make(tokenizer, ADDED, list(roots), model=model, progress=progress)
    if len(made.without_text(paths)) == len(located(paths)):
        make(tokenizer, ADDED, earlier, model=model)
        raise ConfigError(
            f"there is no UTF-8 text in {', '.join(map(str, paths))}; what was added before stays"
        )
    return made


def _is_there(root: str) -> bool:
    return os.path.isdir(root) or os.path.isfile(root)


def listed(paths: Sequence[Path], most: int = 5) -> str:
    """Return a text with the first `most` paths and the number of further ones."""
    more = f" and {len(paths) - most} more" if len(paths) > most else ""
    return ", ".join(map(str, paths[:most])) + more


def added(tokenizer: Tokenizer) -> SuffixArray | None:
    """Return the index of all that `edgespec corpus add` added for this vocabulary, None if there
    is nothing.
    """
    if not folder().is_dir():
        return None
    where = vocabulary_folder(tokenizer)
    return _array(where, _opened(where, ADDED))


def named(tokenizer: Tokenizer, paths: Sequence[str | os.PathLike[str]]) -> SuffixArray | None:
    """Return an index of the documents at `paths` as they are now; only new texts are tokenised.

    Raises ConfigError as `make` does.
    """
    where = vocabulary_folder(tokenizer)
    roots = sorted(map(str, located(paths)))
    name = "named-" + hashlib.sha256("\0".join(roots).encode()).hexdigest()[:12]
    collection = _opened(where, name)
    array = _array(where, collection) if collection and _is_current(collection, roots) else None
    if array is None:
        array = _array(where, make(tokenizer, name, roots).collection)
    with contextlib.suppress(OSError):
        os.utime(_manifest(where, name))
    kept = sorted(where.glob("named-*.json"), key=lambda path: -path.stat().st_mtime)
    for path in kept[_MOST_NAMED:]:
        delete(path, *where.glob(f"{path.stem}-*.i32"))
    return array


def _is_current(collection: Collection, roots: Sequence[str]) -> bool:
    """Return True if no file was added, deleted or changed since a collection was made."""
    files = find(roots).files.items()
    now = {(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in files}
    return now == {(d.path, d.size, d.mtime_ns) for d in collection.documents}


def _opened(where: Path, name: str) -> Collection | None:
    """Return a stored collection, None if there is none; log it if one cannot be read."""

    def read(path: Path) -> Collection:
        collection = kept_files.read_json(path, Collection, _MOST_MANIFEST)
        if collection.version != _VERSION:
            raise OSError(f"another edgespec made it, as version {collection.version}")
        if collection.name != name:
            raise ValueError(f"it holds the collection {collection.name!r:.80}")
        collection.tokens(where)
        return collection

    is_users = name == ADDED
    again = "`edgespec corpus add` makes it again" if is_users else "it is made again"
    return kept_files.load(
        _manifest(where, name), read, f"the corpus is left out: {again}", is_users=is_users
    )


def _array(where: Path, collection: Collection | None) -> SuffixArray | None:
    return SuffixArray(*collection.tokens(where)) if collection else None


def collections(where: Path) -> Iterator[Collection]:
    """Yield the readable collections in the folder of a vocabulary."""
    for manifest in kept_files.matching(where, "*.json"):
        if opened := _opened(where, manifest.stem):
            yield opened


def _has_size(path: Path, n_tokens: int) -> bool:
    """Return True if a file of tokens and their order exists and has its full size."""
    return path.is_file() and path.stat().st_size == 8 * n_tokens


def _manifest(where: Path, name: str) -> Path:
    return where / f"{name}.json"


def delete(*paths: Path) -> int:
    """Delete files and return the number of bytes freed; on Windows, a file in use stays."""
    freed = 0
    for path in paths:
        with contextlib.suppress(OSError):
            size = path.stat().st_size
            path.unlink()
            freed += size
    return freed
