"""Vocabularies: a hash by which two sides compare theirs, and one as bytes for simple devices."""

from __future__ import annotations

import hashlib
import struct

from ..backends.base import Tokenizer
from .fields import varint

_VERSION = 1  # of this format


def vocabulary_hash(tokenizer: Tokenizer, n: int) -> bytes:
    """Return the first 16 bytes of the SHA-256 of the first `n` entries.

    An entry is hashed as its length as a u32, then its bytes.
    """
    digest = hashlib.sha256()
    for token in range(n):
        text = tokenizer.token_text(token)
        digest.update(struct.pack("<I", len(text)) + text)
    return digest.digest()[:16]


def vocabulary(tokenizer: Tokenizer, digest: bytes) -> bytes:
    """Write what a device without a tokenizer needs: which tokens end an answer and what each
    adds to a text. digest: the `vocabulary_hash` of all entries.
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
