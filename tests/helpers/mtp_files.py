"""Checkpoints of targets with a dense layer for multi-token prediction, random weights."""

from __future__ import annotations

import numpy as np

from tests.helpers.head_files import (
    FEED,
    HEAD_DIM,
    HIDDEN,
    N_HEADS,
    TARGET_LAYERS,
    VOCAB,
    Made,
    _config,
    _layer,
    _Random,
)

QWEN_HEAD = 32  # numbers of an attention head, half of them rotated
OTHERS = {  # of the target itself: they are no part of the head
    "language_model.layers.0.mlp.down_proj.weight": (HIDDEN, FEED),
    "visual.patch_embed.proj.weight": (3, 5),
}
_OF_LAYER = {
    "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj",
    "o": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    "input_layernorm": "input_layernorm", "post_attention_layernorm": "post_attention_layernorm",
    "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
}  # fmt: skip
_OF_QWEN = {
    "fc": "mtp.fc", "token_norm": "mtp.pre_fc_norm_embedding",
    "hidden_norm": "mtp.pre_fc_norm_hidden", "norm": "mtp.norm",
}  # fmt: skip
_OF_MIMO = {
    "fc": "input_proj", "token_norm": "token_layernorm", "hidden_norm": "hidden_layernorm",
    "norm": "final_layernorm",
}  # fmt: skip


def _drawn(seed: int, bias: bool, size: int) -> _Random:
    random = _Random(seed)
    random.matrix("fc", HIDDEN, 2 * HIDDEN)
    for name in ("token_norm", "hidden_norm", "norm", "input_layernorm"):
        random.norm(name, HIDDEN)
    _layer(random, HIDDEN, bias, size=size)
    return random


def qwen(*, seed=0, tied=True, own=True, **config) -> Made:
    """Return Qwen3.5's MTP in a checkpoint of a model that also sees. own: the target's matrices
    are there as well. config: more of the text model's.
    """
    random = _drawn(seed, False, QWEN_HEAD)
    random.matrix("attention_gate", N_HEADS * QWEN_HEAD, HIDDEN)
    for name in ("q_norm", "k_norm"):
        random.norm(name, QWEN_HEAD)
    if own:
        random.matrix("embed_tokens", VOCAB, HIDDEN)
        random.matrix("lm_head", VOCAB, HIDDEN)
    weights = random.weights
    if own and tied:
        weights["lm_head.weight"] = weights["embed_tokens.weight"]
    published = {}
    for name, array in weights.items():
        part, _, end = name.rpartition(".")
        if part in _OF_LAYER and part != "q":
            published[f"mtp.layers.0.{_OF_LAYER[part]}.{end}"] = array
        elif part in _OF_QWEN:
            published[f"{_OF_QWEN[part]}.{end}"] = array
    for name in published:
        if "norm" in name:
            published[name] = (published[name] - 1).astype(np.float32)
    weights |= {f"{n}.weight": 1 + published[source] for n, source in _sources(published)}
    pairs = [
        weights[f"{name}.weight"].reshape(N_HEADS, 1, QWEN_HEAD, HIDDEN)
        for name in ("q", "attention_gate")
    ]
    queries = np.concatenate(pairs, axis=1).reshape(-1, HIDDEN)
    published["mtp.layers.0.self_attn.q_proj.weight"] = queries
    if own:
        published["model.language_model.embed_tokens.weight"] = weights["embed_tokens.weight"]
        if not tied:
            published["lm_head.weight"] = weights["lm_head.weight"]
    rotation = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
                "mrope_section": [1, 1, 0], "mrope_interleaved": True}  # fmt: skip
    text = (
        _config(rope_parameters=rotation, num_hidden_layers=TARGET_LAYERS, head_dim=QWEN_HEAD)
        | config
    )
    known = {
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "text_config": text, "tie_word_embeddings": tied,
    }  # fmt: skip
    published |= {f"model.{name}": np.ones(shape, np.float32) for name, shape in OTHERS.items()}
    return Made("mtp", weights, known, published=published)


def _sources(published):
    """Yield the names of norms here and in the file."""
    for name, source in (_OF_QWEN | {n: f"mtp.layers.0.{s}" for n, s in _OF_LAYER.items()}).items():
        if f"{source}.weight" in published and "norm" in source:
            yield name, f"{source}.weight"


def mimo(*, seed=0, own=True, **config) -> Made:
    """Return MiMo's MTP, with the target's matrices if `own`."""
    random = _drawn(seed, True, HEAD_DIM)
    if own:
        random.matrix("embed_tokens", VOCAB, HIDDEN)
        random.matrix("lm_head", VOCAB, HIDDEN)
    published = {}
    for name, array in random.weights.items():
        part, _, end = name.rpartition(".")
        inside = _OF_LAYER.get(part) or _OF_MIMO.get(part)
        place = {"embed_tokens": "model.embed_tokens"}.get(part, part)
        published[f"model.mtp_layers.0.{inside}.{end}" if inside else f"{place}.{end}"] = array
    published["model.layers.0.self_attn.q_proj.bias"] = np.ones(64, np.float32)
    known = _config(num_hidden_layers=TARGET_LAYERS) | {
        "architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1,
    }  # fmt: skip
    return Made("mtp", random.weights, known | config, published=published)
