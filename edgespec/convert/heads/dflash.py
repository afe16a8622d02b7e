"""DFlash heads (arXiv 2602.06036), as z-lab and vLLM's speculators write them.

Their layers guess a block of masked tokens at once.
"""

from __future__ import annotations

from pathlib import Path

from ...errors import ModelError, UnknownArchitecture
from .checkpoint import EMBEDDING_AND_OUTPUT, HeadCheckpoint, LayerIds, with_vocabulary
from .config import Config
from .layers import Weights, sizes_of, vocab_size_of
from .tensors import Tensors

_FULL, _SLIDING = "full_attention", "sliding_attention"


def recognises(tensors: Tensors, config: Config) -> bool:
    """Return True for a config that names DFlash, or for the tensors of a DFlash head."""
    named = "dflash" in config.names.lower()
    return named or {"fc.weight", "hidden_norm.weight"} <= tensors.keys()


def read(path: Path, tensors: Tensors, config: Config) -> HeadCheckpoint:
    """Return the description of a DFlash head. Raises ModelError."""
    layer, n_layers = sizes_of(path, config), config.num_hidden_layers or 1
    hidden = config.target_hidden_size or layer.width
    (ids, ids_count), vocab_size = _layer_ids(path, config), vocab_size_of(path, config, tensors)
    weights = Weights(path, tensors, layer)
    weights.take("fc", layer.width, len(ids) * hidden, bias="optional")
    weights.take_norms("", "hidden_norm", "norm")
    for i in range(n_layers):
        prefix, to = f"layers.{i}.", f"{i}."
        weights.take_norms(prefix, "input_layernorm", "post_attention_layernorm", to=to)
        weights.take_head_norms(prefix, to)
        weights.take_projections(prefix, layer.width, to)
    windows, causal = _attention(path, config, n_layers)
    head = with_vocabulary(HeadCheckpoint(
        path, "dflash", weights.found, hidden, vocab_size, EMBEDDING_AND_OUTPUT,
        config.num_target_layers or 0, ids, ids_count, decoder=layer,
        n_heads=_block_size(path, config) - 1,
        mask_token=_mask_token(path, config, vocab_size), windows=windows, causal=causal,
        embedding_scale=config.input_embedding_scale, logit_scale=config.output_multiplier,
        softcap=config.final_logit_softcapping or 0.0,
        n_ctx_train=config.max_position_embeddings,
    ), tensors)  # fmt: skip
    weights.take("embed_tokens", vocab_size, layer.width, optional=layer.width == hidden)
    own_rows = head.d2t is not None or layer.width != hidden
    weights.take("lm_head", head.head_vocab_size, layer.width, optional=not own_rows)
    weights.refuse_others()
    return head


def _layer_ids(path: Path, config: Config) -> tuple[tuple[int, ...], LayerIds]:
    """Return the layer ids of the config and what they count.

    z-lab counts the outputs of layers, vLLM's speculators their inputs.
    """
    if config.target_layer_ids:
        return tuple(config.target_layer_ids), "outputs"
    if config.aux_hidden_state_layer_ids:
        return tuple(config.aux_hidden_state_layer_ids), "inputs"
    raise ModelError(
        f"{path}: its config.json says no target_layer_ids; put the head's own config.json beside"
    )


def _block_size(path: Path, config: Config) -> int:
    """Return the number of tokens in a block: the last token of the text and the guessed ones."""
    if config.sample_from_anchor:
        raise UnknownArchitecture(
            f"{path} guesses from the last token's own place (sample_from_anchor); known are heads "
            "that guess from masked places only"
        )
    if config.block_size < 2:
        raise ModelError(
            f"{path}: its config.json says a block_size of {config.block_size}; at least 2 is "
            "expected"
        )
    return config.block_size


def _mask_token(path: Path, config: Config, vocab_size: int) -> int:
    if config.mask_token_id is None or not 0 <= config.mask_token_id < vocab_size:
        raise ModelError(
            f"{path}: its config.json says the mask_token_id {config.mask_token_id}; one of "
            f"{vocab_size} tokens is expected"
        )
    return config.mask_token_id


def _attention(
    path: Path, config: Config, n_layers: int
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return the window of each layer, 0 for none, and whether each layer is causal.

    If the config does not say it, layers with a window are causal, as in z-lab's own code.
    """
    types = config.layer_types or [_FULL] * n_layers
    if len(types) != n_layers or not set(types) <= {_FULL, _SLIDING}:
        raise UnknownArchitecture(
            f"{path}: its layer_types are {types}; {n_layers} of {_FULL} and {_SLIDING} are known"
        )
    said = config.causal if config.is_causal is None else config.is_causal
    causal = tuple(kind == _SLIDING if said is None else said for kind in types)
    everywhere = config.use_swa and _SLIDING not in types
    slides = [everywhere or kind == _SLIDING for kind in types]
    window = config.swa_window_size or config.sliding_window or 0
    if any(slides) and window < 1:
        raise ModelError(f"{path}: its config.json says no sliding_window for layers that have one")
    return tuple(window if each else 0 for each in slides), causal
