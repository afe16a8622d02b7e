"""Rows of graphs whose output layer has only some of the target's tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...errors import ModelError
from ...types import Ids
from ..files import DRAFTED_IDS
from .head_folder import read_ids


class OwnVocabulary:
    """Turns rows over a graph's own tokens into rows over the target's whole vocabulary, with -inf
    for all other tokens. It uses one buffer for all calls, which grows when necessary.

    folder: the folder of the graph, in which d2t.npy has the target's id of each token; without
    that file both vocabularies are the same. Raises ModelError if `width`, the number of the
    graph's tokens, does not fit.
    """

    def __init__(self, folder: Path, width: int, vocab_size: int) -> None:
        self._ids: Ids | None = read_ids(folder, vocab_size)
        n = vocab_size if self._ids is None else len(self._ids)
        if n != width:
            raise ModelError(
                f"{folder}: the graph gives rows of {width} tokens, and its configuration and "
                f"{DRAFTED_IDS} say {n}; make the folder again"
            )
        self._vocab_size = vocab_size
        self._whole = np.empty((0, vocab_size), np.float32)

    def spread(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return these rows over the target's token ids."""
        if self._ids is None:
            return rows
        if len(rows) > len(self._whole):
            self._whole = np.full((len(rows), self._vocab_size), -np.inf, np.float32)
        for i, row in enumerate(rows):
            self._whole[i][self._ids] = row
        return self._whole[: len(rows)]
