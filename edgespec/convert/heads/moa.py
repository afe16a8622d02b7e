"""Mixtures of Attentions (arXiv 2410.03804), as huawei-noah publishes them."""

from __future__ import annotations

from pathlib import Path

from ...errors import ModelError, UnknownArchitecture
from .checkpoint import EMBEDDING_AND_OUTPUT, DecoderLayer, HeadCheckpoint, take
from .config import Config, rotation_of
from .layers import Weights, vocab_size_of
from .tensors import Tensors

_PARTS = {
    "layers": "layer_self_attention.", "text": "self_attention.", "cross": "cross_attention.",
}  # fmt: skip


def recognises(tensors: Tensors, config: Config) -> bool:
    """Return True for the tensors of a Mixture of Attentions."""
    return "Ekv2E.weight" in tensors


def read(path: Path, tensors: Tensors, config: Config) -> HeadCheckpoint:
    """Return the description of a Mixture of Attentions. Raises ModelError.

    The sizes of its layers are taken from their tensors, because its config has those of the
    target.
    """
    if config.target_layer_inference:
        raise UnknownArchitecture(
            f"{path} ends with the target's last {config.target_layer_inference} layers; known are "
            "heads that end with its output matrix"
        )
    parts = {name: _sizes(path, tensors, config, prefix) for name, prefix in _PARTS.items()}
    text, width = parts["text"], config.hidden_size
    weights = Weights(path, tensors, text)
    for name, prefix in _PARTS.items():
        weights.layer = parts[name]
        weights.take_norms(prefix, "input_layernorm", "post_attention_layernorm", to=f"{name}.")
        weights.take_projections(prefix, parts[name].width, f"{name}.")
    weights.take("project", width, parts["layers"].width, source="Ekv2E", bias="optional")
    weights.refuse_others()
    return HeadCheckpoint(
        path, "moa", weights.found, width, vocab_size_of(path, config, tensors),
        EMBEDDING_AND_OUTPUT, decoder=text, parts=parts, n_ctx_train=config.max_position_embeddings,
    )  # fmt: skip


def _sizes(path: Path, tensors: Tensors, config: Config, prefix: str) -> DecoderLayer:
    """Return the sizes of a layer. All layers have the same number of query heads."""
    names = ("self_attn.q_proj", "self_attn.k_proj", "mlp.up_proj")
    taken = [take(path, tensors, f"{prefix}{name}.weight", None, None) for name in names]
    queries, keys, inner = (each.shape for each in taken if each)
    n_heads, width = config.num_attention_heads, queries[1]
    expected = width if "layer" in prefix else config.hidden_size
    if n_heads < 1 or width != expected or width % n_heads or config.hidden_act != "silu":
        raise ModelError(
            f"{path}: its config.json says {n_heads} heads in states of {config.hidden_size} and "
            f"the activation {config.hidden_act}, and {prefix}self_attn.q_proj reads {width} "
            "numbers; put the head's own config.json beside it"
        )
    head_dim = width // n_heads
    return DecoderLayer(
        width, n_heads, max(1, keys[0] // head_dim), head_dim, inner[0], config.rms_norm_eps,
        rotation_of(path, config, head_dim),
    )  # fmt: skip
