"""The folder of a head: its graphs, head.json and d2t.npy."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from ... import kept_files
from ...errors import ModelError, ModelNotFound
from ...kept_files import one_line
from ...schema import convert
from ...types import Ids
from ..files import DRAFTED_IDS as IDS
from ..files import HEAD as NOTE
from ..files import read_bytes, size_of
from ..heads import FINAL, KINDS, HeadFacts, Kind, TargetSizes
from .companions import read, settings

_KNOWN_FORMAT = 1
_LONGEST_HEADER = 4096  # bytes of the header of an .npy file
_FLOAT16 = 2  # bytes; embeddings are stored in this format


_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=4096)]
_Layer = Annotated[int, msgspec.Meta(ge=FINAL, le=4096)]
_Text = Annotated[str, msgspec.Meta(max_length=1000)]


class _Note(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The contents of head.json.

    hidden_size, n_layer, vocab_size: sizes of the target. cached_size: that of the target, if its
    cache is read. inner_size: the width of an MLP speculator's own embeddings. target: the name of
    the target. precision: the number format of the matrices.
    """

    format: int
    kind: Kind
    layers: Annotated[list[_Layer], msgspec.Meta(max_length=512)]
    hidden_size: _Size
    n_layer: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    vocab_size: _Size
    cached_size: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)] = 0
    inner_size: Annotated[int, msgspec.Meta(ge=0, le=1 << 24)] = 0
    max_depth: _Count = 0
    n_ctx_train: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 0
    source: _Text = ""
    license: _Text = "unknown"
    precision: _Text = ""
    target: _Text = ""


def folder_of(path: Path) -> Path:
    """Return the folder of a head, given that folder or a graph in it."""
    return path if path.is_dir() else path.parent


def is_head(path: Path) -> bool:
    """Return True if a folder, or the folder of a graph, has a head and not a complete model.
    Raises ModelError for a head.json that cannot be read.
    """
    return "kind" in read(folder_of(path), NOTE)


def head_facts(path: Path) -> HeadFacts:
    """Return the description of a head, read from its folder. Raises ModelNotFound, ModelError."""
    folder = folder_of(path)
    note = _read_note(folder)
    ids = read_ids(folder, note.vocab_size)
    size = size_of(folder / "head.onnx")
    n_graphs = len(kept_files.matching(folder, "head.*.onnx")) or 1  # a guess runs one of them
    width = note.inner_size or (note.hidden_size if KINDS[note.kind].looks_up else 0)
    return HeadFacts(
        kind=note.kind,
        layers=tuple(note.layers),
        sizes=TargetSizes(note.hidden_size, note.vocab_size, note.n_layer, note.cached_size),
        n_drafted=note.vocab_size if ids is None else len(ids),
        size=size,
        read_size=max(0, size // n_graphs - note.vocab_size * width * _FLOAT16),
        max_depth=note.max_depth,
        n_ctx_train=note.n_ctx_train,
        precision=note.precision or "unknown",
        license=note.license,
        source=note.source,
        target=note.target,
    )


def target_sizes(path: Path) -> TargetSizes:
    """Return the sizes of a model, read from the config.json next to its graph. Raises
    ModelError.
    """
    known = settings(path.parent)
    numbers = [known.get(key) for key in ("hidden_size", "vocab_size", "num_hidden_layers")]
    return TargetSizes(*(each if isinstance(each, int) and each > 0 else 0 for each in numbers))


def _read_note(folder: Path) -> _Note:
    if not (folder / NOTE).is_file():
        raise ModelNotFound(
            f"{folder} has no {NOTE}; convert the head with edgespec convert --head"
        )
    note = read(folder, NOTE)
    if (version := note.get("format")) != _KNOWN_FORMAT:
        raise ModelError(
            f"{folder / NOTE} is of format {version!r:.40}, expected {_KNOWN_FORMAT}; update "
            "edgespec, or convert the head again"
        )
    return convert(note, _Note, str(folder / NOTE), ModelError)


def read_ids(folder: Path, vocab_size: int) -> Ids | None:
    """Return the target's token ids of the tokens that a graph can guess, None if it can guess the
    whole vocabulary. Raises ModelError if the file is damaged.
    """
    path = folder / IDS
    if not path.is_file():
        return None
    content = read_bytes(path, _LONGEST_HEADER + 8 * vocab_size)
    try:
        ids: Any = np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # a damaged file raises anything
        reason = one_line(error)
        raise ModelError(f"{path} is damaged: {reason}; make the folder again") from None
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype != np.int64:
        raise ModelError(f"{path} holds no list of int64; make the folder again")
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise ModelError(f"{path} has ids outside {vocab_size} tokens; make the folder again")
    return np.ascontiguousarray(ids)
