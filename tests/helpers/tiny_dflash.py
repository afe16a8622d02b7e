"""Tiny random DFlash heads as GGUFs, and what they compute, in NumPy."""

from pathlib import Path

import numpy as np

from tests.helpers.gguf_files import ARRAY, FEED, INT32, UINT32, WIDTH, Field, gguf_bytes
from tests.helpers.heads import Linear, attention, rotated
from tests.helpers.tiny_models import EPSILON, HEAD, VOCABULARY, metadata, with_changes

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


class Reference(Linear):
    """The head in float64."""

    def __init__(
        self, weights: dict[str, np.ndarray], embeddings: np.ndarray | None = None,
        output: np.ndarray | None = None, windows: tuple[int, ...] = (0,) * N_LAYER,
    ) -> None:  # fmt: skip
        super().__init__(weights, EPSILON)
        self._windows = windows  # of the layers; 0: they see all
        w = self.weights
        self._embeddings = w["token_embd.weight"] if embeddings is None else embeddings
        self._output = w["output.weight"] if output is None else output

    def rows(
        self, states: np.ndarray, positions: np.ndarray, token: int, position: int
    ) -> np.ndarray:
        """Return the rows of a block, [BLOCK, VOCABULARY], whose first token is known, after the
        target's states [n, layers, width] at these positions.
        """
        known = self.linear("fc", states.reshape(-1, len(LAYERS) * WIDTH))
        known = self.norm("enc.output_norm", known)
        block = position + np.arange(BLOCK)
        at = np.concatenate([positions, block])
        x = self._embeddings[[token, *[MASK] * (BLOCK - 1)]]
        for i, window in enumerate(self._windows):
            sees = block[:, None] - at < (window or np.inf)
            inner = self.norm(f"blk.{i}.attn_norm", x)
            both = np.concatenate([known, inner])
            query, key, value = (
                self.linear(f"blk.{i}.attn_{name}", of).reshape(len(of), -1, HEAD)
                for name, of in (("q", inner), ("k", both), ("v", both))
            )
            query = rotated(self.norm(f"blk.{i}.attn_q_norm", query), block, BASE)
            key = rotated(self.norm(f"blk.{i}.attn_k_norm", key), at, BASE)
            x = x + self.linear(f"blk.{i}.attn_output", attention(query, key, value, sees))
            x = x + self.feed(self.norm(f"blk.{i}.ffn_norm", x), f"blk.{i}.ffn_")
        return self.norm("output_norm", x) @ self._output.T
