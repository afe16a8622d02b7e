"""The private folder in which documents and answers are kept."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from pathlib import Path

from ..backends.base import Tokenizer
from ..device import data_folder

_PROBE = 'for i in range(10):  # "Größe", 1.5 km, naïve Café – don\'t\n\treturn {x: 2024}\n\n'
_ENTRIES = (*range(256), *range(256, 64_000, 37))  # the ids whose texts identify a vocabulary


def folder() -> Path:
    """Return the folder of the corpus: $EDGESPEC_CORPUS, or else "corpus" in the user's data."""
    return data_folder("corpus")


def vocabulary_folder(tokenizer: Tokenizer) -> Path:
    """Return the corpus folder of a vocabulary; all quantisations of a model share it."""
    digest = hashlib.sha256()
    for token in itertools.takewhile(tokenizer.vocab_size.__gt__, _ENTRIES):
        text = tokenizer.token_text(token)
        digest.update(len(text).to_bytes(4, "little") + text)
    with contextlib.suppress(ValueError):  # a vocabulary that does not have these letters
        ids = tokenizer.encode(_PROBE, add_special=False, parse_special=False)
        digest.update(repr(ids).encode())
    return folder() / digest.hexdigest()[:16]
