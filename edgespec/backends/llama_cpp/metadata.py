"""A reader for the header of a GGUF, without an engine. So native code never sees damaged files,
nor files that are only inspected. Every length is checked against the file before anything is read.

The package `gguf` has a reader, too. It reads past the end of short files without noticing, trusts
every length, and takes eight seconds for a vocabulary of 150,000 tokens.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ...errors import NotAGGUF, TruncatedModel
from ..files import opened

_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
BLOCKS = {  # ggml_type: elements and bytes of a block
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    9: (32, 36), 10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210),
    15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18),
    21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
    40: (64, 36), 41: (128, 18),
}  # fmt: skip
_MAX_KEYS, _MAX_TENSORS, _MAX_DEPTH = 1 << 16, 1 << 20, 4
_MAX_ELEMENTS = 1 << 24  # in all arrays together
_VERSIONS = (2, 3)
_LENGTH = struct.Struct("<Q")


class Layout(NamedTuple):
    """A tensor's kind (its ggml_type) and shape, with the number of columns first, as in GGUF."""

    kind: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """The part of a GGUF before the weights. It is a `Vocabulary`.

    metadata: the values by key: numbers, bools, strings as bytes, and arrays as lists. tensors: the
    offset of each tensor in the file, by name. layouts: the kind and shape of each tensor, by name.
    data_end: the least size in bytes of a complete file. tokens: the vocabulary's entries by token
    id.
    """

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, int]
    layouts: dict[str, Layout]
    data_end: int
    tokens: list[bytes]

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return len(self.tokens)

    def token_text(self, token: int) -> bytes:
        """Return the vocabulary's entry for a token id."""
        return self.tokens[token]

    def text(self, key: str) -> str:
        """Return a string of the metadata, "" if there is none."""
        value = self.metadata.get(key)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def read_header(path: Path) -> Header:
    """Return the header of a file. Raises ModelNotFound, NotAGGUF, TruncatedModel."""
    check_file(path)
    with opened(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(path, data)
        try:
            header = reader.header()
        except (struct.error, OverflowError):
            reader.truncated("its header", reader.at + 8)
        if header.data_end > len(data):
            reader.truncated("its weights", header.data_end)
        return header


def check_file(path: Path) -> None:
    """Raise ModelNotFound or NotAGGUF if `path` is not a GGUF; only its first bytes are read."""
    with opened(path) as file:
        magic = file.read(4)
    if not magic:
        raise NotAGGUF(f"{path} is empty; fetch it again")
    if magic != b"GGUF":
        raise NotAGGUF(
            f"{path} is not a GGUF: it begins with {magic!r}, a GGUF with b'GGUF'; "
            "give a file that ends in .gguf (safetensors and PyTorch files need converting)"
        )


class _Reader:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.at = path, 4  # after the magic
        self._data, self._size = data, len(data)
        self._n_elements = 0  # in all arrays so far

    def header(self) -> Header:
        version = self._number("I")
        if version not in _VERSIONS:
            order = "; its bytes are in big-endian order" if not version & 0xFFFF else ""
            raise NotAGGUF(
                f"{self.path} is a GGUF of version {version}{order}, expected version 2 or 3 in "
                "little-endian order; convert the model again"
            )
        n_tensors = self._count("tensors", _MAX_TENSORS)
        n_keys = self._count("metadata keys", _MAX_KEYS)
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self._text().decode("utf-8", "replace")
            metadata[key] = self._value(self._number("I"))
        tensors = list(self._tensors(n_tensors))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment < 1 << 20:
            self._damaged(f"an alignment of {alignment!r:.80}, expected 32 or another power of two")
        start = -(-self.at // alignment) * alignment
        return Header(
            self.path,
            metadata,
            {name: start + offset for name, offset, _, _ in tensors},
            {name: layout for name, _, _, layout in tensors},
            max((start + offset + size for _, offset, size, _ in tensors), default=self.at),
            self._tokens(metadata.get("tokenizer.ggml.tokens", [])),
        )

    def _tokens(self, found: Any) -> list[bytes]:
        if not isinstance(found, list) or not all(isinstance(token, bytes) for token in found):
            self._damaged("a vocabulary that is no list of strings")
        return found

    def truncated(self, what: str, least: int) -> NoReturn:
        raise TruncatedModel(
            f"{self.path} is damaged or incomplete: it has {self._size} bytes, at least {least} "
            f"are needed for {what}; fetch it again"
        )

    def _damaged(self, found: str) -> NoReturn:
        raise TruncatedModel(f"{self.path} is damaged: its header has {found}; fetch it again")

    def _tensors(self, n: int) -> Iterator[tuple[str, int, int, Layout]]:
        """Yield for each tensor its name, its offset in the weights, its size in bytes and its
        layout.
        """
        for _ in range(n):
            name = self._text().decode("utf-8", "replace")
            n_dims = self._number("I")
            if n_dims > 4:
                self._damaged(f"a tensor of {n_dims} dimensions ({name!r:.80}), at most 4 expected")
            shape = [self._number("Q") for _ in range(n_dims)]
            kind, offset = self._number("I"), self._number("Q")
            elements, n_bytes = BLOCKS.get(kind, (1, 0))  # newer types are left to the engine
            size = math.prod(shape) // elements * n_bytes
            yield name, offset, size, Layout(kind, tuple(shape))

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY and depth < _MAX_DEPTH:
            element = self._number("I")
            n = self._count("array elements", _MAX_ELEMENTS - self._n_elements)
            self._n_elements += n
            return self._array(element, n, depth + 1)
        if kind not in _SCALARS:
            self._damaged(f"a value of type {kind} at byte {self.at}, expected 0 to 12")
        return self._number(_SCALARS[kind])

    def _array(self, kind: int, n: int, depth: int) -> list[Any]:
        if kind == _STRING:
            self._need(8 * n)
            return self._texts(n)
        if kind in _SCALARS:
            values = struct.Struct(f"<{self._need(n)}{_SCALARS[kind]}")
            start = self.at
            self.at += self._need(values.size)
            return list(values.unpack_from(self._data, start))
        self._need(8 * n)
        return [self._value(kind, depth) for _ in range(n)]

    def _texts(self, n: int) -> list[bytes]:
        data, at, size, length = self._data, self.at, self._size, _LENGTH.unpack_from
        texts = []
        for _ in range(n):
            start = at + 8
            at = start + length(data, at)[0]
            if at > size:
                self.truncated("its header", at)
            texts.append(data[start:at])
        self.at = at
        return texts

    def _text(self) -> bytes:
        return self._texts(1)[0]

    def _number(self, code: str) -> Any:
        number = struct.unpack_from("<" + code, self._data, self.at)[0]
        self.at += struct.calcsize("<" + code)
        return number

    def _count(self, what: str, most: int) -> int:
        n: int = self._number("Q")
        if n > most:
            self._damaged(f"{n} {what}, at most {most} expected")
        return n

    def _need(self, n_bytes: int) -> int:
        """Return `n_bytes` if the file has that many bytes left to read; else raise
        TruncatedModel.
        """
        if n_bytes > self._size - self.at:
            self.truncated("its header", self.at + n_bytes)
        return n_bytes
