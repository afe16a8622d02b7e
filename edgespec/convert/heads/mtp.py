"""The layer for multi-token prediction (MTP) in a target's own checkpoint, for the dense Qwen3.5
models and MiMo-7B.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import UnknownArchitecture
from .checkpoint import EMBEDDING_AND_OUTPUT, HeadCheckpoint
from .config import Config
from .layers import Weights, sizes_of, vocab_size_of
from .tensors import Tensor, Tensors

_QWEN, _MIMO = "mtp.", "mtp_layers."
_MODEL = "language_model."  # prefix of the text model in a model that also sees
_EXPERTS = re.compile(r"\S+\.\d+\.mlp\.(experts|gate\.|shared_expert)")
_NEXTN = re.compile(r"layers\.\d+\.(eh_proj|enorm|hnorm|shared_head)\b")


def recognises(tensors: Tensors, config: Config) -> bool:
    """Return True for tensors with a layer for multi-token prediction in a known naming."""
    return any(name.startswith((_QWEN, _MIMO)) or _NEXTN.match(name) for name in tensors)


def read(path: Path, tensors: Tensors, config: Config) -> HeadCheckpoint:
    """Return the description of a target's MTP layer. Raises ModelError.

    The layer first reads the target's final states and then its own, and uses the target's
    embedding and output matrix.
    """
    tensors = {name.removeprefix(_MODEL): tensor for name, tensor in tensors.items()}
    if any(name.startswith(_QWEN) for name in tensors):
        _refuse_experts(path, [name for name in tensors if name.startswith(_QWEN)])
        return _read_qwen(path, tensors, config)
    if any(name.startswith(_MIMO) for name in tensors):
        _refuse_experts(path, [name for name in tensors if name.startswith(_MIMO)])
        return _read_mimo(path, tensors, config)
    nextn = [name for name in tensors if _NEXTN.match(name)]
    last = nextn[0].split(".")[1]
    _refuse_experts(path, [name for name in tensors if name.startswith(f"layers.{last}.")])
    raise _refusal(path, f"is of another naming ({nextn[0]})")


def _read_qwen(path: Path, tensors: Tensors, config: Config) -> HeadCheckpoint:
    """Return the description of Qwen3.5's MTP layer.

    Its input is [embedding; state]. The stored weights of its norms are 1 too small. Its attention
    is gated: queries and gates alternate, head by head.
    """
    layer = sizes_of(path, config, partial_rotation=True)
    weights, prefix = Weights(path, tensors, layer), "mtp.layers.0."
    weights.take("fc", layer.width, 2 * layer.width, source="mtp.fc")
    weights.take("token_norm", layer.width, source="mtp.pre_fc_norm_embedding")
    weights.take("hidden_norm", layer.width, source="mtp.pre_fc_norm_hidden")
    weights.take("norm", layer.width, source="mtp.norm")
    weights.take_norms(prefix, "input_layernorm", "post_attention_layernorm")
    weights.take_head_norms(prefix)
    weights.take_projections(prefix, layer.width, gated=True)
    weights.refuse_others(_QWEN)
    tensors_by_name = weights.found
    for name in [name for name in tensors_by_name if "norm" in name]:
        tensors_by_name[name] = _derived(
            tensors_by_name[name], tensors_by_name[name].shape, lambda array: 1 + array
        )
    for end in [end for end in ("weight", "bias") if f"q.{end}" in tensors_by_name]:
        both, shape = tensors_by_name[f"q.{end}"], (layer.n_heads, 2, layer.head_dim)
        for i, name in enumerate(("q", "attention_gate")):
            tensors_by_name[f"{name}.{end}"] = _part(both, shape, i)
    return _described(path, tensors, config, weights, states_first=False)


def _read_mimo(path: Path, tensors: Tensors, config: Config) -> HeadCheckpoint:
    """Return the description of MiMo-7B's MTP layer.

    Its input is [state; embedding], and the layer is like those of Qwen2.
    """
    layer, prefix = sizes_of(path, config), "mtp_layers.0."
    weights = Weights(path, tensors, layer)
    weights.take("fc", layer.width, 2 * layer.width, source=f"{prefix}input_proj")
    for name, source in (
        ("token_norm", "token_layernorm"), ("hidden_norm", "hidden_layernorm"),
        ("norm", "final_layernorm"),
    ):  # fmt: skip
        weights.take(name, layer.width, source=f"{prefix}{source}")
    weights.take_norms(prefix, "input_layernorm", "post_attention_layernorm")
    weights.take_projections(prefix, layer.width)
    weights.refuse_others(_MIMO)
    return _described(path, tensors, config, weights, states_first=True)


def _described(
    path: Path, tensors: Tensors, config: Config, weights: Weights, *, states_first: bool
) -> HeadCheckpoint:
    """Return the description with these weights, and with the embedding and output matrix if the
    checkpoint has them.
    """
    width, vocab_size = weights.layer.width, vocab_size_of(path, config, tensors)
    weights.take("embed_tokens", vocab_size, width, optional=True)
    output = "embed_tokens" if config.tie_word_embeddings else "lm_head"
    weights.take("lm_head", vocab_size, width, source=output, optional=True)
    return HeadCheckpoint(
        path, "mtp", weights.found, width, vocab_size, EMBEDDING_AND_OUTPUT,
        config.num_hidden_layers or 0, decoder=weights.layer, states_first=states_first,
        n_ctx_train=config.max_position_embeddings,
    )  # fmt: skip


def _part(both: Tensor, shape: tuple[int, int, int], i: int) -> Tensor:
    """Return the i-th of two matrices whose rows alternate by attention head.

    shape: the number of attention heads, 2, and the rows of a head.
    """
    rows = (shape[0] * shape[2], *both.shape[1:])

    def chosen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.ascontiguousarray(array.reshape(*shape, *both.shape[1:])[:, i]).reshape(rows)

    return _derived(both, rows, chosen)


def _derived(
    tensor: Tensor, shape: tuple[int, ...],
    make: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
) -> Tensor:  # fmt: skip
    """Return a tensor that is computed from a different tensor when it is read."""
    return Tensor("F32", shape, lambda: make(tensor.array()))


def _refuse_experts(path: Path, names: list[str]) -> None:
    """Raise UnknownArchitecture if the names in an MTP layer show that it is not dense."""
    if any(_EXPERTS.match(name) for name in names):
        raise _refusal(path, "is a mixture of experts")
    if any("kv_a_proj" in name or "kv_b_proj" in name for name in names):
        raise _refusal(path, "has latent attention (MLA)")


def _refusal(path: Path, what: str) -> UnknownArchitecture:
    return UnknownArchitecture(
        f"{path}: its MTP layer {what}, and only dense ones of Qwen3.5 and MiMo are converted; a "
        "GGUF of the model that has the layer drafts for itself with llama.cpp"
    )
