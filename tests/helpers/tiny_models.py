"""Tiny random GGUFs: targets of several architectures and heads for them, float32 throughout, small
enough to be computed in NumPy.
"""

from pathlib import Path

import numpy as np

from tests.helpers.gguf_files import (
    FEED,
    HEADS,
    STRING,
    TOKENS,
    UINT32,
    WIDTH,
    Field,
    fields,
    gguf_bytes,
)

VOCABULARY = len(TOKENS)
N_LAYER = 6
HEAD = WIDTH // HEADS
EPSILON = 1e-5
_BIASED = ("qwen2", "qwen2vl")
_NORMED = ("qwen3", "qwen3moe", "qwen3vl", "gemma3")  # queries and keys
_EXPERTS = {"qwen3moe": 4}
_NORMED_BEHIND = ("gemma3",)  # what layers add


def metadata(architecture: str, n_layer: int = N_LAYER, n_ctx: int = 512) -> dict[str, Field]:
    """Return the metadata of a model over bytes."""
    found = {
        key.replace("llama.", f"{architecture}.", 1) if key.startswith("llama.") else key: content
        for key, content in fields().items()
    }
    found["general.architecture"] = (STRING, architecture.encode())
    found[f"{architecture}.block_count"] = (UINT32, n_layer)
    found[f"{architecture}.context_length"] = (UINT32, n_ctx)
    found[f"{architecture}.attention.key_length"] = (UINT32, HEAD)
    found[f"{architecture}.attention.value_length"] = (UINT32, HEAD)
    if architecture in _EXPERTS:
        found[f"{architecture}.expert_count"] = (UINT32, _EXPERTS[architecture])
        # all of them: which of nearly equal ones are used may depend on rounding
        found[f"{architecture}.expert_used_count"] = (UINT32, _EXPERTS[architecture])
        found[f"{architecture}.expert_feed_forward_length"] = (UINT32, FEED)
    if architecture == "gemma3":
        found["gemma3.attention.sliding_window"] = (UINT32, 4096)
    return found


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the RMS norm of vectors."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight


def with_changes(found: dict[str, Field], changed: dict[str, Field | None]) -> dict[str, Field]:
    """Return metadata, some of it changed (None: left out).

    "__" stands for "." in keys of the architecture's own, which go without its name.
    """
    architecture = found["general.architecture"][1].decode()
    named = {
        key if "." in key else f"{architecture}.{key.replace('__', '.')}": content
        for key, content in changed.items()
    }
    return {key: content for key, content in (found | named).items() if content is not None}


def _layer(architecture: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the weights of one layer."""
    shapes: dict[str, tuple[int, ...]] = {
        f"attn_{name}.weight": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")
    }
    shapes |= {f"ffn_{name}.weight": (FEED, WIDTH) for name in ("gate", "up")}
    shapes["ffn_down.weight"] = (WIDTH, FEED)
    if n := _EXPERTS.get(architecture):
        names = ("ffn_gate", "ffn_up", "ffn_down")
        shapes |= {f"{name}_exps.weight": (n, *shapes.pop(f"{name}.weight")) for name in names}
        shapes["ffn_gate_inp.weight"] = (n, WIDTH)
    if architecture in _BIASED:
        shapes |= {f"attn_{name}.bias": (WIDTH,) for name in ("q", "k", "v")}
    norms = {"attn_norm.weight": WIDTH, "ffn_norm.weight": WIDTH}
    if architecture in _NORMED:
        norms |= {"attn_q_norm.weight": HEAD, "attn_k_norm.weight": HEAD}
    if architecture in _NORMED_BEHIND:
        norms |= {"post_attention_norm.weight": WIDTH, "post_ffw_norm.weight": WIDTH}
    found = {name: rng.normal(size=shape) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    return found | {name: 1 + 0.1 * rng.normal(size=n) for name, n in norms.items()}


def ends(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the weights before and after the layers."""
    return {
        "token_embd.weight": rng.normal(size=(VOCABULARY, WIDTH)),
        "output.weight": rng.normal(size=(VOCABULARY, WIDTH)) * 0.3,
        "output_norm.weight": 1 + 0.1 * rng.normal(size=WIDTH),
    }


def weights(
    architecture: str, n_layer: int = N_LAYER, marked: bool = False, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return the weights of a model.

    marked: layer i changes channel i of the residual stream and no other one.
    """
    rng = np.random.default_rng(seed)
    found = ends(rng)
    for i in range(n_layer):
        layer = _layer(architecture, rng)
        if marked:
            layer["attn_output.weight"][:] = 0
            down = layer.get("ffn_down.weight", layer.get("ffn_down_exps.weight"))
            down[..., np.arange(WIDTH) != i, :] = 0
        found |= {f"blk.{i}.{name}": value for name, value in layer.items()}
    return {name: value.astype(np.float32) for name, value in found.items()}


def write(folder: Path, architecture: str, n_layer: int = N_LAYER, marked: bool = False) -> Path:
    """Write a target and return its path."""
    path = folder / f"{architecture}-{n_layer}-{marked}.gguf"
    made = weights(architecture, n_layer, marked)
    path.write_bytes(gguf_bytes(metadata(architecture, n_layer), made))
    return path
