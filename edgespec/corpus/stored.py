"""Listing and deleting the texts that are kept on this disk to draft from."""

from __future__ import annotations

import contextlib
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

from .. import kept_files
from ..kept_files import NEW
from .answers import JOURNAL
from .collection import ADDED, collections, delete
from .folder import folder


@dataclass(frozen=True, slots=True)
class Stored:
    """Documents or answers on disk, tokenised with one vocabulary, or tokens learned for a model.

    kind: "added", "named" (for single runs), "answers" or "tokens". vocabulary: the name of the
    file for "tokens", otherwise of the vocabulary's folder. model: the name of the model whose
    tokenizer was used, "" if it is not known. roots: the files and folders that were named. size:
    bytes on disk.
    """

    kind: str
    vocabulary: str
    model: str
    roots: tuple[str, ...]
    n_documents: int
    n_tokens: int
    size: int


def stored() -> list[Stored]:
    """Return the documents and answers that are kept on this disk."""
    entries = []
    for where in _vocabularies():
        models = set()
        for made in collections(where):
            models.add(made.model)
            size = 8 * made.n_tokens + (where / f"{made.name}.json").stat().st_size
            n_documents = sum(document.n_tokens > 0 for document in made.documents)
            kind = made.name if made.name == ADDED else "named"
            entry = (kind, where.name, made.model, made.roots, n_documents, made.n_tokens, size)
            entries.append(Stored(*entry))
        journal = where / JOURNAL
        if journal.exists():
            size = journal.stat().st_size
            model = ", ".join(sorted(models - {""}))
            entries.append(Stored("answers", where.name, model, (), 0, size // 4 - 2, size))
    return entries


def clear() -> int:
    """Delete all documents and answers that are kept; return the number of bytes freed."""
    freed = 0
    for where in _vocabularies():
        ours = (where.glob(form) for form in ("*.json", "*.i32", f"{NEW}*", "*.damaged"))
        freed += delete(*itertools.chain(*ours))
        with contextlib.suppress(OSError):
            where.rmdir()
    return freed


def _vocabularies() -> list[Path]:
    """Return the folders of vocabularies; other files and folders next to them are not touched."""
    there = kept_files.matching(folder(), "*")
    return [path for path in there if re.fullmatch(r"[0-9a-f]{16}", path.name)]
