"""The target's likeliest tokens at each place of the recorded answers, with their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..backends.base import Model
from .features import append, write_conversations
from .gently import Pauses
from .recordings import Recording

N_LIKELIEST = 64
"""Tokens whose probabilities are kept; the others together are one more token for the student. A
whole row has 2,000 times as many bytes, and the final state from which it could be computed anew
seven times as many (1,536 numbers)."""

ROW = np.dtype([("ids", "<i4", N_LIKELIEST), ("logs", "<f2", N_LIKELIEST)])
"""The tokens and the natural logarithms of their probabilities, for one token of an answer."""

_PIECE = 32  # rows of logits that are in memory at a time


def extract_likeliest(
    target: Model, recordings: Sequence[Recording], folder: Path, pauses: Pauses
) -> None:
    """Write a ROW for each token of each answer to likeliest.bin, and the conversations' ids to
    likeliest.json.
    """
    piece = min(_PIECE, target.capabilities.max_rows)

    def rows(recording: Recording) -> bytes:
        read, end = recording.ids[: recording.n_prompt - 1], len(recording.ids) - 1
        if read:
            target.decode(read, 0)
        made = []
        for begin in range(len(read), end, piece):
            ids = recording.ids[begin : min(begin + piece, end)]
            made.append(likeliest_of(target.decode(ids, len(ids)).logits))
        return np.concatenate(made).tobytes()

    counts = [each.n_answer for each in recordings]
    append(
        folder / "likeliest.bin", target, recordings, counts, ROW.itemsize, rows,
        "the target's probabilities", pauses,
    )  # fmt: skip
    write_conversations(folder / "likeliest.json", recordings, counts)


def likeliest_of(logits: np.ndarray) -> np.ndarray:
    """Return a ROW for each row of logits. Vocabularies may be smaller than a ROW; its places that
    are left have the token 0 and the probability 0.
    """
    n = min(N_LIKELIEST, logits.shape[1])
    ids = np.argpartition(-logits, n - 1, axis=1)[:, :n]
    values = np.take_along_axis(logits, ids, 1).astype(np.float64)
    order = np.argsort(-values, axis=1, kind="stable")
    ids, values = np.take_along_axis(ids, order, 1), np.take_along_axis(values, order, 1)
    top = values[:, :1]
    total = top + np.log(np.exp(logits.astype(np.float64) - top).sum(1, keepdims=True))
    rows = np.zeros(len(logits), ROW)
    rows["logs"] = -np.inf
    rows["ids"][:, :n], rows["logs"][:, :n] = ids, values - total
    return rows
