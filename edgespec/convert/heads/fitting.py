"""A head beside its target: sizes, whether it runs, from which layers it guesses better."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ... import backends
from ...backends.base import Head, HeadBackend, HiddenStates
from ...backends.features import Features
from ...config import EngineConfig
from ...errors import ConfigError, ConversionError, EngineMissing, ModelError
from ...loading.models import open_model

N_TOKENS = 48
_PROMPT = "Explain in a few sentences how a bicycle stays upright while it is moving."


@dataclass(frozen=True, slots=True)
class TargetSizes:
    """The sizes of a target, as a HiddenStates model has them: all that checks ask of one."""

    hidden_size: int
    vocab_size: int
    n_layer: int


def target_sizes(path: Path) -> TargetSizes:
    """Return the sizes of a target. Raises ModelError and its kinds."""
    known = backends.of(path).inspect_metadata(path)
    hidden = known.get("embedding_length") or _configured_width(path)
    if not hidden or not known.get("block_count"):
        raise ModelError(
            f"{path} does not say how wide its states are; a config.json with hidden_size beside "
            "the graph would"
        )
    return TargetSizes(int(hidden), int(known["vocab_size"]), int(known["block_count"]))


def check_runs(folder: Path, sizes: TargetSizes) -> None:
    """Raise ConversionError if the head in a folder does not give finite rows for a few tokens."""
    engine = backends.get("onnx")
    assert isinstance(engine, HeadBackend)
    config = EngineConfig(n_ctx=64, provider="cpu")
    head: Any = engine.open_head(folder, config, sizes)  # type: ignore[arg-type]
    with contextlib.closing(head):
        rows = [head.decode([0, 1, 2], 1).logits[0].copy()]
        if head.max_depth != 1:
            rows.append(head.grow([3], [-1]).logits[0].copy())
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
        found = " and ".join(f"{share:.0%}" for share in shares)
    except (EngineMissing, ModelError, ConfigError) as error:
        shares, found = [], f"an unknown share ({error})"
    chosen = candidates[max(range(len(shares)), key=shares.__getitem__, default=0)]
    readings = " or ".join(str(list(each)) for each in candidates)
    return chosen, (
        f"the checkpoint does not say if it counts layers by inputs or outputs: read as {readings} "
        f"it guesses {found} of the target's tokens; {list(chosen)} is taken, and layers=… takes "
        "another"
    )


def _agreements(folder: Path, model: Path, candidates: Sequence[tuple[int, ...]]) -> list[float]:
    """Return the share of a target's tokens that a head guesses, by the layers that it reads.
    Raises ConfigError for a target that gives no states.
    """
    engine = backends.get("onnx")
    assert isinstance(engine, HeadBackend)
    config = EngineConfig(n_ctx=512)
    with contextlib.closing(open_model(model, config)) as target:
        if not isinstance(target, HiddenStates):
            raise ConfigError(f"{model.name} gives no hidden states")
        prompt = target.tokenizer.encode(_PROMPT)
        with contextlib.closing(engine.open_head(folder, config, target)) as head:
            return [agreement(head, target, layers, prompt) for layers in candidates]


def agreement(
    head: Head, target: HiddenStates, layers: Sequence[int], prompt: Sequence[int]
) -> float:
    """Return the share of N_TOKENS greedy tokens of a target, behind a prompt, that a head guesses
    right when it reads the states of these layers.

    The head was opened for the target. Both begin anew, and the target gives no states afterwards.
    Raises ConfigError for a layer that the target cannot give.
    """
    target.tap(layers)
    try:
        target.truncate(0)
        head.truncate(0)
        head.start, head.features = 0, Features()
        outputs = target.decode(prompt)
        head.features.append(0, outputs.hidden)
        head.decode(prompt, 0)
        token, n_right = int(outputs.logits[0].argmax()), 0
        for i in range(N_TOKENS):
            guess = int(head.decode([token]).logits[0].argmax())
            outputs = target.decode([token])
            head.features.append(len(prompt) + i, outputs.hidden)
            token = int(outputs.logits[0].argmax())
            n_right += guess == token
        return n_right / N_TOKENS
    finally:
        target.tap(())


def _configured_width(path: Path) -> Any:
    """Return the width of states as a file beside a graph says, None where none does."""
    for name in ("config.json", "genai_config.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            found = json.loads((path.parent / name).read_text("utf-8"))
            found = found | found.get("text_config", {})
            decoder = found.get("model", {}).get("decoder", {})
            if width := found.get("hidden_size") or decoder.get("hidden_size"):
                return width
    return None
