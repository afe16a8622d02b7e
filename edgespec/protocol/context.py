"""The tokens of a session, with checksums that show whether both sides have the same tokens."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable


class Context:
    """Token ids, and the CRC-32 of the first n ids for every length n. Each id counts as a u32."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._checksums = [0]
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        checksum = self._checksums[-1]
        for token in tokens:
            checksum = zlib.crc32(struct.pack("<I", token), checksum)
            self.tokens.append(token)
            self._checksums.append(checksum)

    def truncate(self, length: int) -> None:
        """Keep the first `length` tokens."""
        del self.tokens[length:], self._checksums[length + 1 :]

    def checksum(self, length: int) -> int:
        """Return the checksum of the first `length` tokens."""
        return self._checksums[length]

    def has(self, length: int, checksum: int) -> bool:
        """Return True if there are at least `length` tokens and the first `length` match."""
        return length <= len(self.tokens) and self._checksums[length] == checksum
