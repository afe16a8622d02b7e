"""Tries a head with its target: sizes, whether it runs, and with which layers it guesses better."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ... import backends
from ...backends.base import Head, Model
from ...backends.features import Features, States
from ...backends.files import has_folder
from ...backends.heads import TargetSizes
from ...backends.toy import ToyModel
from ...config import EngineConfig
from ...errors import ConfigError, ConversionError, EngineMissing, ModelError
from ...loading.models import open_model
from ..worker import PROMPT

N_TOKENS = 33  # one more than the rows of a call
_OF_CACHE = ("head_count_kv", "key_length", "value_length")


def target_sizes(path: Path) -> TargetSizes:
    """Return the sizes of a target. Raises ModelError and its subclasses.

    A GGUF counts layers for multi-token prediction among its blocks, so they are subtracted. A
    graph has no caches for recurrent layers, so the number of its layers is read from its config.
    """
    known = backends.of(path).inspect_metadata(path)
    hidden, blocks = known.get("embedding_length"), known.get("block_count")
    n_layer, cached = int(blocks or 0) - int(known.get("nextn_predict_layers", 0)), 0
    if not hidden and has_folder(path):
        hidden = str(_configured(path, "hidden_size") or "")
        n_layer = _configured(path, "num_hidden_layers") or n_layer
        heads, keys, values = (int(known[f"attention.{name}"]) for name in _OF_CACHE)
        cached = heads * (keys + values)
    if not hidden or not n_layer:
        raise ModelError(
            f"{path} does not say how wide its states are; a config.json with hidden_size beside "
            "the graph would"
        )
    return TargetSizes(int(hidden), int(known["vocab_size"]), n_layer, cached)


def check_runs(folder: Path, sizes: TargetSizes) -> None:
    """Raise ConversionError if the head in a folder does not run properly on a few tokens.

    Each logits row must have a finite number and no NaN.
    """
    engine = backends.get("onnx")
    config = EngineConfig(n_ctx=64, provider="cpu")
    target: Any = ToyModel(lambda _: (), vocab_size=sizes.vocab_size)
    vars(target).update(asdict(sizes))
    with contextlib.closing(engine.open_head(folder, config, target)) as head:
        rows = [head.decode([0, 1, 2], 1).logits[0].copy()]
        if head.max_depth != 1:
            rows.append(head.grow([0], [-1]).logits[0].copy())
        for row in rows:
            if np.isnan(row).any() or not np.isfinite(row).any():
                raise ConversionError(f"{folder.name} gives rows that are no numbers")


def better_reading(
    folder: Path, model: Path, candidates: Sequence[tuple[int, ...]]
) -> tuple[tuple[int, ...], str]:
    """Return the layers with which a head guesses more of its target's tokens, and a warning.

    The warning tells users how the layers were chosen. If the target cannot be run, these are the
    layers of the first candidate.
    """
    try:
        shares = _agreements(folder, model, candidates)
        agreement = " and ".join(f"{share:.0%}" for share in shares)
    except (EngineMissing, ModelError, ConfigError) as error:
        shares, agreement = [], f"an unknown share ({error})"
    chosen = candidates[max(range(len(shares)), key=shares.__getitem__, default=0)]
    readings = " or ".join(str(list(each)) for each in candidates)
    return chosen, (
        f"the checkpoint does not say if it counts layers by inputs or outputs: read as {readings} "
        f"it guesses {agreement} of the target's tokens; {list(chosen)} is taken, and layers=… "
        "takes another"
    )


def _agreements(folder: Path, model: Path, candidates: Sequence[tuple[int, ...]]) -> list[float]:
    """Return the share of a target's tokens that a head guesses, for each choice of layers.

    Raises ConfigError for a target that does not output states.
    """
    engine = backends.get("onnx")
    config = EngineConfig(n_ctx=512)
    with contextlib.closing(open_model(model, config)) as target:
        prompt = target.tokenizer.encode(PROMPT)
        with contextlib.closing(engine.open_head(folder, config, target)) as head:
            return agreements(head, target, candidates, prompt)


def agreements(
    head: Head, target: Model, candidates: Sequence[tuple[int, ...]], prompt: Sequence[int]
) -> list[float]:
    """Return the share of a target's tokens that a head guesses, for each choice of layers.

    The target generates N_TOKENS greedy tokens after the prompt. The head gets the first of them,
    and guesses the others from the states of the chosen layers.

    The head must have been opened for this target. Both start with an empty cache, and the target
    no longer outputs states afterwards. Raises ConfigError for a layer that the target cannot
    output.
    """
    layers = sorted({layer for each in candidates for layer in each})
    answer, states = _greedy(target, layers, prompt)
    shares = []
    for each in candidates:
        head.truncate(0)
        head.start, head.features = 0, Features()
        head.features.append(0, states[:, [layers.index(layer) for layer in each]])
        head.decode(prompt, 0)
        guesses = head.decode(answer[:-1], N_TOKENS - 1).logits.argmax(1)
        shares.append(float(np.mean(guesses == answer[1:])))
    return shares


def _greedy(
    target: Model, layers: Sequence[int], prompt: Sequence[int]
) -> tuple[list[int], States]:
    """Return N_TOKENS greedy tokens of a target, and the states of these layers.

    The states are those of the prompt and of all tokens but the last, [n, n_layers, hidden_size].
    """
    target.tap(layers)
    try:
        target.truncate(0)
        answer: list[int] = []
        states = []
        new = list(prompt)
        while len(answer) < N_TOKENS:
            outputs = target.decode(new)
            assert outputs.hidden is not None
            states.append(outputs.hidden.copy())
            new = [int(outputs.logits[0].argmax())]
            answer += new
        return answer, np.concatenate(states)
    finally:
        target.tap(())


def _configured(path: Path, field: str) -> int:
    """Return a size that a file next to a graph gives, or 0 if none does. Raises ModelError."""
    from ...backends.onnx.companions import number, read, section, settings  # needs its engine

    folder = path.parent
    decoder = section(read(folder, "genai_config.json"), "model", "decoder")
    return number(folder, settings(folder), field) or number(folder, decoder, field)
