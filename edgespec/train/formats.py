"""A training's files and numbers that edgespec and the programs in the tools' environment share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ANSWERS = "answers.jsonl"  # a Recording on each line
FEATURES, EXACT = "features.bin", "exact.bin"
LIKELIEST = "likeliest.bin"
STATES = "states.bin"  # what the first trained layer of a student reads
JOB, STATE, RESULT, WEIGHTS = "job.json", "state.pt", "result.json", "model.safetensors"
PAUSE = "pause"  # the training waits while it is there
NAMES = (ANSWERS, FEATURES, EXACT, LIKELIEST, STATES, JOB, STATE, RESULT, WEIGHTS, PAUSE)

TOLD_EVERY_S = 5.0  # seconds between two reports of progress

N_STATES = 4
"""The hidden states of a token: three layers and the final state."""

N_LIKELIEST = 64
"""Tokens whose probabilities are kept; the others together are one more token for the student. A
whole row has 2,000 times as many bytes, and the final state from which it could be computed anew
seven times as many (1,536 numbers)."""

ROW = np.dtype([("ids", "<i4", N_LIKELIEST), ("logs", "<f2", N_LIKELIEST)])
"""The tokens and the natural logarithms of their probabilities, for one token of an answer."""


def acceptance(counts: Sequence[Sequence[int]]) -> tuple[float, tuple[float, ...]]:
    """Return the mean acceptance length of some answers, and the share of drafts whose token was
    accepted, for each place of a draft.

    counts: for each answer the number of drafts, and how often the token at each place was
    accepted.
    """
    steps, *accepted = np.array(counts).sum(0).tolist()
    shares = tuple(n / max(1, steps) for n in accepted)
    return 1 + sum(shares), shares


def conversations(folder: Path) -> list[dict[str, Any]]:
    """Return the recordings with an answer, in their order: each has the token `ids` of a prompt
    and its answer, and the length of the prompt, `n_prompt`.
    """
    lines = (folder / ANSWERS).read_text("utf-8").splitlines()
    return [each for each in map(json.loads, lines) if each["status"] == "done"]
