"""Facts about trained heads and their targets from the files beside graphs; no graph is loaded."""

from __future__ import annotations

from pathlib import Path

from ..base import HeadFacts, TargetSizes
from ..files import size_of
from .companions import settings
from .head_folder import folder_of, read_ids, read_note

_LOOKED_UP = ("eagle3", "eagle", "dflash", "mtp")  # kinds with an embedding for the vocabulary
_FLOAT16 = 2  # bytes: embeddings are kept so


def head_facts(path: Path) -> HeadFacts:
    """Return what head.json says. Raises ModelNotFound, ModelError."""
    folder = folder_of(path)
    note = read_note(folder)
    ids = read_ids(folder, note.vocab_size)
    size = size_of(folder / "head.onnx")
    embedding = note.vocab_size * note.hidden_size * _FLOAT16 if note.kind in _LOOKED_UP else 0
    return HeadFacts(
        kind=note.kind,
        layers=tuple(note.layers),
        sizes=TargetSizes(note.hidden_size, note.vocab_size, note.n_layer),
        n_drafted=note.vocab_size if ids is None else len(ids),
        size=size,
        read_size=max(0, size - embedding),
        max_depth=note.max_depth,
        n_ctx_train=note.n_ctx_train,
        precision=note.precision or "unknown",
        license=note.license,
        source=note.source,
        target=note.target,
    )


def target_sizes(path: Path) -> TargetSizes:
    """Return the sizes that config.json beside a graph says. Raises ModelError."""
    known = settings(path.parent)
    found = [known.get(key) for key in ("hidden_size", "vocab_size", "num_hidden_layers")]
    return TargetSizes(*(each if isinstance(each, int) and each > 0 else 0 for each in found))
