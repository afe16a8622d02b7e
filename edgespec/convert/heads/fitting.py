"""A head beside its target: sizes, whether it runs, from which layers it guesses better."""

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

N_TOKENS = 33  # one more than the rows of a call
_OF_CACHE = ("head_count_kv", "key_length", "value_length")
_PROMPT = "Explain in a few sentences how a bicycle stays upright while it is moving."


def target_sizes(path: Path) -> TargetSizes:
    """Return the sizes of a target. Raises ModelError and its kinds.

    A GGUF counts layers for multi-token prediction among its blocks, and a graph has caches of some
    layers only where others are recurrent.
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
    """Raise ConversionError if the head in a folder does not give finite rows for a few tokens."""
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
    """Return the layers whose states let a head guess more of its target's tokens, and what is to
    be said of it. Where the target cannot be asked it is the first candidate.
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
    """Return the share of a target's tokens that a head guesses, by the layers that it reads.
    Raises ConfigError for a target that gives no states.
    """
    engine = backends.get("onnx")
    config = EngineConfig(n_ctx=512)
    with contextlib.closing(open_model(model, config)) as target:
        prompt = target.tokenizer.encode(_PROMPT)
        with contextlib.closing(engine.open_head(folder, config, target)) as head:
            return agreements(head, target, candidates, prompt)


def agreements(
    head: Head, target: Model, candidates: Sequence[tuple[int, ...]], prompt: Sequence[int]
) -> list[float]:
    """Return for each choice of layers the share of the N_TOKENS greedy tokens of a target after a
    prompt that a head guesses from their states. The first of them is given.

    The head was opened for the target. Both begin anew, and the target gives no states afterwards.
    Raises ConfigError for a layer that the target cannot give.
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
    """Return N_TOKENS tokens that a target writes, and the states of these layers of the prompt and
    of all tokens but the last, [n, n_layers, hidden_size].
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
