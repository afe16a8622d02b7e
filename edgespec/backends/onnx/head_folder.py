"""The folder of a head: its graphs, head.json and d2t.npy."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from ...errors import ConfigError, ModelError, ModelNotFound
from ...kept_files import one_line
from ...schema import convert
from ...types import Ids
from ..base import FINAL, FileModel
from ..files import HEAD as NOTE
from ..files import read_bytes
from .companions import read

IDS = "d2t.npy"
_KNOWN_FORMAT = 1
_LONGEST_HEADER = 4096  # bytes, of an array


_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=4096)]
_Layer = Annotated[int, msgspec.Meta(ge=FINAL, le=4096)]
_Text = Annotated[str, msgspec.Meta(max_length=1000)]


class Note(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The contents of head.json; hidden_size, n_layer, vocab_size and cached_size are the target's,
    the last of one whose cache is read, and `target` is its name. precision: of the matrices.
    """

    format: int
    kind: Literal["eagle3", "eagle", "medusa", "mlp_speculator", "dflash", "mtp", "moa"]
    layers: Annotated[list[_Layer], msgspec.Meta(max_length=512)]
    hidden_size: _Size
    n_layer: _Count
    vocab_size: _Size
    cached_size: _Size = 0
    max_depth: _Count = 0
    n_ctx_train: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 0
    source: _Text = ""
    license: _Text = "unknown"
    precision: _Text = ""
    target: _Text = ""


def folder_of(path: Path) -> Path:
    """Return the folder that a path names: itself, or that of a graph in it."""
    return path if path.is_dir() else path.parent


def is_head(path: Path) -> bool:
    """Return True if a folder, or a graph in it, is a head and no model of its own. Raises
    ModelError for a head.json that cannot be read.
    """
    return "kind" in read(folder_of(path), NOTE)


def has_own_head(path: Path) -> bool:
    """Return False: graphs of models have no heads of their own."""
    return False


def read_note(folder: Path) -> Note:
    """Return what head.json says. Raises ModelNotFound, ModelError."""
    if not (folder / NOTE).is_file():
        raise ModelNotFound(
            f"{folder} has no {NOTE}; convert the head with edgespec convert --head"
        )
    found = read(folder, NOTE)
    if (version := found.get("format")) != _KNOWN_FORMAT:
        raise ModelError(
            f"{folder / NOTE} is of format {version!r:.40}, expected {_KNOWN_FORMAT}; update "
            "edgespec, or convert the head again"
        )
    return convert(found, Note, str(folder / NOTE), ModelError)


def read_ids(folder: Path, vocab_size: int) -> Ids | None:
    """Return the target's ids of a head's tokens, None for a head of the whole vocabulary. Raises
    ModelError for a file that is damaged.
    """
    path = folder / IDS
    if not path.is_file():
        return None
    content = read_bytes(path, _LONGEST_HEADER + 8 * vocab_size)
    try:
        found: Any = np.load(io.BytesIO(content), allow_pickle=False)
    except Exception as error:  # a damaged file raises anything
        reason = one_line(error)
        raise ModelError(f"{path} is damaged: {reason}; convert the head again") from None
    if not isinstance(found, np.ndarray) or found.ndim != 1 or found.dtype != np.int64:
        raise ModelError(f"{path} holds no list of int64; convert the head again")
    if len(found) and not 0 <= int(found.min()) <= int(found.max()) < vocab_size:
        raise ModelError(f"{path} has ids outside {vocab_size} tokens; convert the head again")
    return np.ascontiguousarray(found)


def check_target(folder: Path, note: Note, target: FileModel) -> None:
    """Raise ConfigError if a head was made for a target of other sizes, or reads a cache that this
    one does not lend.
    """
    for field, thing in (
        ("hidden_size", "numbers a state"),
        ("vocab_size", "tokens of vocabulary"),
        ("n_layer", "layers"),
    ):
        wanted, found = getattr(note, field), getattr(target, field)
        if wanted != found:
            raise ConfigError(
                f"{folder} was made for another target: for one with {wanted} {thing}, and this "
                f"one has {found}; convert the head for this target"
            )
    found = target.cached_size
    if note.cached_size and not found:
        raise ConfigError(
            f"{folder} reads the keys and values of its target, and only ONNX models lend theirs; "
            "convert the target with edgespec convert"
        )
    if note.cached_size not in (0, found):
        raise ConfigError(
            f"{folder} was made for another target: for one with {note.cached_size} numbers of "
            f"keys and values a layer, and this one has {found}; convert the head for this target"
        )
