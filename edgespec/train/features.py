"""The target's hidden states for the recorded conversations, as bfloat16 on disk."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import kept_files
from ..backends.base import Model
from ..backends.heads import FINAL
from .gently import Pauses
from .recordings import Recording

N_STATES = 4  # of each token: three layers and the final state
_TOLD_EVERY_S = 5.0


def bytes_a_token(hidden_size: int) -> int:
    """Return the size of one token's states on disk."""
    return 2 * N_STATES * hidden_size


def extract(
    target: Model,
    layers: Sequence[int],
    recordings: Sequence[Recording],
    folder: Path,
    pauses: Pauses,
) -> None:
    """Write the states of all conversations to features.bin, and their ids to features.json."""

    def states(recording: Recording) -> bytes:
        hidden = target.decode(recording.ids, n_logits=1).hidden
        assert hidden is not None
        return bfloat16(hidden).tobytes()

    counts = [len(each.ids) for each in recordings]
    size = bytes_a_token(target.hidden_size)
    target.tap((*layers, FINAL))
    try:
        append(
            folder / "features.bin", target, recordings, counts, size, states, "hidden states",
            pauses,
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
    began, paused_s = time.monotonic(), pauses.seconds
    told = began
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.truncate(begins[first] * size)
        file.seek(begins[first] * size)
        for i, recording in enumerate(recordings[first:], first):
            pauses.wait()
            target.truncate(0)
            file.write(of(recording))
            if (now := time.monotonic()) - told > _TOLD_EVERY_S:
                told, n = now, begins[i + 1] - begins[first]
                worked_s = now - began - (pauses.seconds - paused_s)
                left_s = (begins[-1] - begins[i + 1]) * worked_s / n
                pauses.progress(
                    f"{stage}: {begins[i + 1]} of {begins[-1]} tokens, "
                    f"{n / worked_s:.0f} tokens/s, {left_s / 60:.0f} min left"
                )
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
