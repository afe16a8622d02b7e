"""The shapes of heads for a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import backends
from ..backends.files import find, has_folder
from ..backends.heads import TargetSizes
from ..convert.heads.checkpoint import usual_layers
from ..convert.heads.config import read_config
from ..convert.heads.fitting import target_sizes
from ..errors import ConfigError
from .sizes import Sizes

_PAIRED = ("llama", "mistral3", "granite", "smollm3")  # GGUFs that keep rotated numbers together


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a head whose layer, if it has one, is of the target's own kind.

    target: the target's sizes. n_ctx_train: the longest text of the target. paired: True if the
    target's GGUF keeps rotated numbers as neighbours.
    """

    target: TargetSizes
    sizes: Sizes
    n_ctx_train: int
    license: str
    paired: bool

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of the target whose inputs are recorded, besides the final states."""
        return usual_layers(self.target.n_layer)


def shape_for(path: Path, vocabulary: int, n_ahead: int) -> Shape:
    """Return the shape of a head for the target in a file.

    vocabulary: most different tokens that the head may draft. Raises ModelError and its subclasses,
    and ConfigError for a target whose file does not state the sizes of its attention.
    """
    target, known = target_sizes(path), known_of(path)
    if lacking := [name for name in ("n_heads", "head_dim", "feed_forward") if not known[name]]:
        raise ConfigError(
            f"{path} does not state the {lacking[0]} of its layers, which a head's layer would "
            "have; take another file of the model"
        )
    n_drafted = min(vocabulary, target.vocab_size)
    layer = {name: known.pop(name) for name in Sizes._fields if name in known}
    return Shape(target, Sizes(target.hidden_size, n_drafted, n_ahead, **layer), **known)


def known_of(path: Path) -> dict[str, Any]:
    """Return the fields of Sizes and of Shape that a model states."""
    return _of_folder(path) if has_folder(path) else _of_gguf(path)


def weights_of_layer(known: Mapping[str, Any], d: int) -> int:
    """Return the number of weights of a layer of width `d` with the sizes in `known_of`."""
    attention = 2 * (known["n_heads"] + known["n_kv_heads"]) * known["head_dim"]
    return int(d * (attention + 3 * known["feed_forward"]))


def _of_gguf(path: Path) -> dict[str, Any]:
    known = backends.of(path).inspect_metadata(path)

    def number(name: str, otherwise: int = 0) -> int:
        text = known.get(name, "")
        return int(text) if text.isdecimal() else otherwise

    n_heads = number("attention.head_count")
    size = number("embedding_length") // n_heads if n_heads else 0
    return {
        "n_heads": n_heads,
        "n_kv_heads": number("attention.head_count_kv", n_heads),
        "head_dim": number("attention.key_length", size),
        "feed_forward": number("feed_forward_length"),
        "eps": float(known.get("attention.layer_norm_rms_epsilon", 1e-5)) or 1e-6,
        "rope_base": float(known.get("rope.freq_base", 10000.0)),
        "n_ctx_train": number("context_length"),
        "license": known.get("general.license", "unknown"),
        "paired": known.get("general.architecture") in _PAIRED,
    }


def _of_folder(path: Path) -> dict[str, Any]:
    config = read_config((find(path.parent, "config.json") or path).parent)
    n_heads = config.num_attention_heads
    base = (config.rope_parameters or {}).get("rope_theta") or config.rope_theta or 10000.0
    return {
        "n_heads": n_heads,
        "n_kv_heads": config.num_key_value_heads or n_heads,
        "head_dim": config.head_dim or (config.hidden_size // n_heads if n_heads else 0),
        "feed_forward": config.intermediate_size,
        "eps": config.rms_norm_eps,
        "rope_base": float(base),
        "n_ctx_train": config.max_position_embeddings,
        "license": config.license or "unknown",
        "paired": False,
    }
