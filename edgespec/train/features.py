"""The target's hidden states for the recorded conversations, as bfloat16 on disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import kept_files
from ..backends.base import Model
from ..backends.heads import FINAL
from .gently import Pauses
from .recordings import Recording

EXACT = "exact.bin"
N_STATES = 4  # of each token: three layers and the final state


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
    """Write the states of all conversations to features.bin, and their ids to features.json.

    exact: the numbers of those whose states are also written as they are, float32, to exact.bin: a
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
            folder / "features.bin", target, recordings, counts, size,
            lambda each: bfloat16(states(each)).tobytes(), "hidden states", pauses,
        )  # fmt: skip
        (folder / EXACT).unlink(missing_ok=True)  # others may have been chosen before
        append(
            folder / EXACT, target, chosen, [counts[i] for i in exact], 2 * size,
            lambda each: states(each).tobytes(), "exact hidden states", pauses,
        )  # fmt: skip
    finally:
        target.tap(())
    write_conversations(folder / "features.json", recordings, counts)


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


def write_conversations(
    path: Path, recordings: Sequence[Recording], counts: Sequence[int]
) -> None:  # fmt: skip
    """Write the ids of conversations for the worker, and where each begins in what `append` has
    written.
    """
    conversations = [
        {"begin": begin, "ids": each.ids, "n_prompt": each.n_prompt}
        for begin, each in zip(np.cumsum([0, *counts]).tolist(), recordings, strict=False)
    ]
    kept_files.replace(path, [json.dumps({"conversations": conversations}).encode()])


def bfloat16(states: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return numbers as bfloat16, rounded to the nearest, and to even in the middle."""
    bits = states.view(np.uint32)
    rounded: npt.NDArray[np.uint32] = bits + 0x7FFF + (bits >> 16 & 1)
    return (rounded >> 16).astype(np.uint16)
