"""Earlier answers to draft from: those of this process and, if wanted, those kept on disk."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np

from .. import kept_files
from .suffix_array import LARGEST, SEPARATOR, SuffixArray, indexed

logger = logging.getLogger("edgespec.corpus")

JOURNAL = "answers.i32"  # in the folder of a vocabulary
MOST_TOKENS = 1 << 18  # most tokens of all answers: 2 MB in memory, 1 MB on disk
_MOST_BYTES = 16 * MOST_TOKENS  # most bytes of a file, which is shortened long before
_LEAST_FRESH = 4096  # tokens of new answers in a separate small index, which is quick to rebuild
_MAGIC = b"EdgeAns1"  # a file of answers begins with it
_END = np.array([SEPARATOR], "<i4").tobytes()


class Answers:
    """The latest answers, at most `most` tokens in all; the least recently given are dropped first.

    journal: the file that they are read from and written to, None to keep them only in memory.
    """

    def __init__(self, most: int = MOST_TOKENS, journal: Path | None = None) -> None:
        self._most = most
        self._journal = journal
        self._texts: dict[bytes, None] = {}  # answers as int32, the least recently given first
        self._size = 0  # bytes of all texts
        self._fresh: list[bytes] = []
        self._old: SuffixArray | None = None
        self._new: SuffixArray | None = None
        for text in _read(journal) if journal else []:
            self._take(text)
        self._index_all()

    @property
    def n_tokens(self) -> int:
        """The number of tokens in all remembered answers."""
        return self._size // 4

    @property
    def arrays(self) -> list[SuffixArray]:
        """The indexes to search, that of the newest answers first."""
        return [array for array in (self._new, self._old) if array]

    def write(self, tokens: Sequence[int]) -> None:
        """Write an answer to the journal, if there is one; only `add` adds it to the indexes."""
        if self._journal:
            _append(self._journal, _bytes(tokens), 4 * self._most)

    def add(self, answers: Iterable[Sequence[int]]) -> None:
        """Add answers to the indexes. An answer that was given before becomes the latest."""
        texts = [text for text in map(_bytes, answers) if self._take(text)]
        if not texts:
            return
        self._fresh += texts
        if sum(map(len, self._fresh)) > 4 * max(_LEAST_FRESH, self._most // 16):
            self._index_all()
        else:
            self._new = _index(self._fresh)

    def _take(self, text: bytes) -> bool:
        """Store an answer as the latest one; return False if it was stored before."""
        there = text in self._texts
        self._texts.pop(text, None)
        self._texts[text] = None
        self._size += 0 if there else len(text)
        while len(self._texts) > 1 and self.n_tokens > self._most:
            oldest = next(iter(self._texts))
            del self._texts[oldest]
            self._size -= len(oldest)
        return not there

    def _index_all(self) -> None:
        self._fresh, self._new = [], None
        self._old = _index(self._texts)


def _bytes(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, "<i4").tobytes()


def _index(texts: Collection[bytes]) -> SuffixArray | None:
    return indexed([np.frombuffer(text, "<i4") for text in texts]) if texts else None


def _read(path: Path) -> list[bytes]:
    """Return the answers in a file, the oldest first. Answers with an invalid token are left out;
    a file of a different format gives none.
    """
    data = kept_files.load(path, _checked, "answers are remembered anew", is_users=True)
    if data is None:
        return []
    values = np.frombuffer(data[len(_MAGIC) : len(data) // 4 * 4], "<i4")
    *whole, _ = np.split(values, np.flatnonzero(values == SEPARATOR) + 1)
    answers = [text[:-1] for text in whole if len(text) > 1]
    return [text.tobytes() for text in answers if 0 <= text.min() <= text.max() <= LARGEST]


def _checked(path: Path) -> bytes:
    data = kept_files.read(path, _MOST_BYTES)
    if not data.startswith(_MAGIC):
        raise ValueError("it holds no answers")
    return data


def _append(path: Path, text: bytes, most: int) -> None:
    """Append an answer to a file; shorten the file to `most` bytes once it is 1.5 times as long."""
    try:
        if _is_whole(path) and path.stat().st_size < 3 * most // 2:
            with path.open("ab") as file:
                file.write(text + _END)
            return
        texts, size = {text: None}, len(text)  # answers, the latest first
        for earlier in reversed(_read(path)):
            if size + len(earlier) <= most and earlier not in texts:
                texts[earlier] = None
                size += len(earlier)
        parts = (part for text in reversed(texts) for part in (text, _END))
        kept_files.replace(path, [_MAGIC, *parts])
    except OSError as error:
        logger.warning("the answer cannot be kept: %s", error)


def _is_whole(path: Path) -> bool:
    """Return True if a file of answers is intact: it ends directly after an answer."""
    if not path.is_file():
        return False
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(len(_MAGIC)) == _MAGIC:
            size = file.seek(0, os.SEEK_END)
            file.seek(-4, os.SEEK_END)
            return size == len(_MAGIC) or (size % 4 == 0 and file.read(4) == _END)
    return False
