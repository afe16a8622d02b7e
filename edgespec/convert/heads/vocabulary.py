"""The part of the target's vocabulary that a head can guess."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...errors import ModelError
from ...types import Ids
from .checkpoint import HeadCheckpoint, take
from .tensors import Tensors


def with_vocabulary(head: HeadCheckpoint, tensors: Tensors) -> HeadCheckpoint:
    """Return a head with the target's ids of its tokens, if it can guess only a part of them.

    Raises ModelError.
    """
    d2t = take(head.path, tensors, "d2t", None, optional=True)
    if d2t is None:
        return head
    t2d = take(head.path, tensors, "t2d", head.vocab_size, optional=True)
    mask = t2d.array() if t2d else None
    return replace(head, d2t=absolute_ids(head.path, d2t.array(), mask, head.vocab_size))


def absolute_ids(path: Path, d2t: Ids, t2d: npt.NDArray[np.int64] | None, vocab_size: int) -> Ids:
    """Return the target's ids of a head's tokens, int64 [V'], in any order.

    d2t: the ids, or the distances that are added to 0, 1, 2, … to get the ids; most projects write
    distances. t2d: 1 for each of the target's ids that the head has and 0 for the others, or None
    if the file has no t2d. Raises ModelError if neither reading of d2t gives distinct ids within
    the vocabulary.
    """
    readings = [d2t + np.arange(len(d2t)), d2t]
    valid = [ids for ids in readings if _is_valid(ids, vocab_size)]
    if t2d is not None:
        kept = np.flatnonzero(t2d)
        valid = [ids for ids in valid if np.array_equal(np.sort(ids), kept)] or valid
    if not valid:
        raise ModelError(
            f"{path}: d2t of {len(d2t)} tokens gives no different ids below {vocab_size}, as ids "
            "or as distances; fetch the checkpoint again"
        )
    # Distances repeat wherever two neighbours of the vocabulary are kept, ids never do. Both
    # readings are possible only if none repeats.
    return valid[-1].astype(np.int64)


def _is_valid(ids: Ids, vocab_size: int) -> bool:
    in_range = not len(ids) or (int(ids.min()) >= 0 and int(ids.max()) < vocab_size)
    return in_range and len(np.unique(ids)) == len(ids)
