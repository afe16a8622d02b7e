"""A hash for comparing vocabularies, and a vocabulary as bytes for devices without one."""

from __future__ import annotations

import hashlib
import struct

from ..backends.base import Tokenizer
from .fields import varint

_VERSION = 1  # of this format


def vocabulary_hash(tokenizer: Tokenizer, n: int) -> bytes:
    """Return the first 16 bytes of the SHA-256 of the vocabulary's first `n` entries.

    Each entry is hashed as a u32 with its length, followed by its bytes.
    """
    digest = hashlib.sha256()
    for token in range(n):
        text = tokenizer.token_text(token)
        digest.update(struct.pack("<I", len(text)) + text)
    return digest.digest()[:16]


def vocabulary(tokenizer: Tokenizer, digest: bytes) -> bytes:
    """Return, for a device without a tokenizer, the tokens that end an answer and the bytes that
    each token adds to a text. digest: the `vocabulary_hash` of all entries.
    """
    every = range(tokenizer.vocab_size)
    ends = [token for token in every if tokenizer.is_eog(token)]
    written = bytearray([_VERSION])
    written += varint(tokenizer.vocab_size) + digest + varint(len(ends))
    for token in ends:
        written += varint(token)
    for token in every:
        piece = tokenizer.piece(token)
        written += varint(len(piece)) + piece
    return bytes(written)
