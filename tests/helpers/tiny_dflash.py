"""Tiny random DFlash heads as GGUFs, and what they compute, in NumPy."""

from pathlib import Path

import numpy as np

from .gguf_files import ARRAY, FEED, HEADS, INT32, UINT32, WIDTH, Field, gguf_bytes
from .tiny_models import HEAD, VOCABULARY, metadata, normed, with_changes

LAYERS = (1, 3, 4, 5)  # of the target
N_LAYER, BLOCK, MASK = 2, 5, 17
KEY_HEADS = 2
BASE = 10000.0  # of the rotation


def dflash_metadata(**changed: Field | None) -> dict[str, Field]:
    """Return the metadata of a head, some of it changed as in `with_changes`."""
    found = metadata("dflash", N_LAYER)
    found["dflash.attention.head_count_kv"] = (UINT32, KEY_HEADS)
    found["dflash.target_layers"] = (ARRAY, (INT32, list(LAYERS)))
    found["dflash.block_size"] = (UINT32, BLOCK)
    found["tokenizer.ggml.mask_token_id"] = (UINT32, MASK)
    return with_changes(found, changed)


def dflash_weights(seed: int = 1) -> dict[str, np.ndarray]:
    """Return the weights of a head with embedding and output weights of its own."""
    rng = np.random.default_rng(seed)
    keys = KEY_HEADS * HEAD
    shapes = {"fc": (WIDTH, len(LAYERS) * WIDTH), "token_embd": (VOCABULARY, WIDTH)}
    shapes["output"] = (VOCABULARY, WIDTH)
    norms = {"enc.output_norm": WIDTH, "output_norm": WIDTH}
    for i in range(N_LAYER):
        layer = {
            "attn_q": (WIDTH, WIDTH), "attn_k": (keys, WIDTH), "attn_v": (keys, WIDTH),
            "attn_output": (WIDTH, WIDTH), "ffn_gate": (FEED, WIDTH), "ffn_up": (FEED, WIDTH),
            "ffn_down": (WIDTH, FEED),
        }  # fmt: skip
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
        norms |= {f"blk.{i}.{name}": WIDTH for name in ("attn_norm", "ffn_norm")}
        norms |= {f"blk.{i}.{name}": HEAD for name in ("attn_q_norm", "attn_k_norm")}
    found = {name: rng.normal(size=shape) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    found |= {name: 1 + 0.1 * rng.normal(size=n) for name, n in norms.items()}
    return {f"{name}.weight": value.astype(np.float32) for name, value in found.items()}


def write(
    path: Path, weights: dict[str, np.ndarray] | None = None, **changed: Field | None
) -> Path:
    """Write a head and return its path."""
    made = dflash_weights() if weights is None else weights
    path.write_bytes(gguf_bytes(dflash_metadata(**changed), made))
    return path


def _rotated(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotate the halves of each head, [n, heads, HEAD], by angles that grow with positions."""
    angles = positions[:, None, None] * BASE ** (-np.arange(0, HEAD, 2) / HEAD)
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


class Reference:
    """The head in float64."""

    def __init__(
        self, weights: dict[str, np.ndarray], embeddings: np.ndarray | None = None,
        output: np.ndarray | None = None, windows: tuple[int, ...] = (0,) * N_LAYER,
    ) -> None:  # fmt: skip
        self._windows = windows  # of the layers; 0: they see all
        w = {name.removesuffix(".weight"): x.astype(np.float64) for name, x in weights.items()}
        self._w = w
        self._embeddings = w["token_embd"] if embeddings is None else embeddings
        self._output = w["output"] if output is None else output

    def rows(
        self, states: np.ndarray, positions: np.ndarray, token: int, position: int
    ) -> np.ndarray:
        """Return the rows of a block, [BLOCK, VOCABULARY], whose first token is known, behind the
        target's states [n, layers, width] at these positions.
        """
        w = self._w
        known = normed(states.reshape(-1, len(LAYERS) * WIDTH) @ w["fc"].T, w["enc.output_norm"])
        block = position + np.arange(BLOCK)
        x = self._embeddings[[token, *[MASK] * (BLOCK - 1)]]
        for i in range(N_LAYER):
            layer = {
                n.removeprefix(f"blk.{i}."): v for n, v in w.items() if n.startswith(f"blk.{i}.")
            }
            inner = normed(x, layer["attn_norm"])
            query = (inner @ layer["attn_q"].T).reshape(BLOCK, HEADS, HEAD)
            query = _rotated(normed(query, layer["attn_q_norm"]), block)
            both, at = np.concatenate([known, inner]), np.concatenate([positions, block])
            key = (both @ layer["attn_k"].T).reshape(len(both), KEY_HEADS, HEAD)
            key = _rotated(normed(key, layer["attn_k_norm"]), at)
            value = (both @ layer["attn_v"].T).reshape(len(both), KEY_HEADS, HEAD)
            key, value = (np.repeat(a, HEADS // KEY_HEADS, 1) for a in (key, value))
            scores = np.einsum("ihd,jhd->hij", query, key) / HEAD**0.5
            if window := self._windows[i]:
                scores = np.where(block[:, None] - at < window, scores, -np.inf)
            probs = np.exp(scores - scores.max(-1, keepdims=True))
            probs /= probs.sum(-1, keepdims=True)
            x = (
                x
                + np.einsum("hij,jhd->ihd", probs, value).reshape(BLOCK, -1)
                @ layer["attn_output"].T
            )
            inner = normed(x, layer["ffn_norm"])
            gate = inner @ layer["ffn_gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (inner @ layer["ffn_up"].T)) @ layer["ffn_down"].T
        return normed(x, w["output_norm"]) @ self._output.T
