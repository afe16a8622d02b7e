"""The shapes of heads for a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .. import backends
from ..backends.files import find, has_folder
from ..backends.heads import TargetSizes
from ..convert.heads.checkpoint import usual_layers
from ..convert.heads.config import read_config
from ..convert.heads.fitting import target_sizes
from ..errors import ConfigError

_PAIRED = ("llama", "mistral3", "granite", "smollm3")  # GGUFs that keep rotated numbers together


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of an EAGLE-3 head, one more layer of the target's own kind, and what it reads.

    target: the target's sizes. layers: the layers whose inputs it reads. n_ctx_train: the longest
    text of the target. paired: True if the target's GGUF keeps rotated numbers as neighbours.
    n_ahead: the tokens of a draft that it is trained for.
    """

    target: TargetSizes
    layers: tuple[int, ...]
    n_heads: int
    n_kv_heads: int
    head_dim: int
    feed_forward: int
    n_drafted: int
    eps: float
    rope_base: float
    n_ctx_train: int
    license: str
    paired: bool
    n_ahead: int

    @property
    def reads(self) -> str:
        """The states of the target that the head reads, in words."""
        return f"the inputs of the layers {', '.join(map(str, self.layers))}"

    @property
    def n_read(self) -> float:
        """The number of weights that are read for one guess."""
        return self.n_weights

    @property
    def n_weights(self) -> int:
        """The number of weights that are trained."""
        d = self.target.hidden_size
        attention = 2 * d * self.head_dim * (self.n_heads + 2 * self.n_kv_heads)
        attention += d * self.head_dim * self.n_heads
        return 3 * d * d + attention + 3 * d * self.feed_forward + self.n_drafted * d

    def sizes(self) -> dict[str, Any]:
        """Return the fields of Sizes in the network's file, for JSON."""
        names = ("n_heads", "n_kv_heads", "head_dim", "feed_forward", "n_drafted", "eps")
        known = asdict(self)
        n = self.head_dim
        rotation = [self.rope_base ** (-2 * i / n) for i in range(n // 2)]
        return {name: known[name] for name in names} | {
            "hidden_size": self.target.hidden_size, "rotation": rotation
        }  # fmt: skip

    def config(self) -> dict[str, Any]:
        """Return the config.json of a checkpoint, with SafeAILab's fields."""
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_size": self.target.hidden_size,
            "target_hidden_size": self.target.hidden_size,
            "target_num_hidden_layers": self.target.n_layer,
            "num_hidden_layers": 1,
            "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.feed_forward,
            "hidden_act": "silu",
            "rms_norm_eps": self.eps,
            "rope_theta": self.rope_base,
            "max_position_embeddings": self.n_ctx_train,
            "vocab_size": self.target.vocab_size,
            "draft_vocab_size": self.n_drafted,
            "tie_word_embeddings": False,
            "torch_dtype": "float32",
            "license": self.license,
        }


@dataclass(frozen=True, slots=True)
class _FinalShape(Shape):
    """The sizes of a head that reads the target's final state and drafts at most n_ahead tokens."""

    @property
    def reads(self) -> str:
        """The states of the target that the head reads, in words."""
        return "the final hidden state"

    def sizes(self) -> dict[str, Any]:
        """Return the fields of Sizes in the network's file, for JSON."""
        d = self.target.hidden_size
        return {"hidden_size": d, "n_drafted": self.n_drafted, "n_ahead": self.n_ahead}

    @property
    def _common(self) -> dict[str, Any]:
        """The fields of config.json that both kinds have."""
        return {
            "hidden_size": self.target.hidden_size,
            "vocab_size": self.target.vocab_size,
            "draft_vocab_size": self.n_drafted,
            "torch_dtype": "float32",
            "license": self.license,
        }


@dataclass(frozen=True, slots=True)
class MedusaShape(_FinalShape):
    """The sizes of Medusa heads, which share an output matrix."""

    @property
    def n_weights(self) -> int:
        """The number of weights that are trained."""
        d = self.target.hidden_size
        return self.n_ahead * (d * d + d) + self.n_drafted * d

    @property
    def n_read(self) -> float:
        """The number of weights that are read for one guess: one call gives all of them."""
        return self.n_weights / self.n_ahead

    def config(self) -> dict[str, Any]:
        """Return the config.json of a checkpoint, with Medusa's fields."""
        heads = {"medusa_num_heads": self.n_ahead, "medusa_num_layers": 1}
        return {"architectures": ["MedusaModel"], "model_type": "medusa"} | heads | self._common


@dataclass(frozen=True, slots=True)
class MlpShape(_FinalShape):
    """The sizes of an MLP speculator, whose states are as wide as the target's."""

    @property
    def n_weights(self) -> int:
        """The number of weights that are trained; the embedding is the target's."""
        d = self.target.hidden_size
        return 2 * d * d + 2 * d + self.n_drafted * d

    @property
    def n_read(self) -> float:
        """The number of weights that are read for one guess."""
        d = self.target.hidden_size
        return d * d + self.n_drafted * d

    def config(self) -> dict[str, Any]:
        """Return the config.json of a checkpoint, with the fields of IBM's accelerators."""
        d = self.target.hidden_size
        return self._common | {
            "architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator",
            "emb_dim": d, "inner_dim": d, "n_predict": self.n_ahead, "tie_weights": True,
            "scale_input": True,
        }  # fmt: skip


def shape_for(path: Path, vocabulary: int, n_ahead: int, kind: type[Shape] = Shape) -> Shape:
    """Return the shape of a head for the target in a file.

    vocabulary: most different tokens that the head may draft. Raises ModelError and its subclasses,
    and ConfigError for a target whose file does not state the sizes of its attention.
    """
    target = target_sizes(path)
    known = known_of(path)
    if lacking := [name for name in ("n_heads", "head_dim", "feed_forward") if not known[name]]:
        raise ConfigError(
            f"{path} does not state the {lacking[0]} of its layers, which a head's layer would "
            "have; take another file of the model"
        )
    layers = usual_layers(target.n_layer)
    n_drafted = min(vocabulary, target.vocab_size)
    return kind(target, layers, n_drafted=n_drafted, n_ahead=n_ahead, **known)


def known_of(path: Path) -> dict[str, Any]:
    """Return the fields of a Shape that a model states."""
    return _of_folder(path) if has_folder(path) else _of_gguf(path)


def weights_of_layer(known: Mapping[str, Any], d: int) -> int:
    """Return the number of weights of a layer of width `d` with these fields of a Shape."""
    attention = 2 * (known["n_heads"] + known["n_kv_heads"]) * known["head_dim"]
    return int(d * (attention + 3 * known["feed_forward"]))


def _of_gguf(path: Path) -> dict[str, Any]:
    """Return the fields of a Shape that a GGUF states."""
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
    """Return the fields of a Shape that the config.json next to a file states."""
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
