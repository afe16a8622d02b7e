"""EAGLE-1 and EAGLE-2 heads (arXiv 2401.15077, 2406.16858), as SafeAILab writes them."""

from __future__ import annotations

from pathlib import Path

from .checkpoint import EMBEDDING_AND_OUTPUT, HeadCheckpoint
from .config import Config
from .layers import Weights, check_one_layer, sizes_of, vocab_size_of
from .tensors import Tensors

_LAYER = "layers.0."  # the beginning of the names of its tensors


def recognises(tensors: Tensors, config: Config) -> bool:
    """Return True for the tensors of an EAGLE head; those of EAGLE-3 look the same here."""
    return "fc.weight" in tensors and any(name.startswith(_LAYER) for name in tensors)


def read(path: Path, tensors: Tensors, config: Config) -> HeadCheckpoint:
    """Return the description of an EAGLE-1 or EAGLE-2 head. Raises ModelError.

    The checkpoints of the two have the same form.
    """
    layer = sizes_of(path, config)
    check_one_layer(path, config.num_hidden_layers)
    weights = Weights(path, tensors, layer)
    weights.take("fc", layer.width, 2 * layer.width, bias="optional")
    weights.take_norms(_LAYER, "post_attention_layernorm")
    weights.take_projections(_LAYER, layer.width)
    vocab_size = vocab_size_of(path, config, tensors)
    weights.take("embed_tokens", vocab_size, layer.width, optional=True)
    weights.take("lm_head", vocab_size, layer.width, optional=True)
    weights.refuse_others()
    return HeadCheckpoint(
        path, "eagle", weights.found, layer.width, vocab_size, EMBEDDING_AND_OUTPUT,
        decoder=layer, n_ctx_train=config.max_position_embeddings,
    )  # fmt: skip
