"""Compares the greedy tokens and the logits of a converted graph with those of its source."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import backends
from ..backends.base import Model
from ..config import EngineConfig
from ..drafters.vocabulary import check_vocabulary
from ..errors import EngineMissing
from ..loading.models import open_model

_ROWS = 24


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference between a graph and its source. `Conversion` describes the fields."""

    agreement: float
    greedy_equal: int
    n_greedy: int
    divergence: float
    max_difference: float


def compare(folder: Path, source: Path) -> Comparison:
    """Run the graph in a folder on the text that the source wrote, and return how the results
    differ.

    The text and the source's logits are in the folder's reference.npz. Raises VocabularyMismatch if
    token ids mean something else than in the source.
    """
    known = np.load(folder / "reference.npz")
    prompt, greedy, logits = known["prompt"].tolist(), known["greedy"].tolist(), known["logits"]
    if source.is_file():
        _check_vocabulary(folder, source)
    config = EngineConfig(n_ctx=512, provider="cpu")
    with contextlib.closing(open_model(folder / "model.onnx", config)) as model:
        rows = _rows_along(model, prompt, greedy)
        own = _greedy(model, prompt, len(greedy))
    width = min(rows.shape[1], logits.shape[1])
    ours, expected = _log_softmax(rows[:, :width]), _log_softmax(logits[:, :width])
    differing = [i for i, pair in enumerate(zip(own, greedy, strict=True)) if pair[0] != pair[1]]
    return Comparison(
        agreement=round(float(np.mean(ours.argmax(1) == greedy)), 4),
        greedy_equal=differing[0] if differing else len(greedy),
        n_greedy=len(greedy),
        divergence=float((np.exp(expected) * (expected - ours)).sum(1).mean()),
        max_difference=float(abs(rows[:, :width] - logits[:, :width]).max()),
    )


def _rows_along(model: Model, prompt: list[int], greedy: list[int]) -> npt.NDArray[np.float32]:
    """Return the graph's logits for each token of `greedy`, [len(greedy), vocab_size]."""
    model.decode(prompt[:-1], n_logits=0)
    text = [prompt[-1], *greedy[:-1]]
    chunks = (text[i : i + _ROWS] for i in range(0, len(text), _ROWS))
    return np.concatenate(
        [model.decode(chunk, n_logits=len(chunk)).logits.copy() for chunk in chunks]
    )


def _greedy(model: Model, prompt: list[int], n: int) -> list[int]:
    """Return the n greedy tokens that the graph generates after the prompt on its own."""
    model.truncate(0)
    tokens: list[int] = []
    token = int(model.decode(prompt).logits[0].argmax())
    while len(tokens) < n:
        tokens.append(token)
        token = int(model.decode([token]).logits[0].argmax())
    return tokens


def _check_vocabulary(folder: Path, source: Path) -> None:
    """Raise VocabularyMismatch if the graph's token ids mean something else than the GGUF's.

    The ids must mean the same because the two models may be used as target and draft model.
    """
    graph = folder / "model.onnx"
    with contextlib.ExitStack() as stack:
        try:
            ours = stack.enter_context(backends.of(source).vocabulary(source))
        except EngineMissing:
            return
        check_vocabulary(ours, stack.enter_context(backends.of(graph).vocabulary(graph)))


def _log_softmax(rows: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    rows = rows.astype(np.float64)
    rows -= rows.max(1, keepdims=True)
    result: npt.NDArray[np.float64] = rows - np.log(np.exp(rows).sum(1, keepdims=True))
    return result
