"""The target's hidden states and likeliest tokens in the recorded conversations, on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..backends.base import Model
from ..backends.heads import FINAL
from .formats import EXACT, FEATURES, LIKELIEST, N_LIKELIEST, N_STATES, ROW
from .gently import Pauses
from .recordings import Recording

_PIECE = 32  # rows of logits that are in memory at a time


def bytes_a_token(hidden_size: int) -> int:
    """Return the size of one token's states on disk."""
    return 2 * N_STATES * hidden_size


def extract(
    target: Model,
    layers: Sequence[int],
    recordings: Sequence[Recording],
    folder: Path,
    pauses: Pauses,
    exact: Sequence[int] = (),
) -> None:
    """Write the states of all conversations to the file FEATURES in a folder.

    exact: the numbers of those whose states are also written as they are, float32, to EXACT: a
    draft is served with such states, and rounding changes a guess of a few hundred.
    """

    def states(recording: Recording) -> npt.NDArray[np.float32]:
        hidden = target.decode(recording.ids, n_logits=1).hidden
        assert hidden is not None
        return hidden

    counts = [len(each.ids) for each in recordings]
    size, chosen = bytes_a_token(target.hidden_size), [recordings[i] for i in exact]
    target.tap((*layers, FINAL))
    try:
        append(
            folder / FEATURES, target, recordings, counts, size,
            lambda each: bfloat16(states(each)).tobytes(), "hidden states", pauses,
        )  # fmt: skip
        (folder / EXACT).unlink(missing_ok=True)  # others may have been chosen before
        append(
            folder / EXACT, target, chosen, [counts[i] for i in exact], 2 * size,
            lambda each: states(each).tobytes(), "exact hidden states", pauses,
        )  # fmt: skip
    finally:
        target.tap(())


def extract_likeliest(
    target: Model, recordings: Sequence[Recording], folder: Path, pauses: Pauses
) -> None:
    """Write a ROW for each token of each answer to the file LIKELIEST in a folder."""

    def rows(recording: Recording) -> bytes:
        n_read = recording.n_prompt - 1
        if n_read:
            target.decode(recording.ids[:n_read], 0)
        return likeliest_after(target, recording.ids[n_read:-1]).tobytes()

    counts = [each.n_answer for each in recordings]
    append(
        folder / LIKELIEST, target, recordings, counts, ROW.itemsize, rows,
        "the target's probabilities", pauses,
    )  # fmt: skip


def likeliest_after(target: Model, ids: Sequence[int]) -> npt.NDArray[np.void]:
    """Evaluate tokens, and return a ROW for what follows each of them, [n]."""
    piece = min(_PIECE, target.capabilities.max_rows)
    made = []
    for begin in range(0, len(ids), piece):
        own = ids[begin : begin + piece]
        made.append(likeliest_of(target.decode(own, len(own)).logits))
    return np.concatenate(made)


def append(
    path: Path,
    target: Model,
    recordings: Sequence[Recording],
    counts: Sequence[int],
    size: int,
    of: Callable[[Recording], bytes],
    stage: str,
    pauses: Pauses,
) -> None:
    """Write what the target says of each recorded conversation, one after the other, to a file.

    counts: the tokens of each conversation that something is written of; size: the bytes of each.
    of: evaluates a conversation and returns its bytes. Each conversation is evaluated by itself
    from an empty cache, so the result does not depend on where an earlier run was killed; this run
    goes on after the last conversation that is complete. stage: the name in messages.
    """
    begins = np.cumsum([0, *counts]).tolist()
    n_there = path.stat().st_size // size if path.exists() else 0
    first = max(i for i, begin in enumerate(begins) if begin <= n_there)
    tell = pauses.pace(stage, begins[first], begins[-1])
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.truncate(begins[first] * size)
        file.seek(begins[first] * size)
        for i, recording in enumerate(recordings[first:], first):
            pauses.wait()
            target.truncate(0)
            file.write(of(recording))
            tell(begins[i + 1])
        file.flush()
        os.fsync(file.fileno())


def bfloat16(states: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return numbers as bfloat16, rounded to the nearest, and to even in the middle."""
    bits = states.view(np.uint32)
    rounded: npt.NDArray[np.uint32] = bits + 0x7FFF + (bits >> 16 & 1)
    return (rounded >> 16).astype(np.uint16)


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
