"""EAGLE-3 heads (arXiv 2503.01840), as SafeAILab, SpecForge, AngelSlim and vLLM's speculators write
them.
"""

from __future__ import annotations

from pathlib import Path

from ...errors import ModelError
from .checkpoint import EMBEDDING_AND_OUTPUT, HeadCheckpoint, with_vocabulary
from .config import Config
from .layers import Weights, check_one_layer, sizes_of, vocab_size_of
from .tensors import Tensors


def recognises(tensors: Tensors, config: Config) -> bool:
    """Return True for the tensors of an EAGLE-3 head."""
    return any(name.startswith(("midlayer.", "layers.0.hidden_norm")) for name in tensors)


def read(path: Path, tensors: Tensors, config: Config) -> HeadCheckpoint:
    """Return the description of an EAGLE-3 head. Raises ModelError."""
    hidden = config.target_hidden_size or config.hidden_size
    layer = sizes_of(path, config)
    prefix = "midlayer." if any(each.startswith("midlayer.") for each in tensors) else "layers.0."
    check_one_layer(path, config.num_hidden_layers)
    ids, ids_count = config.layer_ids()
    n_taps = len(ids) or 3
    weights = Weights(path, tensors, layer)
    weights.take("fc", layer.width, n_taps * hidden, bias="optional")
    if config.fc_norm or "fc_norm.0.weight" in tensors:
        for i in range(n_taps):
            weights.take(f"fc_norm.{i}", hidden)
    elif config.norm_before_fc or "input_norm.weight" in tensors:
        weights.take("input_norm", n_taps * hidden)
    weights.take_norms(prefix, "input_layernorm", "hidden_norm", "post_attention_layernorm")
    weights.take_projections(prefix, 2 * layer.width)
    weights.take("norm", layer.width)
    vocab_size = vocab_size_of(path, config, tensors)
    head = with_vocabulary(HeadCheckpoint(
        path, "eagle3", weights.found, hidden, vocab_size, EMBEDDING_AND_OUTPUT,
        config.target_num_hidden_layers or 0, ids, ids_count, decoder=layer,
        norm_before_residual=bool(config.norm_before_residual),
        norm_output=bool(config.norm_output),
        n_ctx_train=config.max_position_embeddings,
    ), tensors)  # fmt: skip
    weights.take("lm_head", head.head_vocab_size, layer.width, optional=head.d2t is None)
    weights.take("embed_tokens", vocab_size, layer.width, optional=True)
    if head.lacking and layer.width != hidden:
        raise ModelError(
            f"{path}: {head.lacking[0]}.weight is missing, and the target's matrix of {hidden} "
            f"numbers a row does not fit states of {layer.width}"
        )
    weights.refuse_others()
    return head
